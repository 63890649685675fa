"""What a step launches beside the denoiser, counted on the pretended device: GPUs wait for launches, and for the host."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.pretend_device import NAME, PretendDevice
from support.step_counter import count_steps
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import FEATURES
from unmask.schedulers.heuristics import confidence, margin
from unmask.schedulers.policy import OrderPolicy, build_policy

MASK, END = 39, 38


@pytest.fixture(scope="module")
def denoiser() -> Transformer:
    shape = TransformerConfig(
        vocab_size=40, width=32, n_layers=2, n_heads=2, ffn=64, mask_id=MASK, pad_id=END, end_ids=(END,), max_length=32
    )
    model = Transformer(shape).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()
    with torch.no_grad():
        model.head.weight[END] = 0  # never the likeliest: no row ends early
    return model


def canvas(rows: int = 3) -> Canvas:
    tokens = torch.randint(0, END, (rows, 20), generator=torch.Generator().manual_seed(1))
    tokens[:, 4:] = MASK
    return Canvas(tokens)


def there(module: Any) -> Any:
    with PretendDevice():
        return copy.deepcopy(module).to(NAME)


def most(denoiser: Transformer, scheduler: Any, decoding: Decoding, **options: Any) -> tuple[int, int]:
    """The most kernels and the most syncs of a step in which no row leaves."""
    steps = count_steps(there(denoiser), scheduler, canvas(), decoding, **options)
    assert len(steps) > 5
    return max(sum(c.kernels.values()) for c in steps), max(sum(c.syncs.values()) for c in steps)


@pytest.mark.parametrize(
    ("decoding", "kernels"),
    [
        (Decoding(), 30),
        (Decoding(block=8), 34),
        (Decoding(block=8, cache="prefix"), 34),
        (Decoding(block=8, steps=8), 40),
        (Decoding(block=8, steps=8, cache="dual"), 40),
        (Decoding(block=8, pace="threshold:p=0.9"), 40),
        (Decoding(block=8, pace="threshold:p=0.9", cache="dual"), 40),
        (Decoding(order_temperature=1.0), 119),
    ],
)
def test_a_step_waits_once(denoiser: Transformer, decoding: Decoding, kernels: int) -> None:
    found, syncs = most(denoiser, confidence, decoding)
    assert syncs == 1
    assert found <= kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_padded_batch_waits_once(denoiser: Transformer, dtype: torch.dtype) -> None:
    """Where a batch is padded is found once, not in every forward, nor by a policy that attends."""
    tokens = canvas().tokens
    attention = torch.ones_like(tokens, dtype=torch.bool)
    attention[0, :2] = False
    padded = Canvas(tokens, attention=attention)
    for scheduler in (confidence, there(make_policy(denoiser, "transformer"))):
        steps = count_steps(there(copy.deepcopy(denoiser).to(dtype)), scheduler, padded, Decoding())
        assert max(sum(step.syncs.values()) for step in steps) == 1, steps[0].syncs


def test_the_record_of_states_costs_no_sync(denoiser: Transformer) -> None:
    found, syncs = most(denoiser, margin, Decoding(), record=True)
    assert (found <= 51, syncs) == (True, 1)


@pytest.mark.parametrize(
    ("kind", "options", "whole", "beside"),
    [
        ("hidden", {}, 40, 36),
        ("mlp", {}, 56, 51),
        ("transformer", {}, 71, 51),
        ("transformer", {"features": FEATURES}, 85, 65),
        ("general", {}, 134, 56),
        ("general", {"features": FEATURES}, 148, 70),
        ("general", {"features": FEATURES, "states": False}, 147, 70),
    ],
)
def test_a_step_of_a_policy_waits_once(
    denoiser: Transformer, kind: str, options: dict[str, Any], whole: int, beside: int
) -> None:
    """All kernels, and those beside the layers of its network."""
    policy = there(make_policy(denoiser, kind, **options))
    found, syncs = most(denoiser, policy, Decoding())
    assert (found <= whole, syncs) == (True, 1)
    assert most(denoiser, policy, Decoding(), beside=policy.network)[0] <= beside


def make_policy(denoiser: Transformer, kind: str, **options: Any) -> OrderPolicy:
    config = PolicyConfig(kind=kind, width=32, n_layers=1, tokens=False, distribution=False, **options)
    policy = build_policy(config, denoiser, "tiny").requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        policy.network.readout.weight.normal_(generator=generator)
    return policy


def test_broken_numbers_are_found_in_the_step_that_makes_them(denoiser: Transformer) -> None:
    """They are read once, with everything else: neither a token nor a call of ``on_step`` comes before that."""
    broken = copy.deepcopy(denoiser)
    with torch.no_grad():
        broken.head.weight[3] = torch.inf
    seen: list[Any] = []
    with pytest.raises(ValueError, match="logits that are NaN or infinite"):
        unmask(broken, confidence, canvas(), on_step=seen.append)
    with pytest.raises(ValueError, match="the scheduler returned NaN"):
        unmask(denoiser, lambda view: view.confidence * torch.nan, canvas(), on_step=seen.append)
    assert seen == []


def test_large_finite_logits_are_not_broken(denoiser: Transformer) -> None:
    """Their sum, which is what the host reads, is infinite; they themselves are not."""
    large = copy.deepcopy(denoiser)
    large.logits = lambda hidden: torch.full((len(hidden), 40), 3e38)  # pyright: ignore
    assert (unmask(large, confidence, canvas()).order >= 0).all()


COMPILED = Path(__file__).parents[1] / "support" / "compiled_steps.py"


@pytest.mark.parametrize("kinds", [(), pytest.param(("all",), marks=pytest.mark.slow)])
def test_pricing_and_policies_compile_as_whole_graphs(kinds: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, COMPILED, *kinds], check=True)


@pytest.mark.slow
def test_compiled_orders_of_boards_are_the_plain_ones() -> None:
    subprocess.run([sys.executable, COMPILED, "boards"], check=True)


@pytest.mark.slow
def test_few_kernels_are_left_when_compiled() -> None:
    """In inductor's code for this machine: of the pricing, and of a Transformer policy with seven features and one layer, which is
    PyTorch's own kernel."""
    shown = subprocess.run([sys.executable, COMPILED, "transformer"], check=True, capture_output=True, text=True).stdout
    pricing, policy = map(int, shown.split())
    assert (pricing, policy) == (1, 8)
