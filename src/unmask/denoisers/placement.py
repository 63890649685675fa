"""The devices and the type of a denoiser's weights: one device, or several with accelerate's hooks between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from unmask.denoisers.transformer import Transformer
from unmask.runs.names import did_you_mean

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DeviceMap = str | dict[str, Any]
"""``"auto"``, or module → device: ``{"embedding": 0, "blocks.0": 0, …, "norm": 1, "head": 1}``; ``""`` is the whole model."""


def parse_dtype(name: str) -> torch.dtype:
    """The type of that name."""
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}{did_you_mean(name, DTYPES)}")
    return DTYPES[name]


def device_options(device: str | None) -> dict[str, Any]:
    """The options of ``load_denoiser`` for a device by its name: "cuda:1"; "auto" for all there are; None for the CPU.

    An unknown or missing device is refused before anything is read.
    """
    if device == "auto":
        return {"device_map": "auto"}
    if not device:
        return {"device": None}
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "meta"
    if kind == "meta":
        raise ValueError(f"no device {device!r}: expected cpu, cuda, cuda:1, mps or auto")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"there is no device {device!r} here ({reason}): name another, or leave it out for the CPU"
        ) from None
    return {"device": device}


def resolve_device_map(
    denoiser: Transformer, dtype: torch.dtype, device: torch.device | str | None, device_map: DeviceMap | None
) -> dict[str, Any]:
    """Module → device for a denoiser that has no memory yet. ``"auto"`` fills the GPUs evenly, then the CPU's memory."""
    if device_map is None:
        return {"": device or "cpu"}
    if device is not None:
        raise ValueError(f"device is {device} and device_map {device_map!r}: give one of them")
    from accelerate import infer_auto_device_map
    from accelerate.utils import check_device_map, get_balanced_memory

    if isinstance(device_map, dict):
        check_device_map(denoiser, device_map)
        return device_map
    if device_map != "auto":
        raise ValueError(f"device_map must be 'auto' or a dictionary from module to device, got {device_map!r}")
    unsplit = ["Block"]
    memory = get_balanced_memory(denoiser, dtype=dtype, no_split_module_classes=unsplit)
    found = infer_auto_device_map(denoiser, max_memory=memory, no_split_module_classes=unsplit, dtype=dtype)
    if "disk" in found.values():
        size = sum(p.numel() for p in denoiser.parameters()) * dtype.itemsize
        raise ValueError(
            f"the weights need {size / 2**30:.1f} GiB as {dtype}, more than the devices and the CPU's memory have: "
            "use a smaller dtype or more devices"
        )
    return dict(found)


def device_of(parameter: str, device_map: Mapping[str, Any]) -> Any:
    """The device of a parameter: that of the innermost module that ``device_map`` names."""
    around = [module for module in device_map if module == "" or f"{parameter}.".startswith(f"{module}.")]
    return device_map[max(around, key=len)]


def dispatch(denoiser: Transformer, device_map: Mapping[str, Any]) -> Transformer:
    """Move the denoiser to its device; with several, add hooks that move the states between them."""
    if len(set(device_map.values())) == 1:
        return denoiser.to(next(iter(device_map.values())))
    from accelerate import dispatch_model

    dispatch_model(denoiser, device_map=dict(device_map))
    return denoiser
