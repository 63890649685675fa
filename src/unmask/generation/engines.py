"""Orders inside other people's decoding loops: a scheduler and a pace on the logits that an engine has.

Shapes: ``B`` rows, ``L`` positions that the engine shows, ``S`` of them with logits, ``V`` vocabulary.

:func:`choose` is the one function: from a scheduler, a pace and a :class:`View` of the engine's tensors to the positions to reveal.
Around it stand ``diffusers_scheduler``, ``sglang_plugin``, and here Dream's hook and ``custom_generate`` for transformers. Engines
show different things; :func:`check_servable` refuses, when an order is loaded, one that needs more than its engine shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.decoding.block_rule import BlockRule
from unmask.decoding.loop import score_positions, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import price
from unmask.decoding.protocols import (
    Canvas,
    Denoiser,
    Pace,
    Scheduler,
    View,
    needs_truth,
    prices_all,
)
from unmask.runs.names import did_you_mean
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy

ENGINES = {
    "sglang": frozenset[str](),
    "diffusers": frozenset({"canvas"}),
    "dream": frozenset({"canvas", "prices"}),
    "transformers": frozenset({"canvas", "prices", "states"}),
}
"""What an engine shows beside the logits of a block: its place in the canvas, logits of all hidden positions, states."""


def check_servable(scheduler: Scheduler, engine: str) -> Scheduler:
    """``scheduler``, or an error that says what it needs and the engine does not show."""
    if engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}: expected one of {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}")
    if missing := missing_for(scheduler, engine):
        able = [name for name in ENGINES if not missing_for(scheduler, name)]
        instead = f"; {', '.join(able)} can serve it" if able else ""
        raise ValueError(f"{engine} cannot serve this order: it needs {' and '.join(missing)}{instead}")
    return scheduler


def missing_for(scheduler: Scheduler, engine: str) -> list[str]:
    """What ``scheduler`` needs and ``engine`` does not show."""
    shown = ENGINES[engine]
    needs = {
        "the truth": needs_truth(scheduler),
        "the prices of all hidden positions": prices_all(scheduler) and "prices" not in shown,
    }
    if isinstance(scheduler, OrderPolicy):
        network, config = scheduler.network, scheduler.config
        needs["a board"] = network.needs_board
        needs["the denoiser's states"] = network.reads_states(config) and "states" not in shown
        needs["the whole canvas"] = network.needs_canvas(config) and "canvas" not in shown
    return [need for need, missing in needs.items() if missing]


def load_order(spec: str | Scheduler, engine: str) -> Scheduler:
    """A scheduler by name or folder, or itself, that the engine can serve."""
    return check_servable(load_scheduler(spec) if isinstance(spec, str) else spec, engine)


@dataclass
class EngineDenoiser:
    """In the place of a denoiser in a view: the tokens that an engine reserves. The engine alone calls its model."""

    mask_id: int
    pad_id: int | None = None
    end_ids: tuple[int, ...] = ()
    forwarded: int = 0

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return (self.mask_id,)

    def hidden(self, tokens: Tensor, attention: Tensor | None = None) -> Tensor:
        raise ValueError("this order calls the denoiser itself, which an engine does not allow: use another one")

    def logits(self, hidden: Tensor) -> Tensor:
        return self.hidden(hidden)


@dataclass(frozen=True)
class Shown:
    """Where the logits of an engine belong: at the columns from ``first`` on, of canvases whose answer begins at ``start``.

    ``size``: of a block. ``total``: positions that the answer hid. ``attention`` is False on padding. ``step`` and ``memory``
    belong to the decoding.
    """

    first: int = 0
    start: int = 0
    size: int | None = None
    total: int | None = None
    attention: Bool[Tensor, "B L"] | None = None
    step: int = 0
    memory: dict[Any, Any] | None = None

    def view(self, mask_id: int, tokens: Int[Tensor, "B L"], logits: Float[Tensor, "B S V"]) -> View:
        """What a scheduler sees: positions that have logits and are hidden are eligible."""
        column = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        hidden = tokens == mask_id
        hidden = hidden if self.attention is None else hidden & self.attention
        eligible = hidden & (column >= self.first) & (column < self.first + logits.shape[1])
        row, position = torch.nonzero(eligible, as_tuple=True)
        rows = torch.arange(len(tokens), device=tokens.device)
        return View(
            denoiser=EngineDenoiser(mask_id),
            tokens=tokens,
            attention=self.attention,
            hidden=hidden,
            eligible=eligible,
            index=torch.where(column >= self.start, column - self.start, -1),
            place=column % (self.size or tokens.shape[1]),
            rows=rows,
            step=self.step,
            total=hidden.sum(1) if self.total is None else torch.full_like(rows, self.total),
            states=logits.new_zeros(*tokens.shape, 0),
            at=(row, position),
            prices=price(logits[row, position - self.first], (mask_id,)),
            seeds=rows,
            memory={} if self.memory is None else self.memory,
        )


def choose(scheduler: Scheduler, pace: Pace, view: View, quota: Int[Tensor, "B"] | None = None) -> Bool[Tensor, "B L"]:
    """The positions to reveal: the scheduler's best, as many as the pace says. Rows with nothing eligible reveal nothing."""
    if len(view.at[0]) == 0:
        return view.eligible
    keys = _keys(scheduler, view)
    return pace(view, keys, torch.ones_like(view.rows) if quota is None else quota) & view.eligible


def _keys(scheduler: Scheduler, view: View) -> Float[Tensor, "B L"]:
    """Scores, −inf where nothing may be revealed. A policy goes where the engine's tensors are."""
    if isinstance(scheduler, nn.Module):
        scheduler.to(view.tokens.device)
    return score_positions(scheduler, view).masked_fill(~view.eligible, -torch.inf)


def dream_hook(order: str | Scheduler, mask_id: int) -> Callable[[int | None, Tensor, Tensor], Tensor]:
    """``generation_logits_hook_func`` for Dream's ``diffusion_generate``, with ``alg="maskgit_plus"`` and temperature 0.

    Dream reveals the positions whose likeliest token is likeliest. The hook keeps each position's likeliest token and gives it
    a probability that falls with the position's rank in the order, so that Dream's own count reveals the order's best.
    """
    scheduler, start = load_order(order, "dream"), [0]

    def hook(step: int | None, x: Int[Tensor, "B L"], logits: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        if not step:
            start[0] = int((x == mask_id).int().argmax(1).min())
        view = Shown(start=start[0], total=x.shape[1] - start[0], step=step or 0).view(mask_id, x, logits)
        if len(view.at[0]) == 0:
            return logits
        keys = _keys(scheduler, view)
        rank = keys.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        # Between 2 and 20 the softmax of one logit against V zeros has distinct values in float32.
        height = 20 - 18 * rank.float() / rank.shape[1]
        ranked = torch.zeros_like(logits, dtype=torch.float32)
        return ranked.scatter(-1, view.best[..., None], height[..., None])

    return hook


class ModelDenoiser(nn.Module):
    """A ``Denoiser`` around a language model of transformers. It decides nothing about attention: the mask that it gets does.

    Full attention, or with ``attention_block`` blocks counted from a row's first token. The mask is given in four dimensions,
    which models of transformers take as it is.
    """

    def __init__(
        self, model: Any, mask_id: int, attention_block: int | None = None, end_ids: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.model, self.mask_id, self.end_ids, self.pad_id = model, mask_id, end_ids, end_ids[0] if end_ids else None
        self.block_rule = None if attention_block is None else BlockRule(attention_block, from_start=True)
        self.config = SimpleNamespace(
            vocab_size=len(model.get_input_embeddings().weight), width=model.config.hidden_size
        )
        self.forwarded = 0

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return (self.mask_id,)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        self.forwarded += len(tokens)
        real = torch.ones_like(tokens, dtype=torch.bool) if attention is None else attention
        place = (real.long().cumsum(1) - 1).clamp(min=0)
        mask = real[:, None, None, :].expand(-1, -1, tokens.shape[1], -1)
        if self.block_rule is not None:
            block = place // self.block_rule.size
            mask = mask & (block[:, None, None, :] <= block[:, None, :, None])
        output = self.model(tokens, attention_mask=mask, position_ids=place, output_hidden_states=True, use_cache=False)
        return output.hidden_states[-1]

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N V"]:
        return self.model.get_output_embeddings()(hidden)


def custom_generate(
    model: Any,
    input_ids: Int[Tensor, "B P"],
    generation_config: Any,
    order: str | Scheduler = "confidence",
    decoding: Decoding = Decoding(),  # noqa: B008
    mask_id: int | None = None,
    attention_block: int | None = None,
    **given: Any,
) -> Int[Tensor, "B L"]:
    """``model.generate(ids, custom_generate=custom_generate, order=…, mask_id=…, max_new_tokens=…)``, decoded by our loop."""
    mask_id = getattr(model.config, "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise ValueError("the model's configuration has no mask_token_id: pass mask_id=… to generate")
    ends = generation_config.eos_token_id
    ends = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
    denoiser: Denoiser = ModelDenoiser(model, mask_id, attention_block, ends)
    scheduler = load_scheduler(order, denoiser) if isinstance(order, str) else order
    length = generation_config.max_length - input_ids.shape[1]
    tokens = torch.cat([input_ids, input_ids.new_full((len(input_ids), length), mask_id)], dim=1)
    real = given.get("attention_mask")
    attention = (
        None
        if real is None or bool(real.all())
        else torch.cat([real.bool(), real.new_ones(len(real), length).bool()], 1)
    )
    canvas = Canvas(tokens, attention=attention)
    return unmask(denoiser, check_servable(scheduler, "transformers"), canvas, decoding, record=False).tokens


class DenoiserModel(nn.Module):
    """A denoiser as engines call models: ``model(tokens, attention_mask=…).logits``."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__()
        self.denoiser = denoiser

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @torch.no_grad()
    def forward(self, input_ids: Int[Tensor, "B L"], attention_mask: Tensor | None = None, **_: Any) -> Any:
        real = None if attention_mask is None else attention_mask.bool()
        return SimpleNamespace(logits=self.denoiser.logits(self.denoiser.hidden(input_ids, real)))
