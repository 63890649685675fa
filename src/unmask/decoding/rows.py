"""The rows that are still being decoded: canvases, blocks and step budgets, L–B–T.

``b`` live rows of ``B``, ``L`` positions, ``M`` blocks. A row that has nothing left to reveal leaves: it costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.block_rule import BlockRule
from unmask.decoding.kv_store import Place
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import constant, device_ids
from unmask.decoding.protocols import Canvas, Denoiser, Focus, takes_focus

PER_ROW = (
    *("tokens", "hidden", "waiting", "attention", "index", "block", "place", "first", "rows", "total", "seeds"),
    *("ordinal", "ordinal_of_end", "budget", "block_step", "one"),
)
"""The attributes of ``LiveRows`` that have a row per live row, or are None."""
PER_REVISED_ROW = ("revealed", "reveal_logp", "left", "watched", "open")
"""Those that it has besides when revealed tokens may be taken back."""


class LiveRows:
    """The live rows of one decoding: their canvases, blocks and budgets. Finished rows are written to ``result`` and leave.

    With a revision, ``revealed`` are the positions that it may take back, and ``left`` how many more of each row. A row that
    changed is ``watched``: it stays in its ``open`` block for one more look.

    Nothing here makes the host wait but the beginning and :meth:`retire`: what the host must know of a step, the ``Survey`` reads
    at once. ``priced`` is the number of positions that the next step prices, None where the host does not know it.
    """

    def __init__(self, denoiser: Denoiser, canvas: Canvas, decoding: Decoding, forced: bool = False) -> None:
        tokens, target, attention, region = canvas.tokens, canvas.target, canvas.attention, canvas.region
        batch = len(tokens)
        canvas.check()
        hidden = tokens == denoiser.mask_id
        if attention is not None:
            hidden = hidden & attention
        if region is None:
            region = (hidden.long().cumsum(1) > 0) & (hidden.long().flip(1).cumsum(1).flip(1) > 0)
        masks, hidden = hidden, hidden if canvas.candidates is None else hidden & canvas.candidates
        if bool((hidden & ~region).any()):
            raise ValueError(
                "a hidden position lies outside the region: extend the region, or leave it out of the candidates"
            )
        if forced:
            _require_complete(target, hidden, denoiser.mask_id)
        self.result = tokens.clone()
        self.tokens, self.hidden, self.attention = tokens.clone(), hidden, attention
        self.waiting = _waiting(canvas, masks & ~hidden)
        self.index = torch.where(region, region.long().cumsum(1) - 1, -1)
        self.block, self.place, self.first = self._blocks(region, decoding.block, BlockRule.of(denoiser))
        self.rows = torch.arange(batch, device=tokens.device)
        self.total = self.unseen.sum(1)
        self.step = 0
        self.seeds = torch.arange(batch, device=tokens.device) if canvas.seeds is None else canvas.seeds
        self.blocks = int(self.block.masked_fill(~region, 0).max()) + 1
        # Twice the place of a position in the region, one more for an end token there; those outside end nothing.
        self.ordinal = 2 * torch.where(region, self.index, tokens.shape[1])
        self.ordinal_of_end = torch.where(region, self.ordinal + 1, self.ordinal)
        self._plan(decoding.steps)
        self.priced: int | None = None
        self._found: Int[Tensor, "b"] | None = None
        self._inside: Bool[Tensor, "b L"] | None = None
        self._eligible: Bool[Tensor, "b L"] | None = None
        self.compiled = decoding.compile
        self.revises = decoding.revision is not None and not forced
        self.left = (decoding.revision_budget * self.total).long()
        self.revealed, self.reveal_logp = torch.zeros_like(hidden), torch.zeros(tokens.shape, device=tokens.device)
        self.watched, self.open = torch.zeros_like(self.left).bool(), torch.zeros_like(self.left)
        self.spans = Spans(self.block, attention) if takes_focus(denoiser) else None
        self.numbers: tuple[int, ...] | None = None
        self.ends = device_ids(denoiser.end_ids, tokens.device)
        self.stops = decoding.stop_at_end and not forced and len(self.ends) > 0
        self.filler = denoiser.pad_id if denoiser.pad_id is not None else (denoiser.end_ids or (denoiser.mask_id,))[0]
        live = self.hidden.any(1)
        if not bool(live.all()):
            self.retire(live.cpu().tolist())

    @property
    def unseen(self) -> Bool[Tensor, "b L"]:
        """What schedulers take for hidden: what may be revealed, and what waits and never is."""
        return self.hidden if self.waiting is None else self.hidden | self.waiting

    def eligible(self) -> Bool[Tensor, "b L"]:
        """What may be revealed next. Found once, until ``hidden`` changes."""
        if self._eligible is None:
            inside = self.hidden if self.blocks == 1 else self.hidden & self._active()
            if self.first is not None:
                first = inside & self.first
                inside = torch.where(first.any(1, keepdim=True), first, inside)
            self._eligible = inside
        return self._eligible

    def current(self) -> Int[Tensor, "b"]:
        """The number of each row's first block that hides something. Found once, until ``hidden`` changes."""
        if self._found is None:
            self._found = torch.where(self.hidden, self.block, constant(self.blocks - 1, self.block.device)).amin(1)
            if self.revises:
                self._found = torch.where(self.watched, self.open, self._found)
        return self._found

    def select(self, values: Int[Tensor, "B L"]) -> Int[Tensor, "b L"]:
        """The live rows of a tensor of the caller's batch."""
        return values if len(self.rows) == len(values) else values[self.rows]

    def focus(self, at: Place | None = None) -> Focus:
        current = self.current()
        assert self.spans is not None
        numbers = tuple(current.cpu().tolist()) if self.numbers is None else self.numbers
        span = self.spans.common(numbers)
        return Focus(self.rows, current, self._active(), self.step, numbers, span, at)

    def quota(self) -> Int[Tensor, "b"]:
        """n // T, and one more in the first n % T steps of a block of n positions and T steps; 1 without a budget of steps."""
        if not self.budgeted:
            return self.one
        share, extra = self.budget[self.own, self.current()].unbind(1)
        return share + (self.block_step < extra)

    def revisable(self) -> Bool[Tensor, "b L"]:
        """The revealed tokens of the current block, in rows that may still take something back."""
        return self.revealed & self._active() & (self.left > 0)[:, None]

    def revise(self, tokens: Int[Tensor, "b L"], hidden: Bool[Tensor, "b L"] | None) -> None:
        """Before the reveals of a step: the canvas after its revision, of which ``hidden`` is hidden again."""
        if self.revises:
            changed = tokens != self.tokens
            self.tokens, self.left, self.watched = tokens, self.left - changed.sum(1), changed.any(1)
            if hidden is not None:
                self.hidden, self.revealed = self.hidden | hidden, self.revealed & ~hidden

    def reveal(self, revealed: Bool[Tensor, "b L"], chosen: Int[Tensor, "b L"], logp: Float[Tensor, "b L"]) -> None:
        """Reveal a set; ``logp`` of its tokens is kept for a revision. Rows that are complete stay until they retire."""
        before = self.current() if self.budgeted or self.revises else None
        self.tokens = torch.where(revealed, chosen, self.tokens)
        self.hidden = self.hidden > revealed  # for booleans: and not
        self.step += 1
        self.priced = self.numbers = None
        if self.revises:
            assert before is not None
            self.reveal_logp = torch.where(revealed, logp, self.reveal_logp)
            self.revealed, self.open = self.revealed | revealed, before
            self.watched = (self.watched | revealed.any(1)) & (self.left > 0)
            if self.stops:
                self._stop_at_end()
        self._found = self._inside = self._eligible = None
        if self.budgeted:
            same = self.current() == before
            self.block_step = torch.addcmul(same, same, self.block_step)  # one more in the same block, else 0

    def find_first(self) -> Int[Tensor, "b"]:
        """Twice the place in the region of each row's first position that is hidden or holds an end token; odd if it is the end."""
        nothing, ends = constant(2 * self.tokens.shape[1], self.tokens.device), torch.isin(self.tokens, self.ends)
        return torch.where(self.hidden, self.ordinal, torch.where(ends, self.ordinal_of_end, nothing)).amin(1)

    def retire(self, stays: Sequence[bool]) -> None:
        """Rows that do not stay leave. What a row still hides then lies behind its first end token: it becomes padding."""
        device = self.tokens.device
        kept, left = (
            torch.tensor([n for n, stay in enumerate(stays) if stay == wanted], dtype=torch.long, device=device)
            for wanted in (True, False)
        )
        tokens = self.tokens[left]
        self.result[self.rows[left]] = torch.where(self.hidden[left], self.filler, tokens) if self.stops else tokens
        for name in PER_ROW + (PER_REVISED_ROW if self.revises else ()):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[kept])
        self.own = self.own[: len(kept)]
        self._found = self._inside = self._eligible = None
        if self.spans is not None:
            self.spans.keep(stays)

    def _plan(self, steps: int | None) -> None:
        """Of each block, how many positions its steps reveal: a ``share`` each, and one more in the first ``extra`` steps."""
        size = torch.zeros(len(self.tokens), self.blocks, dtype=torch.long, device=self.tokens.device)
        size.scatter_add_(1, self.block.clamp(max=self.blocks - 1), self.hidden.long())
        self.budgeted = steps is not None
        budget = size if steps is None else spread(size, steps)
        share, extra = size // budget.clamp(min=1), size % budget.clamp(min=1)
        self.budget = torch.stack([share, extra], dim=2)
        self.block_step = torch.zeros_like(self.rows)
        self.own, self.one = torch.arange(len(self.rows), device=self.rows.device), torch.ones_like(self.rows)
        most = share + (extra > 0)
        self.most = int(most.max()) if self.budgeted and most.numel() else 1

    def _blocks(
        self, region: Bool[Tensor, "B L"], size: int | None, rule: BlockRule | None
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], Bool[Tensor, "B L"] | None]:
        """Of each position its block (``L`` outside the region), its place in it, and whether it must be its block's first."""
        length = region.shape[1]
        if rule is None:
            size = size or max(1, length)
            return torch.where(region, self.index // size, length), torch.where(region, self.index % size, -1), None
        size, counted, seed = size or rule.size, self.index, size or rule.size
        if rule.from_start:
            if rule.size % size:
                raise ValueError(
                    f"this denoiser is decoded in blocks of {rule.size}: block must divide that, got {size}"
                )
            seed = rule.size
            real = torch.ones_like(region) if self.attention is None else self.attention
            counted = real.long().cumsum(1) - 1
        block = torch.where(region, counted // size, length)
        block = torch.where(region, block - block.amin(1, keepdim=True), length)
        first = region & (counted % seed == 0) if rule.seeded else None
        return block, torch.where(region, counted % size, -1), first

    def _active(self) -> Bool[Tensor, "b L"]:
        """The positions of each row's current block. Found once, until ``hidden`` changes."""
        if self._inside is None:
            self._inside = self.block == self.current()[:, None]
        return self._inside

    def _stop_at_end(self) -> None:
        """Where the first end token has nothing hidden before it, the rest of the row is padding.

        With a revision at once: what a padded row took back would leave a gap before its padding, so it is watched no more.
        """
        over = (self.find_first() % 2 == 1)[:, None] & self.hidden
        self.tokens = self.tokens.masked_fill(over, self.filler)
        self.hidden = self.hidden & ~over
        self.watched = self.watched & ~over.any(1)


class Spans:
    """The columns of every row's blocks, on the host."""

    def __init__(self, block: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None) -> None:
        self.block, self.real = block.cpu(), None if attention is None else attention.cpu()
        self.rows = list(range(len(block)))
        self.known: dict[tuple[int, int], slice | None] = {}

    def keep(self, stays: Sequence[bool]) -> None:
        self.rows = [row for row, stay in zip(self.rows, stays, strict=True) if stay]

    def common(self, numbers: Sequence[int]) -> slice | None:
        """The columns of these blocks, one of each live row, where all have the same."""
        found = [self._find(row, number) for row, number in zip(self.rows, numbers, strict=True)]
        return found[0] if found and all(span == found[0] for span in found) else None

    def _find(self, row: int, number: int) -> slice | None:
        if (row, number) not in self.known:
            columns = torch.nonzero(self.block[row] == number)[:, 0].tolist()
            span = slice(columns[0], columns[-1] + 1) if columns else None
            if span is not None and span.stop - span.start != len(columns):
                span = None
            if span is not None and self.real is not None and not bool(self.real[row, max(0, span.start - 1) :].all()):
                span = None
            self.known[row, number] = span
        return self.known[row, number]


def _require_complete(target: Int[Tensor, "B L"] | None, hidden: Bool[Tensor, "B L"], mask_id: int) -> None:
    if target is None or bool((target[hidden] == mask_id).any()):
        raise ValueError("the target has a mask where the canvas is hidden: teacher forcing needs a complete target")


def _waiting(canvas: Canvas, masks: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"] | None:
    """Of masks that are no candidates, those that wait; None if the canvas knows of none."""
    return None if canvas.waiting is None else canvas.waiting & masks


def spread(count: Int[Tensor, "B M"], steps: int) -> Int[Tensor, "B M"]:
    """Share a budget of steps among the blocks of each row in proportion to what they hide: ≥ 1 and ≤ count each.

    A block that hides nothing gets no step. The largest remainders get what is left over, the earlier block first.
    """
    filled = (count > 0).sum(1)
    if int(filled.max()) > steps:
        raise ValueError(
            f"a budget of {steps} steps is too small for {int(filled.max())} blocks: each needs at least one"
        )
    total = count.sum(1, keepdim=True)
    budget = total.clamp(max=steps)
    # In integers, scaled by the total: rounded quotients would break ties between equal remainders.
    exact = budget * count
    share = (exact // total.clamp(min=1)).clamp(min=1).minimum(count)
    remainder = exact - share * total
    most = torch.iinfo(remainder.dtype).max
    for _ in range(count.shape[1]):
        spare = budget[:, 0] - share.sum(1)
        give = remainder.masked_fill(share >= count, -most).argmax(1, keepdim=True)
        take = remainder.masked_fill(share <= 1, most).argmin(1, keepdim=True)
        change = torch.zeros_like(share)
        change.scatter_add_(1, give, (spare > 0).long()[:, None])
        change.scatter_add_(1, take, -(spare < 0).long()[:, None])
        if not bool(change.any()):
            break
        share, remainder = share + change, remainder - change * total
    return share
