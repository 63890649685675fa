"""Low-rank adapters (LoRA) on a frozen denoiser, with peft: small matrices beside its linear layers, saved without them.

An adapter's folder holds ``adapter_config.json``, which names its base, and ``adapter_model.safetensors``. ``load_denoiser``
reads the base and puts the adapter on it. The base's own weights are never written, nor changed.

peft is imported only here, and only when an adapter is made or read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.denoisers.checkpoint import read_json, require_matching_shapes
from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.transformer import Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OURS = ("q", "k", "v", "out", "gate", "up", "down")
"""The linear layers of our transformer's blocks."""
NAME = "default"
LONGEST_NAME = 1000
Tunable = Transformer | MaskedLM


def add_lora(denoiser: Tunable, rank: int, alpha: float, targets: Sequence[str] = (), seed: int = 0) -> Tunable:
    """Put adapters on the denoiser, in place. Only they get gradients; before training they change nothing.

    They are float32 whatever the denoiser is: in bfloat16 most updates of fine-tuning are too small to change a weight.
    ``targets`` are the last names of linear layers. Without any it is every linear layer between embedding and head.
    """
    peft = _peft()
    chosen = list(targets) or _linear(denoiser)
    found = {name.rpartition(".")[2] for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)}
    if unknown := [name for name in chosen if name not in found]:
        raise ValueError(f"no linear layer is called {unknown[0]!r}: expected some of {', '.join(sorted(found))}")
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=chosen, exclude_modules=_outside(denoiser), lora_dropout=0.0
    )
    peft.inject_adapter_in_model(config, denoiser, adapter_name=NAME)
    for name, module in denoiser.named_modules():
        if ".lora_" in name and isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().float())  # whatever the denoiser is
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in denoiser.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if ".lora_A." in name:
            drawn = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
            parameter.data.copy_(drawn)
        elif ".lora_B." in name:
            parameter.data.zero_()
    return denoiser.eval()  # type: ignore[return-value]


def save_adapter(denoiser: Tunable, folder: Path, base: str, rank: int, alpha: float, targets: Sequence[str]) -> Path:
    """Write the adapter alone, with the name of its base."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in adapter_weights(denoiser).items()}, folder / WEIGHTS)
    content = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(Path(base).resolve()) if Path(base).exists() else base,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets) or _linear(denoiser),
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    return folder


def adapter_weights(denoiser: Tunable) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in denoiser.named_parameters() if ".lora_" in name}


def has_adapter(folder: Path) -> bool:
    return (folder / CONFIG).exists() and (folder / WEIGHTS).exists()


def base_of(folder: Path) -> str:
    """The name of the denoiser that an adapter belongs to."""
    base = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not 0 < len(base) <= LONGEST_NAME or not base.isprintable():
        raise ValueError(f"{folder / CONFIG} does not name the base of the adapter: expected base_model_name_or_path")
    if has_adapter(Path(base)) or has_adapter(Path(base) / "denoiser"):
        raise ValueError(f"{folder / CONFIG}: its base {base} is an adapter itself: merge that one first")
    return base


def _read_settings(folder: Path) -> tuple[int, float, list[str]]:
    stored = read_json(folder / CONFIG)
    rank, alpha, targets = (stored.get(key) for key in ("r", "lora_alpha", "target_modules"))
    names = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if type(rank) is not int or not isinstance(alpha, int | float) or not math.isfinite(alpha) or not names:
        raise ValueError(f"{folder / CONFIG}: expected r, lora_alpha and target_modules of a LoRA adapter")
    return rank, float(alpha), targets  # pyright: ignore[reportReturnType]


def load_adapter(denoiser: Tunable, folder: Path) -> Tunable:
    """The denoiser with the adapter of that folder, frozen."""
    rank, alpha, targets = _read_settings(folder)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read the adapter {folder / WEIGHTS}: {error}") from error
    ranks = {tensor.shape[0] for name, tensor in weights.items() if ".lora_A." in name and tensor.dim()}
    if ranks != {rank}:  # before matrices of that rank are made
        held = ", ".join(map(str, sorted(ranks))) or "none"
        raise ValueError(f"{folder / WEIGHTS} does not fit its configuration: rank {held}, but {CONFIG} names {rank}")
    tuned = add_lora(denoiser, rank, alpha, targets)
    expected = {name: tuple(tensor.shape) for name, tensor in adapter_weights(tuned).items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    require_matching_shapes(expected, found, folder / WEIGHTS)
    tuned.load_state_dict(weights, strict=False)
    return tuned.requires_grad_(False).eval()


def merge(denoiser: Tunable) -> Tunable:
    """Add the adapters to the weights they stand beside, and take them away: a denoiser like any other."""
    layers = [(name, module) for name, module in denoiser.named_modules() if hasattr(module, "base_layer")]
    for name, module in layers:
        adapted: Any = module
        adapted.merge(safe_merge=True)
        owner, _, last = name.rpartition(".")
        setattr(denoiser.get_submodule(owner), last, adapted.base_layer)
    return denoiser.requires_grad_(False)


def _linear(denoiser: Tunable) -> list[str]:
    """The last names of the linear layers in the trunk."""
    if isinstance(denoiser, Transformer):
        return list(OURS)
    outside = re.compile(_outside(denoiser))
    trunk = [
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, module in denoiser.named_modules()
        if isinstance(module, nn.Linear) and not outside.fullmatch(name) and ".lora_" not in name
    ]
    return sorted(set(trunk))


def _outside(denoiser: Tunable) -> str:
    """A pattern of what is not the trunk: the head."""
    if isinstance(denoiser, Transformer):
        return r"head"
    return rf"model\.(?!{re.escape(denoiser.model.base_model_prefix)}\.).*"


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError("adapters need peft: pip install unmask[lm]") from error
    return peft
