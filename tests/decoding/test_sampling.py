"""Drawing tokens: by the whole distribution, sorted, and without ever sorting it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unmask.decoding import sampling
from unmask.decoding.sampling import draw_from


def sorted_draw(logits: Tensor, draw: Tensor, top_p: float) -> Tensor:
    """The definition: sort, cut behind the token that completes ``top_p``, and look where the draw falls."""
    p, token = logits.log_softmax(1).double().exp().sort(dim=1, descending=True, stable=True)
    p = p.masked_fill(p.cumsum(1) - p >= top_p, 0.0) if top_p < 1 else p
    ladder = p.cumsum(1)
    nth = torch.searchsorted(ladder, draw.double()[:, None] * ladder[:, -1:], right=True).clamp(max=p.shape[1] - 1)
    return token.gather(1, nth)[:, 0]


@pytest.mark.parametrize("top_p", [1.0, 0.99, 0.9, 0.5, 1e-6])
@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 8.0])
def test_draws_are_those_of_the_sorted_distribution(top_p: float, spread: float) -> None:
    """Flat distributions, in which all tokens are equal, too: the lower ids come first."""
    made = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(400, 3000, generator=made)
    logits[::5] = logits[::5].round()  # many equals
    logits[:, 7] = -torch.inf
    draw = torch.rand(400, generator=made)
    draw[:4] = torch.tensor([2**-25, 0.5, 1 - 2**-24, 0.999])
    assert torch.equal(draw_from(logits, draw, top_p), sorted_draw(logits, draw, top_p))


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([3.0, 1.0, 2.0, -torch.inf, 0.0])
    draw = (torch.arange(20_000) + 0.5) / 20_000
    counts = torch.bincount(draw_from(logits.expand(20_000, 5), draw), minlength=5) / 20_000
    torch.testing.assert_close(counts, logits.softmax(0), atol=1e-4, rtol=0)
    nucleus = torch.bincount(draw_from(logits.expand(20_000, 5), draw, 0.7), minlength=5) / 20_000
    kept = torch.tensor([3.0, -torch.inf, 2.0, -torch.inf, -torch.inf]).softmax(0)
    torch.testing.assert_close(nucleus, kept, atol=1e-4, rtol=0)


class Sizes(TorchDispatchMode):
    """The largest tensor that is made, and the widest that is sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.sorted = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
                if func.overloadpacket in (torch.ops.aten.sort, torch.ops.aten.topk):
                    self.sorted = max(self.sorted, one.shape[-1])
        return result


def test_memory_is_bounded_and_the_vocabulary_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.denoisers import Counting
    from unmask.decoding.loop import unmask
    from unmask.decoding.options import Decoding
    from unmask.schedulers.heuristics import confidence

    class Wide(Counting):
        def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
            made = torch.Generator().manual_seed(0)
            return 4 * torch.randn(*tokens.shape, 5000, generator=made)

    denoiser = Wide(5000, 4999)
    tokens = torch.full((2, 40), 4999)
    wanted = unmask(denoiser, confidence, tokens, Decoding(steps=2, token_temperature=0.8))
    monkeypatch.setattr(sampling, "AT_ONCE", 8 * 5000)
    drawing = Sizes()
    inner = sampling.draw_from

    def measured(*given: Tensor | float) -> Tensor:
        with drawing:
            return inner(*given)  # pyright: ignore

    monkeypatch.setattr(sampling, "draw_from", measured)
    chunked = unmask(denoiser, confidence, tokens, Decoding(steps=2, token_temperature=0.8))
    assert torch.equal(chunked.tokens, wanted.tokens)
    assert 0 < drawing.largest <= 8 * 5000
    assert 0 < drawing.sorted < 5000
