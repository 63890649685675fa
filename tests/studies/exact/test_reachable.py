"""All answers that orders reach with greedy tokens, against decoding along every order."""

import itertools
from collections import Counter

import pytest
import torch

from support.tables import TableDenoiser
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, View
from unmask.schedulers.heuristics import confidence, gt_logp, left_to_right
from unmask_studies.exact import reachable
from unmask_studies.exact.reachable import reach


def table(n: int, V: int, seed: int = 0) -> TableDenoiser:
    logits = torch.randn((V + 1) ** n, n, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return TableDenoiser((2 * logits).log_softmax(-1))


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_all_orders(seed: int) -> None:
    n = 4
    denoiser = table(n, 3, seed)
    tokens = torch.full((n,), denoiser.mask_id)
    ends: Counter[tuple[int, ...]] = Counter()
    paid: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(n)):
        rank = torch.tensor([float(order.index(i)) for i in range(n)])

        def follow(view: View, rank: torch.Tensor = rank) -> torch.Tensor:
            return -rank.expand_as(view.confidence)

        trajectory = unmask(denoiser, follow, Canvas(tokens[None]))
        answer = tuple(trajectory.tokens[0].tolist())
        ends[answer] += 1
        paid[answer] = max(paid.get(answer, -torch.inf), float(trajectory.total_logp[0]))

    found = reach(denoiser, tokens, {"confidence": confidence, "left_to_right": left_to_right})
    answers = [tuple(answer) for answer in found.answers.tolist()]
    assert sorted(answers) == sorted(ends)
    assert len(answers) > 1
    for answer, share, likelihood in zip(answers, found.share.tolist(), found.likelihood.tolist(), strict=True):
        assert share == pytest.approx(ends[answer] / 24)
        assert likelihood == pytest.approx(paid[answer], abs=1e-5)
    assert answers[found.likeliest] == max(paid, key=paid.__getitem__)
    for name, scheduler in (("confidence", confidence), ("left_to_right", left_to_right)):
        assert answers[found.chosen[name]] == tuple(
            unmask(denoiser, scheduler, Canvas(tokens[None])).tokens[0].tolist()
        )
    assert found.denoiser_calls <= sum(len(answers) * 4**k for k in range(n))


def test_oracles_and_large_canvases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser = table(3, 2)
    tokens = torch.full((3,), denoiser.mask_id)
    with pytest.raises(ValueError, match="gt_logp: an oracle reads the hidden tokens"):
        reach(denoiser, tokens, {"gt_logp": gt_logp})
    monkeypatch.setattr(reachable, "MOST_STATES", 2)
    with pytest.raises(ValueError, match="more than 2 states: hide fewer than 3"):
        reach(denoiser, tokens, {})
