"""The expert against a slow one written over sets, and boards that need each technique."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from unmask.tasks.sudoku.files import read_csv
from unmask.tasks.sudoku.generate import generate
from unmask.tasks.sudoku.grid import grid, parse
from unmask.tasks.sudoku.solver import solve
from unmask.tasks.sudoku.symmetry import apply, random_symmetries
from unmask.tasks.sudoku.techniques import FALLBACK, TECHNIQUES, cell_classes, expert_order, hardest

shared = Path(__file__).resolve().parents[4] / "shared" / "data" / "sudoku"

# Boards on which the next placement needs exactly that technique, and nothing but singles after it.
STATES = {
    (9, 2): "824651397931784562765392814172430609348960201659120400013076900297043106086019700",
    (9, 3): "059341260046582091020679040462758913517936482983124070630805020295407030070203050",
    (9, 4): "003860217120003658680012439261070893008321760730689120572138946306207581810056372",
    (9, 5): "563894271090031568108560349735126984981345726642978153859610430016053890300089615",
    (9, 6): "180073604504601738673084201450807963300065847867439512735008426916742385248356179",
    (9, 7): "429563178710940560605710094100697450960854017574231986296375841351486729847129635",
    (6, 2): "563004004000035040406035351462642000",
    (6, 4): "004201210040021004400120142006300412",
    (6, 5): "536412142563304620620004260040400206",
    (6, 6): "340050501304005430430500003645654003",
    (6, 7): "416500523641001405045310104250052104",
}


class SlowExpert:
    """The same rules over Python sets, straight from their definitions."""

    def __init__(self, size):
        shape = grid(size)
        self.size, self.cells = size, range(size * size)
        self.units = [set(unit) for unit in shape.units.tolist()]
        self.peers = [set(line) for line in shape.peers.tolist()]
        self.box = shape.box.tolist()

    def marks(self, board):
        digits = set(range(1, self.size + 1))
        return {c: digits - {board[p] for p in self.peers[c]} for c in self.cells if board[c] == 0}

    def single(self, marks):
        for cell in sorted(marks):
            if len(marks[cell]) == 1:
                return cell, min(marks[cell]), 0
        for cell in sorted(marks):
            for digit in sorted(marks[cell]):
                for unit in self.units:
                    if cell in unit and [c for c in unit if digit in marks.get(c, ())] == [cell]:
                        return cell, digit, 1
        return None

    def remove(self, marks, cells, digits):
        hit = [c for c in cells if c in marks and marks[c] & digits]
        for c in hit:
            marks[c] -= digits
        return bool(hit)

    def naked(self, marks, count):
        for cells in combinations(sorted(c for c in marks if 0 < len(marks[c]) <= count), count):
            digits = set.union(*(marks[c] for c in cells))
            units = [unit for unit in self.units if unit.issuperset(cells)]
            if len(digits) == count and self.remove(marks, set().union(*units) - set(cells), digits):
                return True
        return False

    def locked(self, marks):
        for cell in sorted(marks):
            row, column, box = [unit for unit in self.units if cell in unit]
            for digit in sorted(marks[cell]):
                for source, target in ((box, row), (box, column), (row, box), (column, box)):
                    places = {c for c in source if digit in marks.get(c, ())}
                    if places <= target and self.remove(marks, target - source, {digit}):
                        return True
        return False

    def wing(self, marks):
        bivalue = sorted(c for c in marks if len(marks[c]) == 2)
        for pivot in bivalue:
            for a, b in combinations([c for c in bivalue if c in self.peers[pivot]], 2):
                z = marks[a] & marks[b]
                wing = len(z) == 1 and not z & marks[pivot] and marks[a] | marks[b] == z | marks[pivot]
                if wing and self.remove(marks, self.peers[a] & self.peers[b], z):
                    return True
        return False

    def rectangle(self, marks):
        n = self.size
        lines = [(r, c, s, d) for r in range(n) for c in range(n) for s in range(r + 1, n) for d in range(c + 1, n)]
        for r, c, s, d in lines:
            corners = [r * n + c, r * n + d, s * n + c, s * n + d]
            if len({self.box[x] for x in corners}) != 2 or not all(x in marks for x in corners):
                continue
            for odd in corners:
                rest = [marks[x] for x in corners if x != odd]
                if len(rest[0]) == 2 and rest[0] == rest[1] == rest[2] and marks[odd] > rest[0]:
                    return self.remove(marks, [odd], set(rest[0]))
        return False

    def eliminate(self, marks, top):
        steps = [lambda m: self.naked(m, 2), lambda m: self.naked(m, 3), self.locked, self.wing, self.rectangle]
        for kind, step in enumerate(steps[: max(0, top - 1)], start=2):
            if step(marks):
                return kind
        return -1

    def order(self, puzzle, solution):
        board, path = puzzle.tolist(), []
        while 0 in board:
            marks, used = self.marks(board), 0
            while (found := self.single(marks)) is None:
                kind = self.eliminate(marks, 6)
                used = max(used, kind)
                if kind < 0:
                    cell = min(marks, key=lambda c: (len(marks[c]), c))
                    found, used = (cell, solution[cell], 0), FALLBACK
                    break
            cell, digit, kind = found
            board[cell] = digit
            path.append((cell, max(used, kind)))
        assert board == solution.tolist()
        return path

    def classes(self, board):
        classes = [-1 if digit else FALLBACK for digit in board]
        marks = self.marks(board)
        for level in range(1, 7):
            while level > 1 and self.eliminate(marks, level) >= 0:
                pass
            for cell in marks:
                alone = any(
                    cell in unit and any([c for c in unit if d in marks.get(c, ())] == [cell] for d in marks[cell])
                    for unit in self.units
                )
                if classes[cell] == FALLBACK and (len(marks[cell]) == 1 or alone):
                    classes[cell] = 0 if level == 1 and len(marks[cell]) == 1 else level
        return classes


@pytest.fixture(scope="module")
def hard():
    """Puzzles of every class: sparse random ones, and the boards above."""
    puzzles, solutions = generate(150, clues=(24, 27), seed=12, max_tries=5000)
    states = np.stack([parse(text) for (size, _), text in STATES.items() if size == 9])
    answers = np.stack([solution for board in states if (solution := solve(board)) is not None])
    return np.concatenate([puzzles, states]), np.concatenate([solutions, answers])


def test_agrees_with_the_slow_expert(hard):
    puzzles, solutions = (array[-36:] for array in hard)
    expert, slow = expert_order(puzzles), SlowExpert(9)
    assert set(np.unique(expert.technique)) == set(range(-1, 8))
    for i in range(len(puzzles)):
        path = slow.order(puzzles[i], solutions[i])
        assert list(zip(expert.order[i].tolist(), expert.technique[i].tolist(), strict=True))[: len(path)] == path


@pytest.mark.parametrize(("size", "clues"), [(4, (4, 6)), (6, (8, 11))])
def test_agrees_with_the_slow_expert_on_small_boards(size, clues):
    puzzles, solutions = generate(40, size=size, clues=clues, seed=13, max_tries=50_000)
    expert, slow = expert_order(puzzles), SlowExpert(size)
    for i in range(len(puzzles)):
        path = slow.order(puzzles[i], solutions[i])
        assert list(zip(expert.order[i].tolist(), expert.technique[i].tolist(), strict=True))[: len(path)] == path


@pytest.mark.parametrize(("size", "clues"), [(4, (4, 10)), (6, (8, 20)), (9, (23, 40))])
def test_every_blank_is_placed_once_and_padding_follows(size, clues):
    puzzles, _ = generate(200, size=size, clues=clues, seed=14, max_tries=50_000)
    expert = expert_order(puzzles)
    blanks = (puzzles == 0).sum(1)
    assert expert.order.shape == expert.technique.shape == (200, blanks.max())
    assert expert.order.dtype == np.int16 and expert.technique.dtype == np.int8
    for puzzle, order, technique, count in zip(puzzles, expert.order, expert.technique, blanks, strict=True):
        assert sorted(order[:count]) == np.flatnonzero(puzzle == 0).tolist()
        assert (order[count:] == -1).all() and (technique[count:] == -1).all() and technique[:count].min() >= 0
    assert (expert.fallbacks == (expert.technique == FALLBACK).sum(1)).all()


def test_singles_are_forced_by_the_board_before_them():
    """Without a look at the solution: a naked single has one digit left, a hidden one has one place."""
    puzzles, solutions = generate(30, seed=15)
    expert, slow = expert_order(puzzles), SlowExpert(9)
    for puzzle, solution, order, technique in zip(puzzles, solutions, expert.order, expert.technique, strict=True):
        board = puzzle.copy()
        for cell, kind in zip(order, technique, strict=True):
            if cell < 0:
                break
            marks = slow.marks(board.tolist())
            naked = [c for c in sorted(marks) if len(marks[c]) == 1]
            if kind == 0:
                assert cell == naked[0] and marks[cell] == {solution[cell]}
            else:
                assert not naked
            board[cell] = solution[cell]


@pytest.mark.parametrize(("key", "text"), STATES.items())
def test_boards_that_need_exactly_one_technique(key, text):
    size, needed = key
    board = parse(text)
    assert len(board) == size * size
    expert = expert_order(board)
    assert expert.technique[0, 0] == needed and (expert.technique[0, 1:] <= 1).all()
    assert hardest(board)[0] == needed
    assert expert.fallbacks[0] == (needed == FALLBACK)
    assert cell_classes(board)[expert.order[0, 0]] == needed


def test_rows_are_independent(hard):
    puzzles, _ = hard
    whole = expert_order(puzzles)
    for i in (0, 77, len(puzzles) - 1):
        alone = expert_order(puzzles[i : i + 1])
        assert (whole.order[i, : alone.order.shape[1]] == alone.order[0]).all()
        assert (whole.technique[i, : alone.order.shape[1]] == alone.technique[0]).all()


def test_memoryless(hard):
    """From any board on its path the expert goes on as it did."""
    puzzles, solutions = hard
    expert = expert_order(puzzles)
    for i in (3, 50, 120):
        order, technique = expert.order[i], expert.technique[i]
        for step in (5, 17, 30):
            board = puzzles[i].copy()
            board[order[:step]] = solutions[i][order[:step]]
            rest = expert_order(board)
            count = rest.order.shape[1]
            assert (rest.order[0] == order[step : step + count]).all()
            assert (rest.technique[0] == technique[step : step + count]).all()


def test_difficulty_survives_symmetry(hard):
    """The order does not (row-major ties); the hardest technique and the class of every cell do."""
    puzzles, _ = hard
    symmetries = random_symmetries(len(puzzles), 9, 3)
    images = apply(symmetries, puzzles)
    assert (hardest(puzzles) == hardest(images)).all()
    assert (cell_classes(images) == np.take_along_axis(cell_classes(puzzles), symmetries.cells, axis=1)).all()


def test_cell_classes_agree_with_the_reference_and_the_next_placement(hard):
    puzzles, solutions = hard
    expert, slow = expert_order(puzzles), SlowExpert(9)
    for i in range(len(puzzles) - 6, len(puzzles)):
        board = puzzles[i].copy()
        for step, cell in enumerate(expert.order[i]):
            if cell < 0:
                break
            classes = cell_classes(board)
            if step % 12 == 0:
                assert classes.tolist() == slow.classes(board.tolist())
            assert ((classes == -1) == (board > 0)).all()
            assert classes[board == 0].min() == expert.technique[i, step]
            board[cell] = solutions[i][cell]


def test_classes_of_a_batch_and_of_boards_with_mistakes():
    puzzles, solutions = generate(5, seed=16)
    assert cell_classes(solutions).max() == -1
    assert (cell_classes(puzzles)[2] == cell_classes(puzzles[2])).all()
    broken = puzzles.copy()
    broken[:, :9] = 1
    classes = cell_classes(broken)
    assert ((classes == -1) == (broken > 0)).all()


# Puzzles with several or no solutions.

SEVERAL = "3040413004000304"


def test_puzzles_with_several_solutions_need_a_stated_one():
    with pytest.raises(ValueError, match="puzzle 0 has several"):
        expert_order(parse(SEVERAL))


@pytest.mark.parametrize(
    ("puzzle", "text"),
    [
        (SEVERAL, "3241413214232314"),
        (SEVERAL, "3241413224131324"),
        ("1020200031424200", "1423231431424231"),  # a unique rectangle would apply, and mislead
    ],
)
def test_the_stated_solution_is_followed_to_its_end(puzzle, text):
    board, solution = parse(puzzle), parse(text)
    expert = expert_order(board, solution)
    assert expert.fallbacks[0] >= 1 and TECHNIQUES.index("unique_rectangle") not in expert.technique
    for cell, kind in zip(expert.order[0].tolist(), expert.technique[0].tolist(), strict=True):
        marks = SlowExpert(4).marks(board.tolist())
        assert solution[cell] in marks[cell] and (kind != 0 or len(marks[cell]) == 1)
        board[cell] = solution[cell]
    assert (board == solution).all()


def test_wrong_or_missing_solutions_are_refused():
    with pytest.raises(ValueError, match="puzzle 0 has none"):
        expert_order(parse("1230000400000000"))
    with pytest.raises(ValueError, match="solution 0 is not"):
        expert_order(parse(SEVERAL), parse("1234341221434321"))


def test_full_boards_need_nothing():
    _, solutions = generate(3, size=4)
    expert = expert_order(solutions)
    assert expert.order.shape == (3, 0) and hardest(solutions).tolist() == [-1, -1, -1]


@pytest.mark.skipif(not shared.is_dir(), reason="the shared data is not on this machine")
@pytest.mark.parametrize("name", ["royle17_clue.csv", "magictour_top1465.csv"])
def test_places_the_right_digits_on_real_hard_puzzles(name):
    """Deductions that removed a true digit would make a later single contradict the solution."""
    read = read_csv(shared / name, limit=300)
    expert = expert_order(read.puzzles)
    slow = SlowExpert(9)
    for i in range(0, 300, 40):
        path = list(zip(expert.order[i].tolist(), expert.technique[i].tolist(), strict=True))
        assert slow.order(read.puzzles[i], read.solutions[i]) == [step for step in path if step[0] >= 0]
