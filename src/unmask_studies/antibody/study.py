"""Antibody design: the CDRs of held-out antibodies, filled by pretrained masked language models in different orders.

Two numbers of each order: −log p(x | σ) of the true residues along the order's own path, exact for every order that is not random
(the mean of several draws then), and the share of residues that greedy free-running decoding recovers. An order is learned on the
training antibodies and chosen on the validation antibodies; nobody looks at the test antibodies before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import Interval, mean_interval, paired_bootstrap
from unmask.schedulers.loading import load_scheduler
from unmask.training.policy.run import PolicyRun
from unmask_studies.antibody.task import AntibodyData, AntibodyTask, read_chains
from unmask_studies.sets import denoiser_named
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.trained import recipe, trained

CHAINS = {"antiberty": "H", "sapiens-h": "H", "sapiens-l": "L"}
"""The chains that each model is asked for. AntiBERTy knows both kinds."""
LEARNED = "learned"
AT_ONCE = 32


@dataclass(frozen=True)
class Antibodies:
    """``models`` in the folder ``denoiser``, as ``unmask antibody-models`` writes it; ``data``: CSV files of both chains.

    Each model's order is learned with the preset ``sas-antibody-MODEL`` (``steps`` shortens it), or found in ``runs``. ``limit``
    test antibodies of each model are measured, a random order of each ``draws`` times.
    """

    minutes: float = 0.0
    denoiser: str = "antibody-models"
    models: tuple[str, ...] = ("antiberty", "sapiens-h", "sapiens-l")
    data: tuple[Path, ...] = ()
    orders: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "uncertainty")
    runs: Path | None = None
    steps: int | None = None
    limit: int = 1000
    draws: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := [model for model in self.models if model not in CHAINS]:
            raise ValueError(f"no antibody model {unknown[0]!r}: expected some of {', '.join(CHAINS)}")
        for name, least in (("limit", 2), ("draws", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def pieces(self, folder: Path) -> list[Piece]:
        files = self._files()

        def measure(model: str, order: str) -> Mapping[str, Any]:
            name, config = self._denoiser(model), self._recipe(model, files[CHAINS[model]])
            denoiser = denoiser_named(name)
            if order == LEARNED:
                run = trained(f"sas-antibody-{model}", config, self.runs, folder)
                scheduler = load_scheduler(str(run), denoiser, name)
            else:
                scheduler = load_scheduler(order, denoiser, name)
            problems = cast(AntibodyData, config.data).problems(denoiser, name).held_out(self.limit, "test")
            return measured(problems, scheduler, self.seed, self.draws if order == "random" else 1)

        return [
            Piece(f"{model}: {order}", lambda a=model, b=order: measure(a, b))
            for model in self.models
            for order in (*self.orders, LEARNED)
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        return Findings([self._table(model, results) for model in self.models])

    def _table(self, model: str, results: Mapping[str, Any]) -> Table:
        nll = {order: np.array(results[f"{model}: {order}"]["nll"]) for order in (*self.orders, LEARNED)}
        rows: list[Sequence[Cell | str]] = []
        for order in (*self.orders, LEARNED):
            recovered = mean_interval(100 * np.array(results[f"{model}: {order}"]["recovery"]))
            price, gap = mean_interval(nll[order]), paired_bootstrap(nll[LEARNED], nll[order])
            rows.append(
                [
                    order,
                    str(len(nll[order])),
                    f"{recovered.mean:.1f} [{recovered.low:.1f}, {recovered.high:.1f}]",
                    f"{price.mean:.2f} [{price.low:.2f}, {price.high:.2f}]",
                    "" if order == LEARNED else Cell(_signed(gap), gap.high < 0),
                ]
            )
        note = "−log p of the true residues along the order's path, nats; differences in pairs, bold where they are below 0."
        columns = ("order", "n", "recovered %", "−log p", "learned minus this")
        cdrs = getattr(recipe(f"sas-antibody-{model}").data, "cdrs", "")
        title = f"{model}: {'all CDRs' if cdrs == 'all' else f'CDR {cdrs}'} of test antibodies, chain {CHAINS[model]}"
        return Table(title, columns, rows, note)

    def _denoiser(self, model: str) -> str:
        return str(Path(self.denoiser) / model)

    def _recipe(self, model: str, file: Path) -> PolicyRun:
        config = recipe(f"sas-antibody-{model}", None, self.steps, self._denoiser(model))
        assert isinstance(config.data, AntibodyData)
        return replace(config, data=replace(config.data, file=str(file)))

    def _files(self) -> dict[str, Path]:
        """Which file has which chains, by its first one."""
        found = {read_chains(file)[0].kind: file for file in self.data}
        for model in self.models:
            if CHAINS[model] not in found:
                kind = {"H": "heavy", "L": "light"}[CHAINS[model]]
                raise ValueError(f"{model} needs {kind} chains: name a CSV file (name, sequence) of them with --data")
            if not Path(self._denoiser(model)).is_dir():
                raise ValueError(
                    f"there is no {self._denoiser(model)}: run unmask antibody-models {self.denoiser} first"
                )
        return found


def _signed(gap: Interval) -> str:
    return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]".replace("-", "−")


def measured(task: AntibodyTask, scheduler: Scheduler, seed: int, draws: int = 1) -> dict[str, list[float]]:
    """−log p along the path, the mean of ``draws``, and recovery of each antibody. A row's numbers do not depend on its batch."""
    nll, recovery = [], []
    for start in range(0, len(task), AT_ONCE):
        rows = range(start, min(start + AT_ONCE, len(task)))
        canvas = task.canvas(rows)
        seeds = [torch.tensor([(seed + draw) * 2**32 + row for row in rows]) for draw in range(draws)]
        forced = [unmask(task.denoiser, scheduler, canvas.seeded(drawn), forced=True, record=False) for drawn in seeds]
        free = unmask(task.denoiser, scheduler, canvas.seeded(seeds[0]), record=False)
        nll += (-torch.stack([path.total_logp.double() for path in forced]).mean(0)).tolist()
        recovery += task.verify(rows, free.tokens).share.double().tolist()
    return {"nll": nll, "recovery": recovery}
