"""The rows that are still being decoded: canvases, blocks and step budgets, L–B–T.

``b`` live rows of ``B``, ``L`` positions, ``M`` blocks. A row that has nothing left to reveal leaves: it costs nothing more.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.block_rule import BlockRule
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Focus

PER_ROW = (
    *("tokens", "hidden", "waiting", "attention", "index", "block", "place", "first", "rows", "total", "seeds", "size"),
    *("budget", "block_step"),
)
"""The attributes of ``LiveRows`` that have a row per live row, or are None."""
PER_REVISED_ROW = ("revealed", "reveal_logp", "left", "watched", "open")
"""Those that it has besides when revealed tokens may be taken back."""


class LiveRows:
    """The live rows of one decoding: their canvases, blocks and budgets. Finished rows are written to ``result`` and leave.

    With a revision, ``revealed`` are the positions that it may take back, and ``left`` how many more of each row. A row that
    changed is ``watched``: it stays in its ``open`` block for one more look.
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
        blocks = int(self.block.masked_fill(~region, 0).max()) + 1
        self.size = torch.zeros(batch, blocks, dtype=torch.long, device=tokens.device)
        self.size.scatter_add_(1, self.block.clamp(max=self.size.shape[1] - 1), hidden.long())
        self.budgeted = decoding.steps is not None
        self.budget = self.size if decoding.steps is None else spread(self.size, decoding.steps)
        self.block_step = torch.zeros_like(self.rows)
        self._found: Int[Tensor, "b"] | None = None
        self.revises = decoding.revision is not None and not forced
        self.left = (decoding.revision_budget * self.total).long()
        self.revealed, self.reveal_logp = torch.zeros_like(hidden), torch.zeros(tokens.shape, device=tokens.device)
        self.watched, self.open = torch.zeros_like(self.left).bool(), torch.zeros_like(self.left)
        self.ends = torch.tensor(denoiser.end_ids, dtype=torch.long, device=tokens.device)
        self.stops = decoding.stop_at_end and not forced and len(self.ends) > 0
        self.filler = denoiser.pad_id if denoiser.pad_id is not None else (denoiser.end_ids or (denoiser.mask_id,))[0]
        self._retire()

    @property
    def unseen(self) -> Bool[Tensor, "b L"]:
        """What schedulers take for hidden: what may be revealed, and what waits and never is."""
        return self.hidden | self.waiting

    def eligible(self) -> Bool[Tensor, "b L"]:
        inside = self.hidden & (self.block == self._current()[:, None])
        if self.first is None:
            return inside
        first = inside & self.first
        return torch.where(first.any(1, keepdim=True), first, inside)

    def focus(self) -> Focus:
        current = self._current()
        return Focus(self.rows, current, self.block == current[:, None], self.step)

    def quota(self, hidden: Bool[Tensor, "b L"] | None = None) -> Int[Tensor, "b"]:
        """n // T, and one more in the first n % T steps of a block of n positions and T steps.

        A budget of steps makes up for what the step has ``hidden`` again.
        """
        current = self._current()[:, None]
        size, budget = (x.gather(1, current)[:, 0] for x in (self.size, self.budget))
        quota = size // budget + (self.block_step < size % budget)
        return quota if hidden is None or not self.budgeted else quota + hidden.sum(1)

    def revisable(self) -> Bool[Tensor, "b L"]:
        """The revealed tokens of the current block, in rows that may still take something back."""
        return self.revealed & (self.block == self._current()[:, None]) & (self.left > 0)[:, None]

    def revise(self, tokens: Int[Tensor, "b L"], hidden: Bool[Tensor, "b L"] | None) -> None:
        """Before the reveals of a step: the canvas after its revision, of which ``hidden`` is hidden again."""
        if self.revises:
            changed = tokens != self.tokens
            self.tokens, self.left, self.watched = tokens, self.left - changed.sum(1), changed.any(1)
            if hidden is not None:
                self.hidden, self.revealed = self.hidden | hidden, self.revealed & ~hidden

    def reveal(self, revealed: Bool[Tensor, "b L"], chosen: Int[Tensor, "b L"], logp: Float[Tensor, "b L"]) -> None:
        """Reveal a set; ``logp`` of its tokens is kept for a revision."""
        before = self._current()
        self.tokens = torch.where(revealed, chosen, self.tokens)
        self.hidden = self.hidden & ~revealed
        self.step += 1
        if self.revises:
            self.reveal_logp = torch.where(revealed, logp, self.reveal_logp)
            self.revealed, self.open = self.revealed | revealed, before
            self.watched = (self.watched | revealed.any(1)) & (self.left > 0)
        if self.stops:
            self._stop_at_end()
        self._found = None
        self.block_step = torch.where(self._current() == before, self.block_step + 1, 0)
        self._retire()

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

    def _current(self) -> Int[Tensor, "b"]:
        """The number of each row's first block that hides something. Found once, until ``hidden`` changes."""
        if self._found is None:
            last = self.size.shape[1] - 1
            self._found = self.block.masked_fill(~self.hidden, last + 1).amin(1).clamp(max=last)
            if self.revises:
                self._found = torch.where(self.watched, self.open, self._found)
        return self._found

    def _stop_at_end(self) -> None:
        """Where the first end token has nothing hidden before it, the rest of the row is padding."""
        length = self.tokens.shape[1]
        inside = self.index >= 0
        ends = torch.isin(self.tokens, self.ends) & inside & ~self.hidden
        first_end = self.index.masked_fill(~ends, length).amin(1)
        first_hidden = self.index.masked_fill(~self.hidden, length).amin(1)
        over = (first_end < first_hidden)[:, None] & self.hidden
        self.tokens = self.tokens.masked_fill(over, self.filler)
        self.hidden = self.hidden & ~over
        if self.revises:  # what a padded row took back would leave a gap before its padding
            self.watched = self.watched & ~over.any(1)

    def _retire(self) -> None:
        live = self.hidden.any(1) | self.watched if self.revises else self.hidden.any(1)
        if bool(live.all()):
            return
        self.result[self.rows[~live]] = self.tokens[~live]
        for name in PER_ROW + (PER_REVISED_ROW if self.revises else ()):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[live])
        self._found = None


def _require_complete(target: Int[Tensor, "B L"] | None, hidden: Bool[Tensor, "B L"], mask_id: int) -> None:
    if target is None or bool((target[hidden] == mask_id).any()):
        raise ValueError("the target has a mask where the canvas is hidden: teacher forcing needs a complete target")


def _waiting(canvas: Canvas, masks: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    """Of masks that are no candidates, those that wait."""
    return torch.zeros_like(masks) if canvas.waiting is None else canvas.waiting & masks


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
