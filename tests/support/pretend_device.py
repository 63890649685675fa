"""A second device on a machine that has none: tensors that say they stand on it, and refuse to meet those of the CPU.

What is computed is computed by the CPU, to the bit. As on a GPU, only single numbers may come from elsewhere, and only a copy
crosses over. Nothing but the name of the device is pretended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

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
        self.seen += any(isinstance(leaf, There) for leaf in tree_flatten((args, given))[0])
        return computed(func, args, given)


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, There)]
    crossing = func in (aten._to_copy.default, aten.copy_.default)
    if there and not crossing and any(not isinstance(tensor, There) and tensor.dim() for tensor in tensors):
        raise RuntimeError(f"{func}: expected all tensors on one device, got {NAME} and cpu")
    given = kwargs.get("device")
    place = given if given is not None else THERE if there else torch.device("cpu")
    if func is aten._fused_sdp_choice.default:
        return 0  # plain arithmetic: the choice among kernels is the device's own
    plain = tree_map_only(There, lambda tensor: tensor.inner, (args, kwargs))
    if given is not None:
        plain[1]["device"] = torch.device("cpu")
    result = func(*plain[0], **plain[1])
    if func._schema.returns and func._schema.is_mutable and isinstance(result, Tensor):
        return args[0]
    if torch.device(place).type != THERE.type:
        return result
    return tree_map_only(Tensor, lambda tensor: tensor if isinstance(tensor, There) else There(tensor), result)
