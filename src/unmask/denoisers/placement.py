"""The devices and the type of a denoiser's weights: one device, or several with accelerate's hooks between them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from unmask.denoisers.transformer import Transformer
from unmask.runs.names import did_you_mean
from unmask.runs.processes import count_processes

Dtype = Literal["float32", "bfloat16", "float16"]
SPREAD = "spread"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DeviceMap = str | dict[str, Any]
"""``"auto"``, or module → device: ``{"embedding": 0, "blocks.0": 0, …, "norm": 1, "head": 1}``; ``""`` is the whole model."""


@dataclass(frozen=True)
class Placement:
    """Where a denoiser runs and in which type. Every command and every configuration that runs one takes these two options.

    Attributes:
        device: auto is the best there is, CUDA before MPS before the CPU; or cpu, cuda, cuda:1, mps; spread is over all GPUs.
        dtype: The type of the denoiser's weights.
    """

    device: str = field(default="auto", kw_only=True)
    dtype: Dtype = field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        parse_dtype(self.dtype)

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``load_denoiser``."""
        return {"dtype": parse_dtype(self.dtype), **device_options(self.device)}

    @property
    def on_cpu(self) -> bool:
        return self.device != SPREAD and find_device(self.device).type == "cpu"

    def describe(self) -> str:
        """The device in words, for the line that a command prints before it starts."""
        if self.device == SPREAD:
            return f"spread over {max(1, torch.cuda.device_count())} devices, {self.dtype}"
        device = find_device(self.device)
        name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
        return f"{device}{name}, {self.dtype}"


def parse_dtype(name: str) -> torch.dtype:
    """The type of that name."""
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}{did_you_mean(name, DTYPES)}")
    return DTYPES[name]


def find_device(name: str) -> torch.device:
    """The device of that name, of several processes this one's. An unknown or missing device is refused before anything is read."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        near = did_you_mean(name, ("auto", "cpu", "cuda", "mps", SPREAD))
        raise ValueError(f"no device {name!r}: expected auto, cpu, cuda, cuda:1, mps or {SPREAD}{near}")
    if name == "cuda" and count_processes() > 1:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"there is no device {name!r} here ({reason}): name another, or auto for the best one"
        ) from None
    return device


def device_options(device: str | None) -> dict[str, Any]:
    """The options of ``load_denoiser`` for a device by its name; None is the CPU."""
    if device == SPREAD:
        return {"device_map": "auto"}
    return {"device": find_device(device) if device else None}


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
