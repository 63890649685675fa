"""The second stage: fine-tune a denoiser along fixed orders, as a run directory from a preset (Eq. second_stage_loss).

``max_θ E_x[R_θ(x, σ̂)]``: the order σ̂ is a deterministic rollout of a learned policy, the human expert's, or any scheduler's, drawn
with the denoiser as it was (``refresh`` draws it anew as it changes). What happens off the path is measured beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.denoisers.folder import save_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.evaluate import evaluate
from unmask.finetune import MaskedTraining, masked_loss, random_masks, train_masked
from unmask.learn import Learn, learn
from unmask.paths import PathMasks, walk
from unmask.protocols import Scheduler
from unmask.registry import load_denoiser, load_scheduler
from unmask.runs import Run
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask

MASKINGS = 8
"""Random masks per held-out problem, for the loss off the path."""


@dataclass(frozen=True)
class SecondStage:
    """A denoiser, the order it is tuned along, the problems and the training.

    ``order`` is a scheduler's name or a policy's folder; ``sas`` is the shipped policy of the denoiser. ``trained``: "all" weights
    or the "head". ``asked``: "reveal" prices what the order reveals next (the paper's loss), "hidden" everything that is hidden in
    the same states. ``random_share`` of the canvases are masked at random. ``refresh`` steps after which the orders are drawn
    anew (0: never). ``validate`` held-out problems, with clues as ``validation`` says, are decoded before and after.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    order: str = "sas"
    data: SudokuData = field(default_factory=lambda: SudokuData(puzzles=4000))
    validation: str | None = None
    validate: int = 400
    trained: str = "all"
    asked: str = "reveal"
    random_share: float = 0.25
    refresh: int = 0
    training: MaskedTraining = field(default_factory=MaskedTraining)

    def __post_init__(self) -> None:
        if self.trained not in ("all", "head"):
            raise ValueError(f"trained must be 'all' or 'head', got {self.trained!r}")
        if self.asked not in ("reveal", "hidden"):
            raise ValueError(f"asked must be 'reveal' or 'hidden', got {self.asked!r}")
        if not 0 <= self.random_share <= 1 or self.refresh < 0 or self.validate < 1:
            raise ValueError("random_share must be in [0, 1], refresh at least 0 and validate at least 1")


def finetune(
    config: SecondStage,
    folder: str | Path,
    resume: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> Iterator[dict[str, Any]]:
    """Tune in ``folder``, yielding records; at the end the denoiser is in ``folder/denoiser``, in float16.

    The first record, at step 0, and the last hold ``accuracy``, ``on_path`` and ``off_path`` on held-out problems. ``progress`` is
    told how many canvases got their order.
    """
    denoiser = _tunable(config.denoiser)
    scheduler = load_scheduler(config.order, denoiser, config.denoiser)
    held_out = SudokuTask.generated(
        config.validate, config.data.size, config.validation, "validation", config.data.seed + 1
    )
    run = Run.create(folder, config, resume=resume)
    with run.lock():
        problems = SudokuTask(*config.data.boards)
        canvas = problems.canvas(range(len(problems)))
        paths = PathMasks(
            canvas,
            denoiser.mask_id,
            lambda: walk(denoiser, scheduler, canvas, config.training.seed, progress=progress),
            config.asked,
            config.random_share,
            config.refresh,
            config.training.seed,
            run,
            config.data.vary if config.data.augment else None,
        )
        for name, parameter in denoiser.named_parameters():
            parameter.requires_grad_(config.trained == "all" or name.startswith("head."))
        before = next((record for record in run.metrics() if record.get("step") == 0), None)
        if before is None:
            run.rewind(None)
            before = {"step": 0, **measured(denoiser, scheduler, held_out)}
            run.log(before)
        yield before
        yield from train_masked(denoiser, paths, config.training, run, paths.masks, denoiser.forbidden_ids)
        denoiser.requires_grad_(False)
        save_denoiser(denoiser, run.folder / "denoiser", dtype=torch.float16)
        after = {"step": config.training.steps, **measured(_tunable(run.folder), scheduler, held_out)}
        if not _complete(run.folder):
            run.log(after)
        yield after


def alternate(
    second: SecondStage, order: Learn, rounds: int, folder: str | Path, resume: bool = False
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Denoiser and order in turn: tune the denoiser along the order, learn an order for the tuned denoiser, and again.

    An order that has a ``start`` begins where the order of the round before ended, the first one with ``second.order``.

    Yields (round, "denoiser" or "order", record). Round r is in ``folder/round-r/denoiser`` and ``folder/round-r/order``, each a
    run of its own; what is complete is not run again.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    denoiser, policy = second.denoiser, second.order
    for number in range(1, rounds + 1):
        place = Path(folder) / f"round-{number}"
        tuned, learned = place / "denoiser", place / "order"
        if not (resume and _complete(tuned)):
            for record in finetune(replace(second, denoiser=denoiser, order=policy), tuned, resume):
                yield number, "denoiser", record
        if not (resume and (learned / "policy" / "model.safetensors").exists()):
            start = policy if order.start else ""
            for record in learn(replace(order, denoiser=str(tuned), start=start), learned, resume):
                yield number, "order", record
        denoiser, policy = str(tuned), str(learned)


def _tunable(name: str | Path) -> Transformer:
    denoiser = load_denoiser(name)
    if not isinstance(denoiser, Transformer):
        raise ValueError(f"the second stage tunes denoisers of this library's own transformer, got {name}")
    return denoiser


def _complete(folder: Path) -> bool:
    """Has the run been measured at its end, too?"""
    return any("accuracy" in record for record in Run(folder).metrics()[1:])


@torch.no_grad()
def measured(denoiser: Transformer, scheduler: Scheduler, problems: SudokuTask) -> dict[str, float]:
    """Free-running accuracy in this order, and −log p per hidden token on its own path and on random masks, in nats."""
    report = evaluate(problems, denoiser, {"order": scheduler}).rows[0]
    canvas = problems.canvas(range(len(problems)))
    masks = random_masks(denoiser.mask_id, seed=0, weight="elbo")
    off_path = [
        float(masked_loss(denoiser, canvas, masks(canvas, k), denoiser.forbidden_ids)[0]) for k in range(MASKINGS)
    ]
    hidden = (canvas.tokens == denoiser.mask_id).sum().item() / len(problems)
    return {
        "accuracy": report.exact,
        "accuracy_low": report.exact_low,
        "accuracy_high": report.exact_high,
        "on_path": report.nll / hidden,
        "off_path": sum(off_path) / len(off_path),
    }
