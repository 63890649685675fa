"""Good and bad orders of canvases with too many hidden positions for a lattice: a beam over sets of revealed positions.

``W`` states in the beam, ``n`` hidden positions, ``L`` positions of the canvas.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.pricing import price
from unmask.decoding.protocols import Denoiser
from unmask.theory.states import Start


@torch.no_grad()
def beam_order(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    target: Int[Tensor, "L"],
    width: int = 16,
    worst: bool = False,
    *,
    attention: Bool[Tensor, "L"] | None = None,
    candidates: Bool[Tensor, "L"] | None = None,
) -> tuple[Int[Tensor, "n"], float]:
    """An order with a large (``worst``: small) return, as canvas positions, and its return log p_θ(x | σ).

    Orders that reveal the same set are one state: the better one stays. So a beam as wide as the largest level of the lattice is
    exact. At most ``width`` forwards per reveal.
    """
    if width < 1:
        raise ValueError(f"the beam must hold at least one state, got width = {width}")
    positions = Start.of(denoiser, tokens, attention, None, candidates).positions
    n, sign = len(positions), -1.0 if worst else 1.0
    # A set is known by the sum of its members' random 64-bit numbers.
    number = torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(0)).to(tokens.device)
    shown = torch.zeros(1, n, dtype=torch.bool, device=tokens.device)
    value = torch.zeros(1, dtype=torch.float64, device=tokens.device)
    order = torch.zeros(1, 0, dtype=torch.long, device=tokens.device)
    for _ in range(n):
        canvases = tokens.repeat(len(shown), 1)
        canvases[:, positions] = torch.where(shown, target[positions], denoiser.mask_id)
        states = denoiser.hidden(canvases, None if attention is None else attention.expand_as(canvases))
        row, j = torch.nonzero(~shown, as_tuple=True)
        prices = price(denoiser.logits(states[row, positions[j]]), denoiser.forbidden_ids)
        gain = prices.logp.gather(1, target[positions[j]][:, None])[:, 0].double()
        value, rank = (value[row] + sign * gain).sort(descending=True, stable=True)
        row, j = row[rank], j[rank]
        kept = _first_of_each((shown.long() * number).sum(1)[row] + number[j])[:width]
        row, j, value = row[kept], j[kept], value[kept]
        shown = shown[row].scatter(1, j[:, None], True)
        order = torch.cat([order[row], j[:, None]], dim=1)
    return positions[order[0]], sign * float(value[0])


def _first_of_each(label: Int[Tensor, "N"]) -> Int[Tensor, "M"]:
    """The places at which each label first occurs, in ascending order."""
    _, group = label.unique(return_inverse=True)
    place = torch.arange(len(label), device=label.device)
    first = torch.full_like(label, len(label)).scatter_reduce(0, group, place, "amin")
    return first[first < len(label)].sort().values
