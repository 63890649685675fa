"""The second stage as a run directory, from a preset: fine-tune a denoiser along fixed orders (Eq. second_stage_loss).

``max_θ E_x[R_θ(x, σ̂)]``: the order σ̂ is a deterministic rollout of a learned policy or any other scheduler, drawn with the initial
denoiser (``refresh`` draws again as it changes) when a step needs it. The loss off the path is measured beside it. Several
processes (``accelerate launch``) share the drawing of orders, the canvases of a step and the measuring.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, Task
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.loading import describe_source, load_denoiser
from unmask.denoisers.lora import add_lora, merge, save_adapter
from unmask.denoisers.masked_lm import MaskedLM, silence_transformers
from unmask.denoisers.placement import SPREAD, Placement, find_device
from unmask.denoisers.transformer import Transformer
from unmask.evaluation.evaluate import evaluate
from unmask.generation.text_canvas import copy_tokenizer
from unmask.runs.config import Count, Natural, Positive, Share, config
from unmask.runs.processes import ProcessGroup, count_processes, current_group
from unmask.runs.run import Run
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.tasks.kinds import Data
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser.masked_trainer import MaskedTraining, Tunable, masked_loss, random_masks, train_masked
from unmask.training.denoiser.path_masks import PathMasks, draw_orders
from unmask.training.policy.run import PolicyRun, run_policy_training

MASKINGS = 8
"""Random masks per held-out problem, for the loss off the path."""


@config
class SecondStage(Placement):
    """A denoiser, the scheduler it is tuned along, the problems and the training.

    Attributes:
        denoiser: A shipped denoiser, a folder, a safetensors file or a hub id.
        order: A scheduler's name or a policy's folder; sas is the shipped policy of the denoiser.
        data: The problems to train on.
        validation: Which problems are held out, as in `unmask train`.
        validate: Held-out problems that are decoded before and after.
        trained: all weights, or the head alone.
        loss_on: reveal, the positions that the order reveals next (the paper's loss), or hidden, everything that is hidden in the
            same states.
        random_share: The share of the canvases that is masked at random; at 1 no orders are drawn.
        refresh: Steps after which the orders are drawn again (0: never).
        decoding: How orders are drawn: fewer steps than positions cost less.
        training: How it is trained.
        adapter: lora freezes the denoiser's own weights and trains matrices beside the linear layers of its trunk.
        rank: The rank of those matrices.
        alpha: They are scaled by alpha / rank.
        merged: Write a whole denoiser, not the adapter alone.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    order: str = "sas"
    data: Data = field(default_factory=lambda: SudokuData(puzzles=4000))
    validation: str | None = None
    validate: Count = 400
    trained: Literal["all", "head"] = "all"
    loss_on: Literal["reveal", "hidden"] = "reveal"
    random_share: Share = 0.25
    refresh: Natural = 0
    decoding: Decoding = field(default_factory=Decoding)
    training: MaskedTraining = field(default_factory=MaskedTraining)
    adapter: Literal["", "lora"] = ""
    rank: Count = 8
    alpha: Positive = 16.0
    merged: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter and self.trained != "all":
            raise ValueError(f"an adapter trains itself: leave trained at 'all', got {self.trained!r}")


def run_second_stage(
    config: SecondStage,
    folder: str | Path,
    resume: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> Iterator[dict[str, Any]]:
    """Tune in ``folder``, yielding records; at the end the denoiser is in ``folder/denoiser``, in float16; or its adapter.

    The first record, at step 0, and the last hold ``accuracy``, ``on_path`` and ``off_path`` on held-out problems. ``progress`` is
    called with the number of canvases that got their order. Under ``accelerate launch`` every process calls this; the first one
    owns the folder.
    """
    processes = _share(config)
    first = processes is None or processes.is_first
    denoiser = _tunable(config)
    scheduler = load_scheduler(config.order, denoiser, config.denoiser)
    source = config.data.problems(denoiser, config.denoiser)
    held_out = source.held_out(config.validate, config.validation)
    inputs = {"denoiser": describe_source(config.denoiser), "order": describe_policy(config.order, config.denoiser)}
    if first:
        Run.create(folder, config, resume=resume, may_differ=("device",), inputs=inputs)
    _wait(processes)
    run = Run(Path(folder))
    with run.work() if first else contextlib.nullcontext():
        canvas, seed = source.fixed(), config.training.seed
        _choose_trained(denoiser, config)

        def draw(rows: Int[Tensor, "n"]) -> Int[Tensor, "n L"]:
            mine = rows if processes is None else rows[processes.split(len(rows))]
            drawn = draw_orders(
                denoiser, scheduler, canvas.rows(mine), seed, config.decoding, progress=progress, numbers=mine
            )
            return drawn if processes is None else processes.all_gather(drawn.to(denoiser.device))[0].to(drawn.device)

        paths = PathMasks(
            canvas,
            denoiser.mask_id,
            draw,
            config.loss_on,
            config.random_share,
            config.refresh,
            seed,
            run,
            source.vary,
            {name: p for name, p in denoiser.named_parameters() if p.requires_grad},
            writes=first,
        )
        before = next((record for record in run.metrics() if record.get("step") == 0), None)
        if before is None:
            before = {"step": 0, **measure_on_and_off_path(denoiser, scheduler, held_out, processes)}
            if first:
                run.rewind(None)
                run.log(before)
        yield before
        yield from train_masked(denoiser, paths, config.training, run, paths.masks, denoiser.forbidden_ids, processes)
        denoiser.requires_grad_(False)
        if first:
            _save(denoiser, config, run.folder / "denoiser")
        _wait(processes)
        tuned = load_denoiser(run.folder, **config.options)
        after = {
            "step": config.training.steps,
            **measure_on_and_off_path(tuned, scheduler, held_out, processes),
        }
        if first and not _complete(run.folder):
            run.log(after)
        yield after


def _choose_trained(denoiser: Tunable, config: SecondStage) -> None:
    """The adapter, all weights or the head: what gets gradients."""
    if config.adapter:
        add_lora(denoiser, config.rank, config.alpha, seed=config.training.seed)
        return
    for name, parameter in denoiser.named_parameters():
        parameter.requires_grad_(config.trained == "all" or name.startswith("head."))


def _share(config: SecondStage) -> ProcessGroup | None:
    """The processes that share the work, each with a device of its own."""
    if count_processes() > 1 and config.device == SPREAD:
        raise ValueError("device spread puts one denoiser on all devices, for one process: start it without a launcher")
    if config.device != SPREAD and (chosen := find_device(config.device)).type == "cuda":
        torch.cuda.set_device(chosen)
    return current_group(cpu=config.on_cpu)


def _wait(processes: ProcessGroup | None) -> None:
    if processes is not None:
        processes.wait()


def run_rounds(
    second: SecondStage, policy: PolicyRun, rounds: int, folder: str | Path, resume: bool = False
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Alternate: tune the denoiser along the order, train a policy for the tuned denoiser, and again.

    A ``policy`` with a ``start`` begins with the weights of the round before, the first one with those of ``second.order``.

    Yields (round, "denoiser" or "order", record). Round r is in ``folder/round-r/denoiser`` and ``folder/round-r/order``, each a
    run of its own; complete runs are not repeated.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    denoiser, order = second.denoiser, second.order
    for number in range(1, rounds + 1):
        place = Path(folder) / f"round-{number}"
        tuned, learned = place / "denoiser", place / "order"
        if not (resume and _complete(tuned)):
            for record in run_second_stage(replace(second, denoiser=denoiser, order=order), tuned, resume):
                yield number, "denoiser", record
        if not (resume and (learned / "policy" / "model.safetensors").exists()):
            start = order if policy.start else ""
            for record in run_policy_training(replace(policy, denoiser=str(tuned), start=start), learned, resume):
                yield number, "order", record
        denoiser, order = str(tuned), str(learned)


def _tunable(config: SecondStage) -> Tunable:
    denoiser = load_denoiser(config.denoiser, **config.options)
    if isinstance(denoiser, MaskedLM) and config.trained == "head":
        raise ValueError(
            f"{config.denoiser} is a model of transformers: tune all of its weights, or an adapter with adapter = 'lora'"
        )
    if any(parameter.is_meta for parameter in denoiser.parameters()):
        raise ValueError(
            f"part of {config.denoiser} does not fit the devices and is kept in the CPU's memory, where it cannot be tuned: "
            "use dtype bfloat16 or more devices"
        )
    return denoiser


def _save(denoiser: Tunable, config: SecondStage, folder: Path) -> None:
    """The adapter; or, if merged or without an adapter, the whole denoiser with its tokenizer."""
    if config.adapter and not config.merged:
        save_adapter(denoiser, folder, config.denoiser, config.rank, config.alpha, ())
        return
    if config.adapter:
        merge(denoiser)
    if isinstance(denoiser, Transformer):
        save_denoiser(denoiser, folder, dtype=torch.float16)
    else:
        with silence_transformers():
            denoiser.model.save_pretrained(folder, safe_serialization=True)
    copy_tokenizer(config.denoiser, folder)


def _complete(folder: Path) -> bool:
    """Has the run been measured at its end?"""
    return any("accuracy" in record for record in Run(folder).metrics()[1:])


@torch.no_grad()
def measure_on_and_off_path(
    denoiser: Tunable, scheduler: Scheduler, problems: Task, processes: ProcessGroup | None = None
) -> dict[str, float]:
    """Free-running accuracy in this order, and −log p per hidden token on its own path and on random masks, in nats."""
    report = evaluate(problems, denoiser, {"order": scheduler}, processes=processes).rows[0]
    canvas = problems.canvas(range(len(problems)))
    turns = range(MASKINGS) if processes is None else processes.round_robin(range(MASKINGS))
    off_path = sum(_random_loss(denoiser, canvas, k) for k in turns)
    off_path = off_path if processes is None else processes.sum(off_path)
    hidden = canvas.answer(denoiser.mask_id).sum().item() / len(problems)
    return {
        "accuracy": report.exact,
        "accuracy_low": report.exact_low,
        "accuracy_high": report.exact_high,
        "on_path": report.nll / hidden,
        "off_path": off_path / MASKINGS,
    }


def _random_loss(denoiser: Tunable, canvas: Canvas, turn: int) -> float:
    """The bound of −log p per position on one random pattern of each canvas; non-candidates are hidden without a loss."""
    answer = canvas.answer(denoiser.mask_id)
    unseen = (canvas.tokens == denoiser.mask_id) & ~answer
    shown = replace(canvas, tokens=torch.where(unseen, canvas.truth, canvas.tokens))
    masks = random_masks(denoiser.mask_id, seed=0, weight="elbo")(shown, turn)
    masks = replace(masks, hidden=masks.hidden | unseen, answers=int(answer.sum()))
    return float(masked_loss(denoiser, canvas, masks, denoiser.forbidden_ids)[0])
