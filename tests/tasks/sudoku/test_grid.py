"""Geometry, parsing and rendering of boards."""

import numpy as np
import pytest

from unmask.tasks.sudoku.grid import as_boards, format_board, grid, parse, pretty


@pytest.mark.parametrize(("size", "peers"), [(4, 7), (6, 12), (9, 20)])
def test_units_and_peers_follow_from_the_definition(size, peers):
    shape = grid(size)
    assert shape.units.shape == (3 * size, size) and shape.peers.shape == (shape.cells, peers)
    for cell in range(shape.cells):
        row, column = divmod(cell, size)
        same = [
            other
            for other in range(shape.cells)
            if other != cell
            and (
                other // size == row
                or other % size == column
                or (
                    other // size // shape.box_rows == row // shape.box_rows
                    and other % size // shape.box_cols == column // shape.box_cols
                )
            )
        ]
        assert shape.peers[cell].tolist() == same
        for unit in shape.home[cell]:
            assert cell in shape.units[unit]
    # Rows, then columns, then boxes; every cell once in each kind.
    for kind in range(3):
        assert sorted(shape.units[kind * size : (kind + 1) * size].ravel()) == list(range(shape.cells))
    assert shape.units[0].tolist() == list(range(size))
    assert shape.units[size].tolist() == list(range(0, shape.cells, size))
    assert shape.row[size] == 1 and shape.column[size + 1] == 1 and shape.box[-1] == size - 1


def test_boxes_of_six_are_two_rows_by_three_columns():
    assert grid(6).units[12].tolist() == [0, 1, 2, 6, 7, 8]
    assert grid(6).units[13].tolist() == [3, 4, 5, 9, 10, 11]


def test_geometry_is_shared_and_cannot_be_written():
    assert grid(9) is grid(9)
    with pytest.raises(ValueError, match="read-only"):
        grid(9).units[0, 0] = 5


def test_unknown_size_is_refused():
    with pytest.raises(ValueError, match="4, 6 or 9, got 16"):
        grid(16)


def test_parse_and_format_are_inverse():
    text = "0321003004002100"
    board = parse(text)
    assert board.dtype == np.int8 and format_board(board) == text
    assert (parse(text.replace("0", ".")) == board).all()
    assert format_board(board, blank=".") == text.replace("0", ".")
    board[0] = 4  # a parsed board is the caller's own


@pytest.mark.parametrize(
    ("text", "size", "reason"),
    [
        ("123", None, "16, 36 or 81 cells, got 3"),
        ("0" * 80, 9, "81 characters for a 9 x 9 board, got 80"),
        ("0" * 15 + "5", None, "digits 0..4 or '.', got '5' at character 16"),
        ("0" * 15 + "٣", None, "got '٣'"),
        ("0" * 40 + "x" + "0" * 40, None, "got 'x' at character 41"),
    ],
)
def test_malformed_text_is_refused(text, size, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text, grid(size) if size else None)


@pytest.mark.parametrize(
    ("boards", "reason"),
    [
        (np.zeros((2, 2, 16), int), "shape"),
        (np.zeros(16), "integers"),
        (np.full(16, 5), "digits 0..4"),
        (np.full(16, -1), "digits 0..4"),
        (np.full(81, 300), "digits 0..9"),
        (np.zeros(25, int), "got 25"),
    ],
)
def test_bad_boards_are_refused(boards, reason):
    with pytest.raises(ValueError, match=reason):
        as_boards(boards)


def test_pretty_draws_the_boxes():
    assert pretty(parse("1234341221434321")) == "\n".join(
        [" 1 2 | 3 4", " 3 4 | 1 2", "-----+-----", " 2 1 | 4 3", " 4 3 | 2 1"]
    )
    lines = pretty(np.zeros(36, int)).splitlines()
    assert len(lines) == 6 + 2 and lines[2] == lines[5] == "-------+-------"
