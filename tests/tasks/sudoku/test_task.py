"""Sudoku as a task: canvases, verdicts, the expert's order, training data that only the seed and the step decide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.denoisers import CountingTable
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Task
from unmask.tasks.sudoku.canonical import canonical, canonical_puzzle
from unmask.tasks.sudoku.files import write_csv
from unmask.tasks.sudoku.solver import is_solution
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask, expert
from unmask.tasks.sudoku.techniques import expert_order


@pytest.fixture(scope="module")
def task() -> SudokuTask:
    return SudokuTask.generate(6, clues="28-40", seed=2)


def test_is_a_task(task: SudokuTask) -> None:
    assert isinstance(task, Task)
    assert (task.name, task.size, len(task)) == ("sudoku", 9, 6)
    assert is_solution(task.puzzles, task.solutions).all()
    canvas = task.canvas([4, 1])
    assert np.array_equal(canvas.tokens.numpy(), task.puzzles[[4, 1]])
    assert np.array_equal(canvas.truth.numpy(), task.solutions[[4, 1]])
    assert canvas.region is not None
    assert canvas.region.all()  # blocks are cut out of the whole board, wherever its first blank stands
    assert task.draw(0, canvas.tokens[0]).count("\n") == 10


def test_a_file_gives_the_same_task(task: SudokuTask, tmp_path: Path) -> None:
    write_csv(tmp_path / "puzzles.csv", task.puzzles)  # the solutions are found again
    read = SudokuTask.read(tmp_path / "puzzles.csv", limit=4)
    assert len(read) == 4
    assert read.source == "puzzles.csv"
    assert np.array_equal(read.solutions, task.solutions[:4])


def test_the_verifier(task: SudokuTask) -> None:
    rows = [0, 1, 2, 3]
    answer = task.canvas(rows).truth.clone()
    blanks = [np.flatnonzero(task.puzzles[row] == 0) for row in rows]
    clue = np.flatnonzero(task.puzzles[2])[0]
    answer[1, blanks[1][0]] = answer[1, blanks[1][0]] % 9 + 1  # a wrong cell
    answer[2, clue] = answer[2, clue] % 9 + 1  # a changed clue, every blank right
    answer[3] = task.canvas([3]).tokens[0]  # nothing filled in
    verdict = task.verify(rows, answer)
    assert verdict.exact.tolist() == [True, False, False, False]
    assert verdict.share.tolist() == pytest.approx([1.0, 1 - 1 / len(blanks[1]), 1.0, 0.0])


def test_a_full_board_is_exact() -> None:
    full = SudokuTask.generate(1, size=4)
    task = SudokuTask(full.solutions, full.solutions)
    verdict = task.verify([0], task.canvas([0]).tokens)
    assert verdict.exact.tolist() == [True]
    assert verdict.share.tolist() == [1.0]
    assert task.stratum(0) == "full"


@pytest.mark.parametrize("forced", [False, True])
def test_expert_order_is_independent_of_the_batch(task: SudokuTask, forced: bool) -> None:
    """Whatever the denoiser fills in. Rows differ in length, so they leave the batch at different steps."""
    denoiser = CountingTable(vocabulary=10, mask_id=0)
    canvas = task.canvas(range(4))
    expected = expert_order(task.puzzles[:4]).order
    assert len({(row >= 0).sum() for row in expected}) > 1
    batch = unmask(denoiser, expert, canvas, forced=forced)
    assert np.array_equal(batch.order.numpy(), expected[:, : batch.order.shape[1]])
    for row in (0, 3):
        only = slice(row, row + 1)
        alone = unmask(denoiser, expert, canvas.rows(only), forced=forced)
        moves = alone.order.shape[1]
        assert torch.equal(alone.order[0], batch.order[row, :moves])
        assert torch.equal(alone.tokens[0], batch.tokens[row])


def test_the_expert_within_blocks(task: SudokuTask) -> None:
    """In blocks of a row, the cells of each row of the board come in the expert's order."""
    canvas = task.canvas([0])
    path = unmask(
        CountingTable(vocabulary=10, mask_id=0), expert, Canvas(canvas.tokens, region=canvas.region), Decoding(block=9)
    )
    order = [cell for cell in expert_order(task.puzzles[:1]).order[0].tolist() if cell >= 0]
    assert path.order[0].tolist() == sorted(order, key=lambda cell: (cell // 9, order.index(cell)))


def test_data_is_a_function_of_seed_and_step() -> None:
    data, again = (SudokuData(size=4, puzzles=40, seed=1) for _ in range(2))
    later = again(7, 8)  # out of order, and from another object
    first, seventh = data(0, 8), data(7, 8)
    assert torch.equal(seventh.tokens, later.tokens)
    assert torch.equal(seventh.truth, later.truth)
    assert not torch.equal(first.tokens, seventh.tokens)
    assert not torch.equal(SudokuData(size=4, puzzles=40, seed=2)(7, 8).tokens, seventh.tokens)
    assert is_solution(seventh.tokens.numpy(), seventh.truth.numpy()).all()


def test_each_epoch_has_every_puzzle_once_under_new_symmetries() -> None:
    data = SudokuData(size=4, puzzles=24)
    epochs = [[data(step, 8) for step in range(start, start + 3)] for start in (0, 3)]
    forms = [np.concatenate([canonical_puzzle(canvas.tokens.numpy()) for canvas in epoch]) for epoch in epochs]
    assert np.array_equal(forms[0], forms[1])
    assert np.array_equal(forms[0], canonical_puzzle(data.boards[0]))
    assert not torch.equal(epochs[0][0].tokens, epochs[1][0].tokens)
    plain = SudokuData(size=4, puzzles=24, augment=False)
    assert torch.equal(plain(0, 8).tokens, plain(3, 8).tokens)


@pytest.mark.parametrize(
    ("size", "form"), [(4, lambda puzzles, _: canonical_puzzle(puzzles)), (9, lambda _, s: canonical(s))]
)
def test_splits_are_disjoint_under_symmetry(size: int, form) -> None:
    seen = []
    for split in ("train", "validation", "test"):
        boards = SudokuData(size=size, puzzles=60 if size == 4 else 12, split=split).boards
        seen.append({board.tobytes() for board in form(*boards)})
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_a_longer_corpus_begins_with_the_shorter_one() -> None:
    short, long = (SudokuData(size=4, puzzles=n, split="test").boards for n in (10, 30))
    assert np.array_equal(short[0], long[0][:10])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tst"}, "split must be one of train, validation, test"),
        ({"puzzles": 0}, "at least one puzzle"),
        ({"puzzles": -5}, "at least one puzzle"),
        ({"seed": -1}, "seed must be in"),
        ({"size": 5}, "size of 4, 6 or 9"),
        ({"clues": "roa"}, "rao, wide, minimal, hard or a range such as 30-40, got 'roa'"),
        ({"clues": "nan"}, "a range such as 30-40"),
        ({"clues": "35-25"}, "low <= high"),
        ({"clues": "3-9"}, "expected 17 to 81 clues"),
        ({"size": 4, "clues": "rao"}, "expected 4 to 16 clues"),
    ],
)
def test_invalid_options_are_refused_on_construction(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SudokuData(**options)


def test_an_empty_split_is_refused() -> None:
    """Full 4x4 boards have two classes: no split but the ones they fall into can be filled."""
    found = []
    for split in ("train", "validation", "test"):
        try:
            found.append(len(SudokuData(size=4, puzzles=1, clues="16-16", split=split).boards[0]))
        except ValueError as error:
            assert "widen the range of clues" in str(error)
    assert found.count(1) in (1, 2)


def test_one_clue_count() -> None:
    puzzles, _ = SudokuData(size=4, puzzles=5, clues="7").boards
    assert ((puzzles > 0).sum(1) == 7).all()
