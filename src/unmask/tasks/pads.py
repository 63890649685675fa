"""What stands behind the end of an answer in the canvases that an order is learned on. ``B`` rows, ``L`` positions.

In decoding the whole region is hidden and may be revealed, also what will lie behind the end token. Training must show a policy the
same, or it cannot learn when not to reveal an end token:

* ``end``: the answer is followed by end tokens (or padding), which are candidates like all others, as in the fine-tuning of
  LLaDA. Revealing one earns the reward times ``weight``.
* ``hidden``: these positions are hidden and priced, but no candidates and without reward: the policy sees the canvas of a decoding
  and chooses among the positions of the answer.
* ``left_out``: the region ends with the answer, so that its length is known from the start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.decoding.protocols import Canvas

Pads = Literal["end", "hidden", "left_out"]
DEFAULT: Pads = "hidden"


def lay_pads(canvas: Canvas, answer: Bool[Tensor, "B L"], pads: Pads, weight: float = 1.0) -> Canvas:
    """A canvas whose region is hidden, with its positions behind the ``answer`` as ``pads`` says."""
    assert canvas.region is not None
    behind = canvas.region & ~answer
    if pads == "end":
        return canvas if weight == 1 else replace(canvas, weight=torch.where(behind, weight, 1.0))
    if pads == "hidden":
        return replace(canvas, candidates=answer, waiting=behind)
    real = torch.ones_like(answer) if canvas.attention is None else canvas.attention
    return replace(canvas, region=canvas.region & answer, attention=real & ~behind, candidates=answer)
