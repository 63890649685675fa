"""Feed-forward layers: one SwiGLU, or a mixture of them of which each position takes a few.

Shapes: ``N`` positions of all canvases, ``D`` width, ``E`` experts of which ``k`` are taken.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.runs.config import Count, Positive, config


@config
class ExpertsConfig:
    """A mixture of ``count`` SwiGLUs of width ``ffn``: each position takes the ``top`` ones, and adds one of ``shared_ffn``.

    ``softmax`` (LLaDA-MoE): weights are the softmax over all experts, not normalised again. ``sigmoid`` (LLaDA 2): of ``groups``
    of experts the ``top_groups`` with the best two count, weights are sigmoids that are normalised and multiplied by ``scale``.
    ``bias``: a number per expert, added to the softmax itself, or to the sigmoid for the choice alone. Layers in ``dense`` have one
    SwiGLU of the transformer's ``ffn`` instead.
    """

    count: Count
    top: Count
    ffn: Count
    router: Literal["softmax", "sigmoid"] = "softmax"
    shared_ffn: int = 0
    groups: Count = 1
    top_groups: Count = 1
    scale: Positive = 1.0
    bias: bool = False
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.count % self.groups or self.top > self.count // self.groups * self.top_groups:
            raise ValueError(
                f"{self.top} experts of {self.count} in {self.top_groups} of {self.groups} groups: groups must divide the "
                "experts, and those that count must hold enough of them"
            )


class SwiGLU(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of SwiGLUs. An expert is one matrix product over the positions that take it; one that none takes costs nothing."""

    def __init__(self, width: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.count, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.count)) if config.bias else None
        self.experts = nn.ModuleList(SwiGLU(width, config.ffn) for _ in range(config.count))
        self.shared = SwiGLU(width, config.shared_ffn) if config.shared_ffn else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        flat = x.flatten(0, -2)
        sigmoid = self.config.router == "sigmoid"
        weight, expert = self._sigmoid(flat) if sigmoid else self._softmax(flat)
        if sigmoid:  # summed in float32, the best expert first
            y = (self._outputs(flat, expert).float() * weight[..., None]).sum(1).to(x.dtype)
        else:  # added in the type of the weights, in the experts' own order
            y = torch.zeros_like(flat)
            taken = self._outputs(flat, expert)
            for slot in expert.argsort(dim=1).T[..., None]:
                y = y + taken.take_along_dim(slot[..., None], 1)[:, 0] * weight.take_along_dim(slot, 1)
        y = y.view_as(x)
        return y if self.shared is None else y + self.shared(x)

    def _outputs(self, x: Float[Tensor, "N D"], expert: Int[Tensor, "N k"]) -> Float[Tensor, "N k D"]:
        """What each position's experts make of it.

        The rows of an expert's product stand as in the published code (LLaDA 2 sorts without stability): a product's last bits
        depend on where a row stands.
        """
        sigmoid = self.config.router == "sigmoid"
        named = expert.flatten() if sigmoid else expert.T.flatten()
        order = named.argsort(stable=not sigmoid)
        row = order // expert.shape[1] if sigmoid else order % len(x)
        parts = x[row].split(named.bincount(minlength=self.config.count).tolist())
        made = torch.cat([self.experts[n](part) for n, part in enumerate(parts) if len(part)])
        made = torch.empty_like(made).index_copy_(0, order, made)
        return made.unflatten(0, expert.shape) if sigmoid else made.unflatten(0, expert.T.shape).transpose(0, 1)

    def _softmax(self, x: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
        weight = self.router(x).softmax(-1, dtype=torch.float32)
        if self.bias is not None:
            weight = weight + self.bias
        best, expert = weight.topk(self.config.top, dim=-1)
        return best.to(x.dtype), expert

    def _sigmoid(self, x: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
        c = self.config
        score = F.linear(x.float(), self.router.weight.float()).sigmoid()
        ranked = score if self.bias is None else score + self.bias
        if c.groups > 1:
            grouped = ranked.unflatten(-1, (c.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(c.top_groups, dim=-1).indices
            chosen = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, True)
            ranked = grouped.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)
        expert = ranked.topk(c.top, dim=-1).indices
        weight = score.gather(-1, expert)
        if c.top > 1:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return weight * c.scale, expert
