"""The shapes of published denoisers, of an order policy for them, and of whatever has a config.json. No weight is read."""

from __future__ import annotations

from pathlib import Path

from unmask.assets import MODELS
from unmask.denoisers.checkpoint import FAMILY, Checkpoint, has_weights, read_config, read_json
from unmask.denoisers.families import Family, Published, find_family
from unmask.denoisers.loading import added_tokens, list_denoisers
from unmask.denoisers.transformer import TransformerConfig
from unmask.runs.names import did_you_mean
from unmask.schedulers.policy import PolicyConfig

LLADA_8B = TransformerConfig(
    vocab_size=126_464,
    width=4096,
    n_layers=32,
    n_heads=32,
    ffn=12_288,
    mask_id=126_336,
    rope_theta=500_000.0,
    rope_float32=True,
)
"""``config.json`` of GSAI-ML/LLaDA-8B-Instruct."""
SHAPES = {
    "llada-8b": LLADA_8B,
    "dream-7b": TransformerConfig(
        vocab_size=152_064,
        width=3584,
        n_layers=28,
        n_heads=28,
        n_kv_heads=4,
        ffn=18_944,
        mask_id=151_666,
        qkv_bias=True,
        logit_shift=True,
    ),
    "smdm-1b": TransformerConfig(
        vocab_size=32_001, head_rows=32_000, width=1792, n_layers=20, n_heads=14, ffn=7168, mask_id=32_000
    ),
}
TEXT_POLICY = PolicyConfig(kind="transformer", width=128, n_layers=1, n_heads=4, tokens=False)
"""An order policy for a language model: the paper's one-layer encoder over log p̂, entropy and place. Its widths are not given."""


def shape_of(name: str) -> TransformerConfig:
    """A denoiser's shape: one of ``SHAPES``, a shipped name, a run, a folder or its config.json. No weight is read."""
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    folders = [path.parent] if path.name == "config.json" else [MODELS / name, path / "denoiser", path]
    folder = next((f for f in folders if (f / "config.json").is_file()), None)
    if folder is None:
        known = [*SHAPES, *list_denoisers()]
        raise ValueError(
            f"no shape {name!r}: expected a folder with a config.json, or one of {', '.join(known)}{did_you_mean(name, known)}"
        )
    stored = read_json(folder / "config.json")
    if stored.get("family") == FAMILY:
        return read_config(folder)
    family = find_family(stored)
    if not isinstance(family, Family):
        raise ValueError(
            f"{folder} is none of this library's own transformers: name the nearest of {', '.join(SHAPES)}"
        )
    tensors = Checkpoint(folder).shapes if has_weights(folder) else {}
    try:
        return family.configure(Published(stored, tensors, added_tokens(folder)))
    except KeyError as error:
        raise ValueError(f"{folder}: {error.args[0]} is missing") from None
