"""Kernels and host syncs of a decoding step, counted on the pretended device, without the kernels of the denoiser itself."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from support.pretend_device import NAME, PretendDevice, There
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler

aten = torch.ops.aten
VIEWS = {
    aten.view, aten._unsafe_view, aten.expand, aten.select, aten.slice, aten.unsqueeze, aten.squeeze, aten.transpose, aten.t,
    aten.permute, aten.detach, aten.alias, aten.as_strided, aten.split, aten.split_with_sizes, aten.unbind, aten.lift_fresh,
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.diagonal, aten._reshape_alias, aten.chunk,
}  # fmt: skip
"""What launches no kernel."""
SYNCS = {
    aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.masked_select, aten.equal, aten.repeat_interleave,
    aten._unique2, aten.unique_dim, aten.bincount,
}  # fmt: skip
"""What makes the host wait: a number that it reads, or a size that depends on data."""
COPIES_FIRST = {
    aten.index_put,
    aten.masked_fill,
    aten.scatter,
    aten.index_fill,
    aten.index_copy,
    aten.index_add,
    aten.scatter_add,
}
"""What copies its input before it changes the copy: two kernels."""


@dataclass
class Counts:
    """Names of the operations that launched kernels, and of those that made the host wait."""

    kernels: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)

    def minus(self, earlier: Counts) -> Counts:
        return Counts(self.kernels - earlier.kernels, self.syncs - earlier.syncs)

    def copy(self) -> Counts:
        return Counts(self.kernels.copy(), self.syncs.copy())


class CountingDevice(PretendDevice):
    """The pretended device with a count of everything that is launched on it while ``paused`` is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.paused = Counts(), 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, There) for tensor in given + made):
            return
        name = func.overloadpacket
        crosses = (
            name in (aten._to_copy, aten.copy_) and len({isinstance(tensor, There) for tensor in given + made}) > 1
        )
        mask = name in (aten.index, aten.index_put, aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        moved = name is aten.where and not all(isinstance(tensor, There) for tensor in given)
        if name in SYNCS or crosses or mask or moved:
            self.counts.syncs[str(func)] += 1
        if not self.paused and name not in VIEWS and not crosses and name is not aten._local_scalar_dense:
            self.counts.kernels[str(func)] += 2 if name in COPIES_FIRST else 1


def leave_out(denoiser: Any, device: CountingDevice) -> Any:
    """A copy of the denoiser, of which ``hidden`` and ``logits`` are not counted, but for their syncs."""
    copied = copy.copy(denoiser)

    def without(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def paused(*args: Any, **kwargs: Any) -> Tensor:
            device.paused += 1
            try:
                return call(*args, **kwargs)
            finally:
                device.paused -= 1

        return paused

    for name in ("hidden", "logits"):
        object.__setattr__(copied, name, without(getattr(copied, name)))
    return copied


@contextmanager
def pausing(module: torch.nn.Module | None, device: CountingDevice) -> Iterator[None]:
    """While it is entered, what the module launches is not counted, but for its syncs."""

    def move(by: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            device.paused += by

        return hook

    hooks = (
        [] if module is None else [module.register_forward_pre_hook(move(1)), module.register_forward_hook(move(-1))]
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def count_steps(
    denoiser: Any,
    scheduler: Scheduler,
    canvas: Canvas,
    decoding: Decoding,
    *,
    record: bool = False,
    beside: torch.nn.Module | None = None,
) -> list[Counts]:
    """What each step launches, from one call of ``on_step`` to the next: the first step and the last are not in the list.

    ``beside``: a network whose own kernels are not counted, as those of the denoiser.
    """
    seen: list[Counts] = []
    device = CountingDevice()
    with device, pausing(beside, device):
        unmask(
            leave_out(denoiser, device),
            scheduler,
            canvas.to(NAME),
            decoding,
            record=record,
            on_step=lambda step: seen.append(device.counts.copy()),
        )
    return [after.minus(before) for before, after in itertools.pairwise(seen)]
