"""Observations of a decoding for the viewer. ``b`` live canvases, ``L`` positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.decoding.protocols import Scheduler, View, needs_truth, prices_all

ALTERNATIVES = 4
"""Tokens kept of each candidate's distribution."""


class RecordingScheduler:
    """One scheduler decides; the others score the same states. Each sees what it would see by itself."""

    def __init__(self, name: str, schedulers: Mapping[str, Scheduler], alternatives: int = ALTERNATIVES) -> None:
        self.name, self.schedulers, self.alternatives = name, schedulers, alternatives
        self.prices_all = any(prices_all(scheduler) for scheduler in schedulers.values())
        self.needs_truth = any(needs_truth(scheduler) for scheduler in schedulers.values())
        self.memory: dict[str, dict[Any, Any]] = {name: {} for name in schedulers}
        self.foreign_calls = 0

    def __call__(self, view: View) -> Float[Tensor, "b L"]:
        return self._score(self.name, view)

    def observe(self, view: View) -> dict[str, Tensor]:
        """``choice[:, o]`` is the position that the o-th scheduler scores best; also the likeliest tokens of each position."""
        choices, before = [], view.denoiser.forwarded
        for name in self.schedulers:
            scores = view.eligible.float() if name == self.name else self._score(name, view).float()
            scores = scores.clamp(min=-1e30).masked_fill(~view.eligible, -torch.inf)
            choices.append(scores.sort(dim=1, descending=True, stable=True).indices[:, 0])
        self.foreign_calls += view.denoiser.forwarded - before
        logp, best = view.prices.logp, view.prices.best[:, None]
        # The likeliest first even where others tie with it: it is the one that is revealed.
        token = logp.scatter(1, best, torch.inf).topk(min(self.alternatives, logp.shape[1]), dim=1).indices
        shape = (*view.tokens.shape, token.shape[1])
        return {
            "token": token.new_zeros(shape).index_put(view.at, token),
            "logp": logp.new_zeros(shape).index_put(view.at, logp.gather(1, token)),
            "choice": torch.stack(choices, dim=1),
        }

    def _score(self, name: str, view: View) -> Float[Tensor, "b L"]:
        scheduler = self.schedulers[name]
        at, prices = view.at, view.prices
        if self.prices_all and not prices_all(scheduler):
            kept = view.eligible[at]
            at, prices = (at[0][kept], at[1][kept]), prices.take(kept)
        reference = view.reference if needs_truth(scheduler) else None
        return scheduler(replace(view, at=at, prices=prices, reference=reference, memory=self.memory[name]))
