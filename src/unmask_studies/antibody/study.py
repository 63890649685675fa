"""Antibody design: the CDRs of held-out antibodies, filled by pretrained masked language models under different schedulers.

Two numbers of each scheduler: −log p(x | σ) of the true residues along its own order σ, exact for every scheduler but the random
one (then the mean of several draws), and the share of residues that greedy free decoding recovers. A policy is trained on the
training antibodies and selected on the validation antibodies; the test antibodies are used for the tables alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.schedulers.loading import load_scheduler
from unmask_studies.antibody.task import AntibodyData, AntibodyTask, read_chains
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import LEARNED, Cell, Table, TableRow, gap, spread
from unmask_studies.training_runs import ensure_run, load_recipe

CHAINS = {"antiberty": "H", "sapiens-vh": "H", "sapiens-vl": "L"}
"""The chains that each model fills. AntiBERTy knows both kinds."""
BATCH = 32


@dataclass(frozen=True)
class Antibodies(GridStudy):
    """``models`` in the folder ``denoiser``, as ``unmask models`` writes them; ``data``: CSV files of both chains.

    Each model's policy is trained with the preset ``sas-antibody-MODEL`` (``steps`` shortens it), or found in ``runs``. ``limit``
    test antibodies of each model are measured, a random order of each ``draws`` times.
    """

    denoiser: str = "antibody-models"
    models: tuple[str, ...] = ("antiberty", "sapiens-vh", "sapiens-vl")
    data: tuple[Path, ...] = ()
    schedulers: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "uncertainty")
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

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.schedulers, LEARNED)

    def axes(self) -> Axes:
        return self.models, self.rows

    def grid(self) -> list[Key]:
        files = self._files()
        for model in self.models:
            if CHAINS[model] not in files:
                kind = {"H": "heavy", "L": "light"}[CHAINS[model]]
                raise ValueError(f"{model} needs {kind} chains: name a CSV file (name, sequence) of them with --data")
            if not Path(place := self._denoiser(model)).is_dir():
                raise ValueError(f"there is no {place}: run unmask models {model} --out {place} first")
        return super().grid()

    def measure(self, key: Key, folder: Path) -> Result:
        model, scheduler = map(str, key)
        preset, name = f"sas-antibody-{model}", self._denoiser(model)
        config, denoiser = load_recipe(preset, None, self.steps, name), get_denoiser(name)
        assert isinstance(config.data, AntibodyData)
        data = replace(config.data, file=str(self._files()[CHAINS[model]]))
        if scheduler == LEARNED:
            run = ensure_run(preset, replace(config, data=data), folder, self.runs)
            loaded = load_scheduler(str(run), denoiser, name)
        else:
            loaded = load_scheduler(scheduler, denoiser, name)
        problems = cast(AntibodyTask, data.problems(denoiser, name).held_out(self.limit, "test"))
        return measure_antibodies(problems, loaded, self.seed, self.draws if scheduler == "random" else 1)

    def findings(self, results: Results) -> Findings:
        return Findings([self._table(model, results) for model in self.models])

    def _table(self, model: str, results: Results) -> Table:
        nll = {name: np.array(results[model, name]["nll"]) for name in self.rows}
        rows: list[TableRow] = []
        for name in self.rows:
            difference = paired_bootstrap(nll[LEARNED], nll[name])
            rows.append(
                {
                    "scheduler": name,
                    "n": str(len(nll[name])),
                    "recovered %": spread(mean_interval(100 * np.array(results[model, name]["recovery"])), 1),
                    "−log p": spread(mean_interval(nll[name])),
                    "learned minus this": "" if name == LEARNED else Cell(gap(difference).text, difference.high < 0),
                }
            )
        cdrs = getattr(load_recipe(f"sas-antibody-{model}").data, "cdrs", "")
        title = f"{model}: {'all CDRs' if cdrs == 'all' else f'CDR {cdrs}'} of test antibodies, chain {CHAINS[model]}"
        note = (
            "−log p of the true residues along the scheduler's order, nats; differences are paired, bold where below 0."
        )
        return Table.of(title, rows, note)

    def _denoiser(self, model: str) -> str:
        return str(Path(self.denoiser) / model)

    def _files(self) -> dict[str, Path]:
        """Chain → its file, by the file's first chain."""
        return {read_chains(file)[0].kind: file for file in self.data}


def measure_antibodies(task: AntibodyTask, scheduler: Scheduler, seed: int, draws: int = 1) -> dict[str, list[float]]:
    """−log p along the order, the mean of ``draws``, and recovery of each antibody. A row does not depend on its batch."""
    nll, recovery = [], []
    for start in range(0, len(task), BATCH):
        rows = range(start, min(start + BATCH, len(task)))
        canvas = task.canvas(rows)
        drawn = [canvas.seeded(row_seeds(seed + draw, rows)) for draw in range(draws)]
        forced = [unmask(task.denoiser, scheduler, one, forced=True, record=False) for one in drawn]
        free = unmask(task.denoiser, scheduler, drawn[0], record=False)
        nll += (-torch.stack([trajectory.total_logp.double() for trajectory in forced]).mean(0)).tolist()
        recovery += task.verify(rows, free.tokens).share.double().tolist()
    return {"nll": nll, "recovery": recovery}
