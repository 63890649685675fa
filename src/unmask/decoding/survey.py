"""What the host must know of a step, read from the device in one copy: the only time that a step makes the host wait.

``b`` live rows, ``L`` positions, ``N`` of them priced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.decoding.paces import find_best
from unmask.decoding.recording import Step
from unmask.decoding.rows import LiveRows

NOT_A_NUMBER = "the scheduler returned NaN for an eligible position: expected a number that can be ranked"


@dataclass(frozen=True)
class Survey:
    """``most`` positions were revealed in one row, ``count`` in each; which rows ``stay``, how many positions of them the
    next step prices, and the ``numbers`` of their current blocks, for denoisers that take a focus."""

    most: int
    count: Int[Tensor, "b"]
    stays: Sequence[bool]
    priced: int
    numbers: tuple[int, ...] | None


def read_survey(live: LiveRows, step: Step, ranked: Float[Tensor, "b L"], everything: bool) -> Survey:
    """Of a step whose reveals ``live`` has seen; ``ranked`` are its keys, −inf where nothing is eligible.

    Raises where the denoiser's logits or the scheduler's scores were no numbers.
    """
    columns = _describe_rows(live, step, ranked, everything)
    read, finite = _read(columns, step.view.prices.largest)
    if not finite:
        step.view.prices.check()
    if any(key != key for key in read["keys"]):
        raise ValueError(NOT_A_NUMBER)
    stays = _find_staying(read)
    left = sum(int(n) for n, stay in zip(read["priced"], stays, strict=True) if stay)
    numbers = None
    if "numbers" in read:
        numbers = tuple(int(n) for n, stay in zip(read["numbers"], stays, strict=True) if stay)
    return Survey(int(max(read["count"])), columns["count"], stays, left, numbers)


def _describe_rows(
    live: LiveRows, step: Step, ranked: Float[Tensor, "b L"], everything: bool
) -> dict[str, Shaped[Tensor, "b"]]:
    """What decides of each row whether it stays, and what the next step needs."""
    priced = (live.unseen if everything else live.eligible()).sum(1)
    columns = {"keys": find_best(step.view, ranked)[0], "count": step.revealed.sum(1), "priced": priced}
    if live.revises:
        columns["stays"] = live.hidden.any(1) | live.watched
    elif everything and live.waiting is not None:
        columns["stays"] = live.hidden.any(1)
    if live.spans is not None:
        columns["numbers"] = live.current()
    if live.stops and not live.revises:
        columns["first"] = live.find_first()
    return columns


def _read(
    columns: dict[str, Shaped[Tensor, "b"]], largest: Float[Tensor, "N"] | None
) -> tuple[dict[str, list[float]], bool]:
    """The columns on the host, in one copy, and whether the sum of the ``largest`` logits is finite."""
    total = [] if largest is None else [largest.sum()[None]]
    values = torch.cat([*columns.values(), *total]).cpu().tolist()
    rows = len(columns["count"])
    read = {name: values[n * rows : (n + 1) * rows] for n, name in enumerate(columns)}
    return read, largest is None or math.isfinite(values[-1])


def _find_staying(read: dict[str, list[float]]) -> list[bool]:
    """Rows with something left to price or to revise; those that stop at an end token, while something before it is hidden."""
    stays = [value > 0 for value in read.get("stays", read["priced"])]
    if "first" not in read:
        return stays
    return [stay and int(first) % 2 == 0 for stay, first in zip(stays, read["first"], strict=True)]


def pack(chosen: Bool[Tensor, "b L"], count: int | None = None) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
    """(row, position) of what is chosen, row by row; where the host knows their ``count``, it does not wait for the device."""
    if count is None or chosen.device.type in ("cpu", "mps"):
        return torch.nonzero(chosen, as_tuple=True)  # pyright: ignore
    row, position = torch.nonzero_static(chosen, size=count).unbind(1)
    return row, position
