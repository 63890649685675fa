"""The solver against a slow one that shares nothing with it, and the generator's promises."""

import threading

import numpy as np
import pytest

from unmask.tasks.sudoku.generate import RAO_CLUES, generate
from unmask.tasks.sudoku.grid import parse
from unmask.tasks.sudoku.solver import count_solutions, is_solution, solve, solve_many
from unmask.tasks.sudoku.techniques import hardest

BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
HARD = "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......"
HARD_SOLUTION = "417369825632158947958724316825437169791586432346912758289643571573291684164875293"
HOSTILE = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."


def slow_solutions(board, limit):
    """Plain backtracking on the cell with the fewest digits left, over Python sets."""
    size = round(len(board) ** 0.5)
    high, wide = BOX[size]
    board = [int(digit) for digit in board]

    def options(cell):
        r, c = divmod(cell, size)
        seen = set(board[r * size : (r + 1) * size]) | set(board[c::size])
        for i in range(r // high * high, r // high * high + high):
            for j in range(c // wide * wide, c // wide * wide + wide):
                seen.add(board[i * size + j])
        return [digit for digit in range(1, size + 1) if digit not in seen]

    def walk():
        blanks = [(len(options(cell)), cell) for cell in range(len(board)) if board[cell] == 0]
        if not blanks:
            yield tuple(board)
            return
        _, cell = min(blanks)
        for digit in options(cell):
            board[cell] = digit
            yield from walk()
            board[cell] = 0

    found = []
    for solution in walk():
        found.append(solution)
        if len(found) == limit:
            break
    return found


@pytest.mark.parametrize("size", [4, 6, 9])
def test_agrees_with_slow_solver_on_puzzles_and_on_boards_with_several_or_no_solutions(size):
    rng = np.random.default_rng(size)
    puzzles, solutions = generate(12, size=size, seed=11)
    thinned = puzzles * (rng.random(puzzles.shape) < 0.9)
    spoilt = puzzles.copy()
    for board, solution in zip(spoilt, solutions, strict=True):
        cell = rng.choice(np.flatnonzero(board == 0))
        board[cell] = solution[cell] % size + 1
    boards = np.concatenate([puzzles, thinned, spoilt])
    limit = 5
    # The slow solver assumes clues that do not clash.
    keep = [i for i, board in enumerate(boards) if not clashes(board, size)]
    assert len(keep) > 24
    found, counts = solve_many(boards, limit=limit)
    for i, board in enumerate(boards):
        slow = slow_solutions(board, limit) if i in keep else []
        assert counts[i] == len(slow)
        if 0 < len(slow) < limit:
            assert tuple(found[i].tolist()) in slow
    assert {0, 1} <= set(counts.tolist()) and counts.max() > 1


def clashes(board, size):
    high, wide = BOX[size]
    square = board.reshape(size, size)
    boxes = square.reshape(size // high, high, size // wide, wide).swapaxes(1, 2).reshape(size, size)
    return any(
        np.bincount(line, minlength=size + 1)[1:].max() > 1 for lines in (square, square.T, boxes) for line in lines
    )


def test_known_hard_puzzle():
    assert solve(parse(HARD)) is not None
    assert (solve(parse(HARD)) == parse(HARD_SOLUTION)).all()
    assert count_solutions(parse(HARD)) == 1


def test_counts_all_288_four_by_four_grids():
    assert count_solutions(np.zeros(16, int), limit=1000) == 288


@pytest.mark.parametrize("size", [4, 6, 9])
def test_empty_board_stops_at_the_limit(size):
    assert count_solutions(np.zeros(size * size, int)) == 2
    assert count_solutions(np.zeros(size * size, int), limit=50) == 50


def test_clashing_clues_have_no_solution():
    board = np.zeros(81, int)
    board[[0, 8]] = 7
    assert solve(board) is None and count_solutions(board) == 0


def test_search_stops_after_a_bounded_number_of_guesses():
    with pytest.raises(ValueError, match="gave up on board 0 after 20000 guesses"):
        solve(parse(HOSTILE), max_guesses=20_000)


def test_guesses_are_counted_from_the_last_solution():
    assert count_solutions(np.zeros(16, int), limit=1000, max_guesses=30) == 288


def test_input_is_left_alone_and_rows_are_independent():
    puzzles, solutions = generate(30, seed=2)
    before = puzzles.copy()
    found, counts = solve_many(puzzles)
    assert (puzzles == before).all() and (counts == 1).all() and (found == solutions).all()
    for i in (0, 7, 29):
        assert (solve(puzzles[i]) == solutions[i]).all()


def test_batch_is_not_one_board():
    with pytest.raises(ValueError, match="one board"):
        solve(np.zeros((1, 81), int))


def test_is_solution_requires_a_valid_complete_grid_with_the_clues():
    puzzles, solutions = generate(1, size=4, seed=1)
    assert is_solution(puzzles, solutions).tolist() == [True]
    swapped = np.where(solutions == 1, 2, np.where(solutions == 2, 1, solutions))
    assert is_solution(np.zeros_like(puzzles), swapped).tolist() == [True]
    assert is_solution(solutions, swapped).tolist() == [False]  # valid, other clues
    assert is_solution(puzzles, puzzles).tolist() == [False]  # incomplete
    assert is_solution(np.zeros_like(puzzles), np.ones_like(puzzles)).tolist() == [False]


# The generator.


@pytest.mark.parametrize(("size", "count"), [(4, 40), (6, 15), (9, 4)])
def test_generated_puzzles_have_one_solution_by_the_slow_solver(size, count):
    puzzles, solutions = generate(count, size=size, seed=8)
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        assert slow_solutions(puzzle, 2) == [tuple(solution.tolist())]
    assert len(np.unique(solutions, axis=0)) > count // 2


def test_puzzle_depends_on_seed_and_index_only():
    puzzles, solutions = generate(40, seed=5)
    part, answers = generate(7, seed=5, start=21)
    assert (part == puzzles[21:28]).all() and (answers == solutions[21:28]).all()
    other, _ = generate(40, seed=6)
    assert not any((board == puzzles).all(1).any() for board in other)


def test_corpus_is_pinned():
    """A change here changes every corpus that was made from a seed."""
    puzzles, _ = generate(1, size=4, clues=6, seed=1, start=3)
    assert "".join(map(str, puzzles[0])) == PINNED_4
    puzzles, _ = generate(1, seed=1, start=3)
    assert "".join(map(str, puzzles[0])) == PINNED_9


PINNED_4 = "0000040140031004"
PINNED_9 = "001700520578092460000500000000357200039601045257489310305014000010006954490275030"


def test_threads_agree_with_one_thread():
    whole, _ = generate(60, seed=9)
    parts = {}

    def work(start):
        parts[start] = generate(30, seed=9, start=start)[0]

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (np.concatenate([parts[0], parts[30]]) == whole).all()


def test_clue_targets_are_met():
    assert ((generate(30, clues=30, seed=1)[0] > 0).sum(1) == 30).all()
    counts = (generate(400, clues=(33, 36), seed=1)[0] > 0).sum(1)
    assert set(counts.tolist()) == {33, 34, 35, 36}
    assert min(np.bincount(counts)[33:]) > 60
    counts = (generate(300, clues={40: 1, 50: 2}, seed=1)[0] > 0).sum(1)
    assert set(counts.tolist()) == {40, 50} and 160 < (counts == 50).sum() < 240


def test_rao_histogram_and_its_difficulty():
    """Real corpus: mean 38.9 clues, 81.6 % naked singles alone, 97.4 % with hidden singles."""
    puzzles, _ = generate(2000, clues="rao", seed=3)
    clues = (puzzles > 0).sum(1)
    assert abs(clues.mean() - 38.9) < 0.5 and abs(clues.std() - 5.9) < 0.5
    assert set(clues.tolist()) <= set(RAO_CLUES)
    needed = hardest(puzzles)
    assert abs((needed == 0).mean() - 0.816) < 0.03
    assert abs((needed <= 1).mean() - 0.974) < 0.015


@pytest.mark.parametrize("size", [4, 6, 9])
def test_full_board_and_every_size(size):
    puzzles, solutions = generate(5, size=size, clues=size * size)
    assert (puzzles == solutions).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clues": 16}, "17 to 81 clues for size 9, got 16 to 16"),
        ({"clues": (10, 30)}, "17 to 81"),
        ({"clues": 82}, "17 to 81"),
        ({"size": 4, "clues": 3}, "4 to 16"),
        ({"size": 6, "clues": 7}, "8 to 36"),
        ({"clues": (40, 30)}, "low <= high"),
        ({"clues": "roa"}, "'rao'"),
        ({"clues": {30: -1.0}}, "positive"),
        ({"clues": {}}, "positive"),
        ({"size": 5}, "4, 6 or 9"),
        ({"seed": -1}, "seed"),
        ({"start": -1}, "start"),
        ({"clues": 17, "max_tries": 20}, "17 clues in 20 tries"),
    ],
)
def test_impossible_requests_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        generate(2, **options)


def test_few_clues_are_reached_and_stay_unique():
    puzzles, _ = generate(3, clues=22, seed=4)
    assert ((puzzles > 0).sum(1) == 22).all() and (solve_many(puzzles)[1] == 1).all()


@pytest.mark.parametrize(("size", "count", "most"), [(4, 20, 6), (6, 10, 12), (9, 10, 23)])
def test_minimal_puzzles_lose_their_solution_with_any_clue(size, count, most):
    puzzles, solutions = generate(count, size=size, clues="minimal", seed=4)
    assert (solve_many(puzzles)[1] == 1).all() and is_solution(puzzles, solutions).all()
    assert (puzzles > 0).sum(1).max() <= most
    for puzzle in puzzles:
        without = np.where(np.eye(size * size, dtype=bool)[puzzle > 0], 0, puzzle).astype(np.int8)
        assert (solve_many(without, limit=2)[1] == 2).all()


def test_hard_puzzles_are_half_minimal():
    clues = (generate(100, clues="hard", seed=2)[0] > 0).sum(1)
    assert 30 < (clues < 23).sum() < 70 and clues.max() > 40
