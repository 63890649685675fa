"""The best policy that does not know the answer, against brute force, the best order, and the decoding loop."""

import itertools
import math

import numpy as np
import pytest
import torch

from support.denoisers import opinionated
from support.tables import TableDenoiser
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.heuristics import confidence, gt_logp, left_to_right, margin
from unmask.theory.enumerable import exact_conditionals
from unmask.theory.lattice import lattice, scheduler_logv
from unmask.theory.orders import best_order, expected_return
from unmask.theory.states import choice_logp
from unmask_studies.exact.boards import all_grids, ambiguous_boards, unique_boards
from unmask_studies.exact.optimum import (
    Completions,
    best_policy,
    clairvoyant_value,
    measure_share,
    policy_value,
    price_completions,
    solve_chance,
)


def table(n: int, V: int, seed: int = 0) -> TableDenoiser:
    logits = torch.randn((V + 1) ** n, n, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return TableDenoiser((2 * logits).log_softmax(-1))


def blank(denoiser: TableDenoiser, truths: list[list[int]], law: list[float] | None = None) -> Completions:
    """All of a table's positions hidden, with these completions."""
    tokens = torch.full((len(truths[0]),), denoiser.mask_id)
    weights = None if law is None else torch.tensor(law, dtype=torch.float64)
    return price_completions(denoiser, tokens, torch.tensor(truths), weights)


def test_with_one_solution_the_best_policy_is_the_best_order() -> None:
    denoiser = opinionated()
    for tokens, truths in unique_boards(2, "9", seed=1):
        board = price_completions(denoiser, tokens, truths)
        grid = lattice(denoiser, tokens, truths[0])
        assert board.denoiser_calls == grid.denoiser_calls == 2**7 - 1
        assert torch.allclose(board.logp[0], grid.logp)
        order, value = best_order(grid.logp)
        logv, best = best_policy(board)
        assert best == pytest.approx(value, abs=1e-9)
        assert best == pytest.approx(clairvoyant_value(board), abs=1e-9)
        assert float(policy_value(board, logv)) == pytest.approx(best, abs=1e-9)
        # The state after a set is revealed says which set it was: the table read along the lattice is the order.
        forced = logv[board.state[0]]
        assert float(expected_return(grid.logp, forced)) == pytest.approx(value, abs=1e-9)
        assert int(forced[0].argmax()) == int(order[0])


def test_with_several_solutions_every_policy_is_tried() -> None:
    """Three positions and three completions: all deterministic policies, one choice for each state, one after the other."""
    denoiser = table(3, 2, seed=3)
    truths, law = [[0, 0, 1], [1, 0, 0], [1, 1, 1]], [0.5, 0.2, 0.3]
    board = blank(denoiser, truths, law)
    hidden = board.canvases == denoiser.mask_id
    open_states = torch.nonzero(hidden.sum(1) > 1)[:, 0].tolist()
    last = {t: int(hidden[t].int().argmax()) for t in torch.nonzero(hidden.sum(1) == 1)[:, 0].tolist()}

    def walk(choice: dict[int, int]) -> float:
        total = 0.0
        for truth, weight in zip(truths, law, strict=True):
            canvas = [denoiser.mask_id] * 3
            for _ in range(3):
                row = board.canvases.tolist().index(canvas)
                number = sum(c * 3 ** (2 - k) for k, c in enumerate(canvas))
                j = choice[row]
                total += weight * float(denoiser.table[number, j, truth[j]])
                canvas[j] = truth[j]
        return total

    choices = [torch.nonzero(hidden[t])[:, 0].tolist() for t in open_states]
    values = [walk(last | dict(zip(open_states, pick, strict=True))) for pick in itertools.product(*choices)]
    assert len(values) > 100
    _, best = best_policy(board)
    assert best == pytest.approx(max(values), abs=1e-6)
    assert min(values) < best - 0.1


def test_not_knowing_costs() -> None:
    """Where the first position says which order is good, the policy must pay for finding out; the clairvoyant does not."""
    denoiser = opinionated(2)
    for tokens, truths in itertools.islice(ambiguous_boards(9, 4, seed=3), 3):
        board = price_completions(denoiser, tokens, truths)
        assert len(board.canvases) < board.state.numel()  # solutions share their first states
        assert board.denoiser_calls == len(board.canvases) - len(truths)
        logv, best = best_policy(board)
        assert best < clairvoyant_value(board) - 1e-3
        assert float(policy_value(board, logv)) == pytest.approx(best, abs=1e-9)
        scores = board.scores({"confidence": confidence, "margin": margin})
        for table_of in scores.values():
            for tau in (0.0, 0.7):
                assert float(policy_value(board, choice_logp(table_of, tau))) < best


def test_a_perfect_denoiser_leaves_nothing_to_choose() -> None:
    law = torch.rand(8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    law /= law.sum()
    board = blank(
        TableDenoiser(exact_conditionals(law, 2)), [list(x) for x in itertools.product((0, 1), repeat=3)], law.tolist()
    )
    entropy = -float((law * law.log()).sum())
    assert best_policy(board)[1] == pytest.approx(-entropy, abs=1e-5)
    assert clairvoyant_value(board) == pytest.approx(-entropy, abs=1e-5)


def test_values_of_schedulers_are_those_of_the_lattice_and_the_loop() -> None:
    denoiser = opinionated(4)
    tokens, truths = next(ambiguous_boards(10, 4, seed=5))
    board = price_completions(denoiser, tokens, truths)
    raw = board.scores({"confidence": confidence, "left_to_right": left_to_right})
    for name, scheduler in (("confidence", confidence), ("left_to_right", left_to_right)):
        for tau in (0.0, 0.5):
            apart = [
                float(expected_return(grid.logp, scheduler_logv(grid, scheduler, tau)))
                for grid in (lattice(denoiser, tokens, truth) for truth in truths)
            ]
            value = float(policy_value(board, choice_logp(raw[name], tau)))
            assert value == pytest.approx(float(np.mean(apart)), abs=1e-6)
        path = unmask(denoiser, scheduler, Canvas(tokens.repeat(len(truths), 1), target=truths), forced=True)
        greedy = float(policy_value(board, choice_logp(raw[name], 0.0)))
        assert greedy == pytest.approx(float(path.total_logp.mean()), abs=1e-4)


def test_solve_chance_is_that_of_decoding() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    boards = [*unique_boards(3, "7", seed=2), *itertools.islice(ambiguous_boards(8, 4, seed=1), 3)]
    rows, chances = 400, []
    for tokens, truths in boards:
        board = price_completions(denoiser, tokens, truths)
        scores = board.scores({"left_to_right": left_to_right, "confidence": confidence})
        greedy = unmask(denoiser, left_to_right, tokens[None]).tokens
        solved = bool((greedy == truths).all(1).any())
        assert solve_chance(board, choice_logp(scores["left_to_right"], 0.0)) == pytest.approx(float(solved))
        chances.append(solve_chance(board, choice_logp(scores["confidence"], 2.0)))
    hardest = int(np.argmin(np.abs(np.array(chances) - 0.5)))
    assert 0.05 < chances[hardest] < 0.95
    tokens, truths = boards[hardest]
    drawn = unmask(denoiser, confidence, tokens.repeat(rows, 1), Decoding(order_temperature=2.0), record=False).tokens
    share = float((drawn[:, None] == truths).all(2).any(1).double().mean())
    assert abs(share - chances[hardest]) < 4 * math.sqrt(chances[hardest] * (1 - chances[hardest]) / rows)


def test_bad_completions_are_refused() -> None:
    denoiser = opinionated()
    tokens, truths = next(unique_boards(1, "10"))
    with pytest.raises(ValueError, match="at most 65536 states; reveal more"):
        price_completions(
            denoiser, torch.zeros(16, dtype=torch.long), torch.from_numpy(all_grids()[:2].astype(np.int64))
        )
    with pytest.raises(ValueError, match="contradicts the canvas"):
        price_completions(denoiser, tokens, truths.roll(1, 1))
    with pytest.raises(ValueError, match="are the same"):
        price_completions(denoiser, tokens, truths.repeat(2, 1))
    with pytest.raises(ValueError, match="positive and sum to 1"):
        price_completions(denoiser, tokens, truths, torch.tensor([0.5]))
    with pytest.raises(ValueError, match="gt_logp: an oracle"):
        price_completions(denoiser, tokens, truths).scores({"gt_logp": gt_logp})


def test_the_288_grids() -> None:
    grids = all_grids()
    assert grids.shape == (288, 16)
    assert len(np.unique(grids, axis=0)) == 288
    for tokens, truths in itertools.islice(ambiguous_boards(6, 5), 20):
        shown = tokens > 0
        assert int(shown.sum()) == 6
        assert 2 <= len(truths) <= 5
        assert bool((truths[:, shown] == tokens[shown]).all())


def test_share_of_the_way() -> None:
    rng = np.random.default_rng(0)
    base, way = rng.normal(size=300), rng.exponential(size=300)
    poor = base - 1
    found = measure_share(base + 0.25 * way, {"poor": poor, "good": base}, base + way)
    assert found.base == "good"
    assert found.gap == pytest.approx(way.mean())
    assert (found.closed.mean, found.closed.low, found.closed.high) == pytest.approx((0.25, 0.25, 0.25))
    noisy = measure_share(base + 0.25 * way + rng.normal(size=300), {"good": base}, base + way)
    assert noisy.closed.low < 0.25 < noisy.closed.high
    assert 0.05 < noisy.closed.high - noisy.closed.low < 0.6
    nothing = measure_share(base, {"good": base}, base)
    assert math.isnan(nothing.closed.mean)
    assert nothing.closed.high == math.inf
