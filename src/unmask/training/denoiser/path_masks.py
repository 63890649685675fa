"""Masks along given orders: the training data of the second stage (Eq. second_stage_loss).

``N`` canvases, ``L`` positions. ``when[r, i]`` is the step at which position ``i`` of canvas ``r`` is revealed, −1 where it is
given. Which positions are hidden depends on the truth only through tokens that are revealed already, so training along a policy's
orders still aims at the true conditionals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.decoding.draws import counter_uniform
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler
from unmask.runs.atomic import save_tensors
from unmask.runs.run import Run
from unmask.tasks.kinds import shuffle_rows
from unmask.training.denoiser.masked_trainer import Masks, elbo_weight, random_pattern

ORDER, RANDOM, MOMENT = 11, 12, 13
"""Purposes of the random numbers: drawing an order, which rows are masked at random, which step of its order a row shows."""

Vary = Callable[[Canvas, Int[Tensor, "B L"], int], tuple[Canvas, Int[Tensor, "B L"]]]
"""``vary(canvas, when, step)``: canvases and their orders under symmetries of the task, a function of the seed and the step."""


def draw_orders(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    seed: int = 0,
    decoding: Decoding = Decoding(),  # noqa: B008
    rows_at_once: int = 64,
    progress: Callable[[int], None] = lambda count: None,
    numbers: Int[Tensor, "N"] | None = None,
) -> Int[Tensor, "N L"]:
    """Teacher-forced decoding of every canvas: the step at which each position is revealed, −1 where it is given.

    The result is on the canvases' device; ``progress`` is called with the number of canvases of each batch. ``numbers`` are those
    of the canvases in their data set: an order is a function of the seed and the canvas's number.
    """
    device = getattr(denoiser, "device", torch.device("cpu"))
    when = torch.full_like(canvas.tokens, -1)
    numbers = torch.arange(len(when)) if numbers is None else numbers
    for start in range(0, len(when), rows_at_once):
        part = canvas.rows(slice(start, start + rows_at_once))
        seeds = seed * 2**32 + ORDER * 2**28 + numbers[start : start + rows_at_once]
        canvases = part.to(device).seeded(seeds.to(device))
        trajectory = unmask(denoiser, scheduler, canvases, decoding, forced=True, record=False)
        order, step = trajectory.order.to(when.device), trajectory.step.to(when.device)
        row, k = torch.nonzero(order >= 0, as_tuple=True)
        when[start + row, order[row, k]] = step[row, k]
        progress(len(part.tokens))
    return when


@dataclass
class PathMasks:
    """Masks along the orders of a fixed set of canvases. ``__call__`` is the source of canvases, ``masks`` the masking.

    A row shows its canvas at a random step of its order. ``loss_on`` "reveal": only the next reveals have a loss, which makes it an
    unbiased estimate of −R_θ(x, σ̂) per position (Eq. second_stage_loss); "hidden": everything still hidden. A ``random_share``
    of the rows is masked at random instead, as in pre-training, so that the denoiser stays accurate off the path.

    ``orders(rows)`` draws the orders of some canvases when a step needs them, with the ``trained`` weights as they were at the
    beginning; every ``refresh`` steps a new turn begins, whose orders are drawn with the weights that it begins with. A run keeps
    orders in its folder as they are drawn; of several processes one ``writes`` them. ``vary`` shows a canvas and its order under
    another symmetry each time.
    """

    canvas: Canvas
    mask_id: int
    orders: Callable[[Int[Tensor, "n"]], Int[Tensor, "n L"]]
    loss_on: str = "reveal"
    random_share: float = 0.25
    refresh: int = 0
    seed: int = 0
    run: Run | None = None
    vary: Vary | None = None
    trained: Mapping[str, Tensor] = field(default_factory=dict)
    writes: bool = True

    def __post_init__(self) -> None:
        self._turn, self._when, self._drawn = -1, torch.empty(0), torch.empty(0)
        self._weights = {name: p.detach().clone() for name, p in self.trained.items()}

    def __call__(self, step: int, batch: int) -> Canvas:
        canvas = self.canvas.rows(self.choose_rows(step, batch))
        return canvas if self.vary is None else self.vary(canvas, torch.zeros_like(canvas.tokens), step)[0]

    def choose_rows(self, step: int, batch: int) -> Int[Tensor, "B"]:
        """Which canvases a step shows."""
        return shuffle_rows(self.seed, step, batch, len(self.canvas.tokens))

    def masks(self, canvas: Canvas, step: int) -> Masks:
        rows = self.choose_rows(step, len(canvas.tokens))
        answer = canvas.answer(self.mask_id)
        # Where every row is masked at random, no order is needed: any step stands for it.
        when = self.when(step, rows) if self.random_share < 1 else answer.long() - 1
        if self.vary is not None:
            when = self.vary(self.canvas.rows(rows), when, step)[1]
        unseen = (canvas.tokens == self.mask_id) & ~answer  # no candidate: hidden without a loss
        row = torch.arange(len(when))[:, None]
        last = when.amax(1, keepdim=True) + 1
        moment = (counter_uniform(self.seed, step, MOMENT, row) * last).long()
        hidden = (when >= moment) & answer
        if self.loss_on == "reveal":
            # One step of the order stands for all of them.
            scored, weight = hidden & (when == moment), last
        else:
            scored, weight = hidden, answer.sum(1, keepdim=True) / hidden.sum(1, keepdim=True).clamp(min=1)
        at_random = counter_uniform(self.seed, step, RANDOM, row) < self.random_share
        shown = Canvas(torch.where(unseen, canvas.truth, canvas.tokens), canvas.truth)
        pattern, _ = random_pattern(shown, self.mask_id, self.seed, step)
        return Masks(
            hidden=torch.where(at_random, pattern, hidden) | unseen,
            scored=torch.where(at_random, pattern, scored),
            weight=torch.where(at_random, elbo_weight(answer, pattern), weight.float()),
            answers=int(answer.sum()),
        )

    def when(self, step: int, rows: Int[Tensor, "B"]) -> Int[Tensor, "B L"]:
        """The orders of these canvases in use at this step; those that are not there yet are drawn."""
        turn = step // self.refresh if self.refresh else 0
        if turn != self._turn:
            self._begin(turn)
        missing = torch.unique(rows[~self._drawn[rows]])
        if len(missing):
            with self._as_at_the_beginning():
                self._keep(missing, self.orders(missing))
            if self.run is not None and self.writes:
                file = self._folder(turn) / f"step-{step:08d}.safetensors"
                save_tensors(file, {"rows": missing, "when": self._when[missing].to(torch.int16)})
        return self._when[rows]

    def _begin(self, turn: int) -> None:
        """The weights and the orders of a turn: of one that was begun before, those in the run's folder."""
        self._turn, self._when = turn, torch.full_like(self.canvas.tokens, -1)
        self._drawn = torch.zeros(len(self._when), dtype=torch.bool)
        stored = {} if self.run is None else {file.stem: file for file in self._folder(turn).glob("*.safetensors")}
        if "weights" in stored:
            found = self._read(stored.pop("weights"))
            self._weights = {name: found[name].to(tensor) for name, tensor in self.trained.items()}
        elif turn:
            self._weights = {name: p.detach().clone() for name, p in self.trained.items()}
            if self.run is not None and self.writes:
                save_tensors(self._folder(turn) / "weights.safetensors", self._weights)
        for _, file in sorted(stored.items()):
            found = self._read(file)
            self._keep(found["rows"].long(), found["when"].long())

    def _keep(self, rows: Int[Tensor, "n"], when: Int[Tensor, "n L"]) -> None:
        self._when[rows] = when.to(self._when)
        self._drawn[rows] = True

    def _folder(self, turn: int) -> Path:
        assert self.run is not None
        folder = self.run.folder / "orders" / f"turn-{turn:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @staticmethod
    def _read(file: Path) -> dict[str, Tensor]:
        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(
                f"the orders in {file} are damaged ({error}); delete the file to draw them again"
            ) from None

    @contextmanager
    def _as_at_the_beginning(self) -> Iterator[None]:
        """The trained weights of the turn's beginning in place of the present ones."""
        present = {name: p.detach().clone() for name, p in self.trained.items()}
        try:
            _copy(self._weights, self.trained)
            yield
        finally:
            _copy(present, self.trained)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)
