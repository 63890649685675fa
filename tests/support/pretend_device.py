"""A second device on a machine that has none: tensors that say they stand on it, and refuse to meet those of the CPU.

What is computed is computed by the CPU, to the bit. As on a GPU, only single numbers may come from elsewhere, and only a copy
crosses over. Nothing but the name of the device is pretended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "lazy:0"
"""A kind of device that torch knows and has no kernels for."""
THERE = torch.device(NAME)
aten = torch.ops.aten


class There(Tensor):
    """A tensor of the pretended device; ``inner`` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=THERE
        )
        made.inner = inner
        return made

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()  # where its bytes are, for writing them to a file

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class PretendDevice(TorchDispatchMode):
    """While it is entered, tensors can be made on, and moved to, the pretended device. ``seen`` counts operations there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __enter__(self) -> PretendDevice:
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) makes its tensor on the CPU and moves it
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        self.seen += any(isinstance(tensor, There) for tensor in tensors_of((args, given)))
        return computed(func, args, given)


# As torch.utils._pytree has them, which takes most of a training's time here.


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def change(kind: type[Tensor], made: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with every tensor of a kind replaced."""
    if isinstance(value, kind):
        return made(value)
    if isinstance(value, dict):
        return {name: change(kind, made, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([change(kind, made, item) for item in value])
    return value


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = list(tensors_of((args, kwargs)))
    there = [tensor for tensor in tensors if isinstance(tensor, There)]
    crossing = func in (aten._to_copy.default, aten.copy_.default)
    if there and not crossing and any(not isinstance(tensor, There) and tensor.dim() for tensor in tensors):
        raise RuntimeError(f"{func}: expected all tensors on one device, got {NAME} and cpu")
    given = kwargs.get("device")
    place = given if given is not None else THERE if there else torch.device("cpu")
    if func is aten._fused_sdp_choice.default:
        return 0  # plain arithmetic: the choice among kernels is the device's own
    plain = change(There, lambda tensor: tensor.inner, (args, kwargs))
    if given is not None:
        plain[1]["device"] = torch.device("cpu")
    result = func(*plain[0], **plain[1])
    if func._schema.returns and func._schema.is_mutable and isinstance(result, Tensor):
        return args[0]
    if torch.device(place).type != THERE.type:
        return result
    return change(Tensor, lambda tensor: tensor if isinstance(tensor, There) else There(tensor), result)
