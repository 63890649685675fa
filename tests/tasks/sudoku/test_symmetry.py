"""Canonical forms against brute force, splits that no symmetry crosses, random symmetries."""

from itertools import permutations, product

import numpy as np
import pytest

from unmask.tasks.sudoku.canonical import canonical, canonical_puzzle
from unmask.tasks.sudoku.generate import generate
from unmask.tasks.sudoku.grid import parse
from unmask.tasks.sudoku.solver import is_solution, solve_many
from unmask.tasks.sudoku.symmetry import SPLITS, Symmetries, apply, random_symmetries, split_of

BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def orders(size, band):
    for bands in permutations(range(size // band)):
        for inner in product(permutations(range(band)), repeat=size // band):
            yield [b * band + line for b in bands for line in inner[b]]


def relatives(board, size):
    """Every image of the board under the geometry, digits renamed by first appearance: brute force."""
    high, wide = BOX[size]
    square = board.reshape(size, size)
    for flipped in [square, square.T] if high == wide else [square]:
        for rows in orders(size, high):
            for columns in orders(size, wide):
                names = {0: 0}
                yield tuple(names.setdefault(digit, len(names)) for digit in flipped[rows][:, columns].ravel().tolist())


@pytest.fixture(scope="module")
def all_four():
    """All 288 complete 4 x 4 grids, by permuting rows of digits: no solver involved."""
    rows = list(permutations(range(1, 5)))
    grids = []
    for choice in product(rows, repeat=4):
        square = np.array(choice)
        columns = all(len(set(square[:, c])) == 4 for c in range(4))
        if columns and all(len(set(square[r : r + 2, c : c + 2].ravel())) == 4 for r in (0, 2) for c in (0, 2)):
            grids.append(square.ravel())
        if len(grids) == 288:
            break
    return np.array(grids)


def test_four_by_four_has_two_classes(all_four):
    assert len(all_four) == 288
    forms = canonical(all_four)
    assert len(np.unique(forms, axis=0)) == 2
    for i in range(0, 288, 24):
        assert tuple(forms[i].tolist()) == min(relatives(all_four[i], 4))


def test_six_by_six_is_the_brute_force_minimum_and_has_49_classes():
    _, solutions = generate(8000, size=6, seed=2)
    forms = canonical(solutions)
    assert len(np.unique(forms, axis=0)) == 49
    for i in range(6):
        assert tuple(forms[i].tolist()) == min(relatives(solutions[i], 6))


def test_nine_by_nine_is_invariant_and_one_of_its_own_relatives():
    _, solutions = generate(150, seed=4)
    forms = canonical(solutions)
    assert (canonical(apply(random_symmetries(150, 9, 1), solutions)) == forms).all()
    assert (canonical(forms) == forms).all()
    assert len(np.unique(forms, axis=0)) == 150
    assert (forms[:, :9] == np.arange(1, 10)).all()
    assert is_solution(np.zeros_like(forms), forms).all()
    assert (canonical(solutions[3]) == forms[3]).all()


def test_nine_by_nine_is_no_greater_than_any_sampled_relative():
    _, solutions = generate(3, seed=5)
    for solution in solutions:
        form = canonical(solution).tolist()
        symmetries = random_symmetries(3000, 9, 2)
        images = apply(symmetries, np.repeat(solution[None], 3000, 0))
        # Rename the digits so that the first row reads 1..9.
        names = np.zeros((3000, 10), np.int8)
        np.put_along_axis(names, images[:, :9].astype(np.int64), np.arange(1, 10, dtype=np.int8)[None], axis=1)
        renamed = np.take_along_axis(names, images.astype(np.int64), axis=1)
        assert form <= min(renamed.tolist())


def test_a_grid_with_many_automorphisms():
    """Many symmetries tie on the least form here, which must not depend on which of them comes first."""
    least = parse("123456789456789123789123456231564897564897231897231564312645978645978312978312645")
    shuffled = apply(random_symmetries(20, 9, 7), np.repeat(least[None], 20, 0))
    assert (canonical(shuffled) == least).all()


def test_incomplete_grids_have_no_canonical_solution():
    with pytest.raises(ValueError, match="complete"):
        canonical(np.zeros(81, int))


@pytest.mark.parametrize(("size", "count"), [(4, 30), (6, 3)])
def test_canonical_puzzle_is_the_brute_force_minimum(size, count):
    puzzles, _ = generate(count, size=size, seed=3)
    for puzzle in [*puzzles, np.zeros(size * size, np.int8)]:
        assert tuple(canonical_puzzle(puzzle).tolist()) == min(relatives(puzzle, size))


@pytest.mark.parametrize("size", [4, 6])
def test_canonical_puzzle_is_invariant_and_agrees_with_canonical_on_full_grids(size):
    puzzles, solutions = generate(200, size=size, seed=6)
    images = apply(random_symmetries(200, size, 3), puzzles)
    assert (canonical_puzzle(images) == canonical_puzzle(puzzles)).all()
    assert (canonical_puzzle(solutions) == canonical(solutions)).all()


def test_canonical_puzzle_of_nine_is_refused():
    with pytest.raises(ValueError, match="use `canonical`"):
        canonical_puzzle(np.zeros(81, int))


@pytest.mark.parametrize("size", [4, 6, 9])
def test_no_symmetry_crosses_a_split(size):
    puzzles, solutions = generate(300, size=size, seed=7)
    split = split_of(puzzles, solutions, size, shares=(0.5, 0.25, 0.25))
    assert set(split.tolist()) == {0, 1, 2}
    for seed in range(3):
        symmetries = random_symmetries(300, size, seed)
        images, answers = apply(symmetries, puzzles), apply(symmetries, solutions)
        assert (split_of(images, answers, size, shares=(0.5, 0.25, 0.25)) == split).all()


def test_nine_by_nine_puzzles_of_one_solution_stay_together():
    _, solutions = generate(50, seed=8)
    blank = np.zeros_like(solutions)
    assert (split_of(blank, solutions, 9) == split_of(solutions, solutions, 9)).all()


def test_shares_are_kept_and_the_hash_is_pinned():
    puzzles, solutions = generate(5000, size=6, seed=9)
    split = split_of(puzzles, solutions, 6)
    assert np.allclose(np.bincount(split, minlength=3) / 5000, [0.9, 0.05, 0.05], atol=0.015)
    assert SPLITS == ("train", "validation", "test")
    # Stable across machines and versions, or a model would be tested on what it was trained on.
    assert "".join(map(str, split_of(puzzles[:12], solutions[:12], 6, shares=(0.4, 0.3, 0.3)))) == PINNED
    assert split_of(puzzles, solutions, 6, shares=(0.0, 0.0, 1.0)).min() == 2


PINNED = "212000001102"


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (1.2, -0.1, -0.1)])
def test_bad_shares_are_refused(shares):
    puzzles, solutions = generate(2, size=4)
    with pytest.raises(ValueError, match="sum to 1"):
        split_of(puzzles, solutions, 4, shares=shares)


def test_split_checks_the_size():
    puzzles, solutions = generate(2, size=4)
    with pytest.raises(ValueError, match="81 cells"):
        split_of(puzzles, solutions, 9)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_random_symmetries_preserve_unique_solutions(size):
    puzzles, solutions = generate(60, size=size, seed=10)
    symmetries = random_symmetries(60, size, 5)
    images, answers = apply(symmetries, puzzles), apply(symmetries, solutions)
    assert images.dtype == np.int8
    assert (np.sort(symmetries.cells, axis=1) == np.arange(size * size)).all()
    assert (symmetries.digits[:, 0] == 0).all()
    assert (np.sort(symmetries.digits, axis=1) == np.arange(size + 1)).all()
    assert is_solution(images, answers).all() and (solve_many(images)[1] == 1).all()
    assert (images != puzzles).any(1).all()


def test_apply_follows_its_definition_row_by_row():
    boards = np.array([[1, 2, 0, 4] * 4, [4, 3, 2, 1] * 4], np.int8)
    cells = np.stack([np.roll(np.arange(16), 1), np.arange(16)[::-1]])
    digits = np.array([[0, 2, 1, 4, 3], [0, 4, 3, 2, 1]], np.int8)
    images = apply(Symmetries(cells, digits), boards)
    for i in range(2):
        assert images[i].tolist() == [digits[i, boards[i, cells[i, c]]] for c in range(16)]


def test_all_128_symmetries_of_four_are_drawn_evenly():
    drawn = random_symmetries(12_800, 4, 3)
    _, counts = np.unique(drawn.cells, axis=0, return_counts=True)
    assert len(counts) == 128 and counts.min() > 55 and counts.max() < 150
    _, counts = np.unique(drawn.digits, axis=0, return_counts=True)
    assert len(counts) == 24


def test_seed_or_generator_decides():
    same = [random_symmetries(5, 9, 4).cells for _ in range(2)]
    assert (same[0] == same[1]).all()
    rng = np.random.default_rng(4)
    assert (random_symmetries(5, 9, rng).cells == same[0]).all()
    assert (random_symmetries(5, 9, rng).cells != same[0]).any()


def test_apply_requires_one_board_per_symmetry():
    with pytest.raises(ValueError, match="expected boards of shape"):
        apply(random_symmetries(3, 9, 0), np.zeros((2, 81), np.int8))
