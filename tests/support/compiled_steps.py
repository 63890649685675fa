"""What a step computes beside the denoiser, compiled as whole graphs. Run by a test as a process of its own: the checks of shapes
that are wrapped around every function in the tests cannot be traced."""

from __future__ import annotations

import torch

from unmask.decoding.loop import look
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import device_ids, price, price_at_once
from unmask.decoding.protocols import Canvas
from unmask.decoding.rows import LiveRows
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import build_policy

MASK = 39


def statistics(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    prices = price_at_once(logits, ids)
    logp = prices.odds.log_probabilities(prices.confidence)
    return prices.best, prices.confidence, logp, prices.odds.entropy(logp, prices.confidence.exp())


def compile_pricing() -> None:
    logits = torch.randn(6, 40)
    expected, ids = price(logits, (MASK,)), device_ids((MASK,), torch.device("cpu"))
    found = torch.compile(statistics, backend="eager", fullgraph=True)(logits, ids)
    for name, value in zip(("best", "confidence", "logp", "entropy"), found, strict=True):
        assert torch.equal(value, getattr(expected, name)), name


def compile_policy(kind: str, token_width: int = 0) -> None:
    shape = TransformerConfig(vocab_size=40, width=32, n_layers=2, n_heads=2, ffn=64, mask_id=MASK, max_length=32)
    denoiser = Transformer(shape).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()
    config = PolicyConfig(
        kind=kind, width=32, n_layers=2, tokens=False, distribution=token_width > 0, token_width=token_width
    )
    policy = build_policy(config, denoiser, "tiny").requires_grad_(False).eval()
    policy.network.readout.weight.normal_(generator=torch.Generator().manual_seed(2))
    tokens = torch.randint(0, MASK, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[:, 4:] = MASK
    tokens[1, 9:12] = 3  # rows with different numbers of hidden positions
    view = look(denoiser, LiveRows(denoiser, Canvas(tokens), Decoding()), policy, None, {})
    seen = policy.observe(view)
    compiled = torch.compile(policy.score, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(seen, view.at), policy.score(seen), atol=1e-5), kind


if __name__ == "__main__":
    with torch.no_grad():
        compile_pricing()
        for kind in ("hidden", "mlp", "transformer", "general"):
            compile_policy(kind)
        compile_policy("general", token_width=8)
