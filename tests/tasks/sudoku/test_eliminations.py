"""One deduction at a time, on marks made by hand: only what the rule allows goes."""

import numpy as np

from unmask.tasks.sudoku.eliminations import locked_candidate, naked_pair, naked_triple, unique_rectangle, xy_wing
from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.techniques import _related

SHAPE = grid(9)
ARGUMENTS = (SHAPE.home, SHAPE.units, _related(SHAPE))
ALL = 0b111_111_111


def bits(*digits):
    return sum(1 << (digit - 1) for digit in digits)


def run(rule, **cells):
    """Marks are full but where given as r<row>c<column>, from 1; returns what the first instance removed, per cell."""
    marks = np.full(81, ALL, np.int64)
    for name, mask in cells.items():
        marks[(int(name[1]) - 1) * 9 + int(name[3]) - 1] = mask
    before = marks.copy()
    assert rule(marks, *ARGUMENTS) == (before != marks).any()
    return {divmod(int(c), 9): int(before[c] ^ marks[c]) for c in np.flatnonzero(before != marks)}


def test_naked_pair_clears_every_unit_that_both_share():
    gone = run(naked_pair, r1c1=bits(1, 2), r1c2=bits(1, 2))
    others = {(0, c) for c in range(2, 9)} | {(r, c) for r in (1, 2) for c in range(3)}
    assert set(gone) == others and set(gone.values()) == {bits(1, 2)}
    assert run(naked_pair, r1c1=bits(1, 2), r1c2=bits(2)) == gone
    assert run(naked_pair, r1c1=bits(1, 2), r1c2=bits(1, 3)) == {}
    assert run(naked_pair, r1c1=bits(1, 2), r5c5=bits(1, 2)) == {}
    assert run(naked_pair, r1c1=bits(1, 2, 3), r1c2=bits(1, 2, 3)) == {}


def test_naked_triple_may_be_spread_over_pairs():
    gone = run(naked_triple, r1c1=bits(1, 2), r4c1=bits(2, 3), r7c1=bits(1, 3))
    assert set(gone) == {(r, 0) for r in range(9)} - {(0, 0), (3, 0), (6, 0)}
    assert set(gone.values()) == {bits(1, 2, 3)}
    assert run(naked_triple, r1c1=bits(1, 2), r4c1=bits(2, 3), r7c1=bits(1, 4)) == {}
    # The first sees both others, but no unit holds all three.
    assert run(naked_triple, r1c1=bits(1, 2, 3), r1c4=bits(1, 2, 3), r2c2=bits(1, 2, 3)) == {}


def test_pointing_and_claiming():
    without = ALL & ~bits(5)
    box = {f"r{r}c{c}": without for r in (2, 3) for c in (1, 2, 3)}
    assert run(locked_candidate, **box) == {(0, c): bits(5) for c in range(3, 9)}  # pointing along row 1
    row = {f"r4c{c}": without for c in range(4, 10)}
    assert run(locked_candidate, **row) == {(r, c): bits(5) for r in (4, 5) for c in range(3)}  # claiming box 4
    assert run(locked_candidate, **{name: mask for name, mask in box.items() if name != "r2c3"}) == {}


def test_xy_wing_removes_z_where_both_wings_look():
    gone = run(xy_wing, r1c1=bits(1, 2), r1c9=bits(1, 3), r5c1=bits(2, 3))
    assert gone == {(4, 8): bits(3)}
    gone = run(xy_wing, r1c1=bits(1, 2), r2c2=bits(1, 3), r1c9=bits(2, 3))
    assert gone == {(r, c): bits(3) for r, c in [(0, 1), (0, 2), (1, 6), (1, 7), (1, 8)]}
    assert run(xy_wing, r1c1=bits(1, 2), r1c9=bits(1, 3), r5c1=bits(2, 4)) == {}
    assert run(xy_wing, r1c1=bits(1, 2), r1c9=bits(1, 3), r5c5=bits(2, 3)) == {}
    assert run(xy_wing, r1c1=bits(1, 2), r1c9=bits(1, 3), r5c1=bits(1, 3)) == {}


def test_unique_rectangle_lies_in_two_boxes():
    pair = bits(4, 7)
    assert run(unique_rectangle, r1c1=pair, r1c4=pair, r2c1=pair) == {(1, 3): pair}
    assert run(unique_rectangle, r1c1=pair, r4c1=pair, r4c2=pair) == {(0, 1): pair}
    assert run(unique_rectangle, r1c1=pair, r1c4=pair, r4c1=pair) == {}  # four boxes
    assert run(unique_rectangle, r1c1=pair, r1c2=pair, r2c1=pair) == {}  # one box
    assert run(unique_rectangle, r1c1=pair, r1c4=pair, r2c1=bits(4, 8)) == {}
    assert run(unique_rectangle, r1c1=pair, r1c4=pair, r2c1=pair, r2c4=0) == {}  # fourth corner filled
