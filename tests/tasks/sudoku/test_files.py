"""Files as people share them, and every way in which a row can be wrong."""

from pathlib import Path

import numpy as np
import pytest

from unmask.tasks.sudoku.files import read_csv, write_csv
from unmask.tasks.sudoku.generate import generate
from unmask.tasks.sudoku.grid import format_board, parse
from unmask.tasks.sudoku.techniques import TECHNIQUES, hardest

PUZZLE, SOLUTION = "0321003004002100", "4321123434122143"
SEVERAL = "3040413004000304"  # two solutions
shared = Path(__file__).resolve().parents[4] / "shared" / "data" / "sudoku"


def write(path: Path, text: str | bytes) -> Path:
    file = path / "file.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


@pytest.mark.parametrize(
    "text",
    [
        f"puzzle,solution\n{PUZZLE},{SOLUTION}\n",
        f"Puzzle,Solution\r\n{PUZZLE},{SOLUTION}\r\n",
        f"quizzes,solutions\n{PUZZLE},{SOLUTION}",
        f"SOLUTION,PUZZLE\n{SOLUTION},{PUZZLE}",
        f"\ufeffpuzzle,solution\n{PUZZLE},{SOLUTION}\n",
        f"\ufeff{PUZZLE},{SOLUTION}\n",
        f'"puzzle","solution"\n"{PUZZLE}","{SOLUTION}"\n',
        f"puzzle\n{PUZZLE}\n",
        f"puzzle,solution\n{PUZZLE},\n",
        f"\n\n{PUZZLE}\n\n",
        f"{PUZZLE.replace('0', '.')},{SOLUTION}\n",
        f" {PUZZLE} , {SOLUTION} \n",
    ],
)
def test_common_csv_formats(tmp_path, text):
    read = read_csv(write(tmp_path, text))
    assert [format_board(board) for board in read.puzzles] == [PUZZLE]
    assert [format_board(board) for board in read.solutions] == [SOLUTION]
    assert read.unique.tolist() == [True] and read.extra == {}


def test_lines_and_other_columns_are_kept(tmp_path):
    text = f"id,puzzle,solution,level\n\n7,{PUZZLE},{SOLUTION},easy\n8,{PUZZLE},,hard\n"
    read = read_csv(write(tmp_path, text))
    assert read.lines.tolist() == [3, 4]
    assert read.extra == {"id": ("7", "8"), "level": ("easy", "hard")}
    assert read_csv(write(tmp_path, f"{PUZZLE},{SOLUTION},x\n")).extra == {"column_3": ("x",)}


def test_limit_reads_no_further(tmp_path):
    text = f"puzzle\n{PUZZLE}\n{PUZZLE}\nrubbish\n"
    assert len(read_csv(write(tmp_path, text), limit=2).puzzles) == 2
    with pytest.raises(ValueError, match="line 4"):
        read_csv(write(tmp_path, text), limit=3)
    with pytest.raises(ValueError, match="at least 1"):
        read_csv(write(tmp_path, text), limit=0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"puzzle\n{PUZZLE}\n321003004002100\n", "line 3: .*15.*spreadsheet may have dropped leading zeros"),
        (f"{PUZZLE[1:]}\n", "line 1: .*15.*spreadsheet"),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION[1:]}\n", "line 2: solution .*got 15"),
        (f"puzzle\n{PUZZLE}0\n", "line 2: .*16, 36 or 81 cells, got 17"),
        (f"puzzle\n{PUZZLE[:-1]}x\n", "line 2: .*got 'x' at character 16"),
        (f"puzzle\n{PUZZLE[:-1]}5\n", "line 2: .*digits 0..4"),
        (f"puzzle\n{PUZZLE}\n{'0' * 81}\n", "line 3: .*expected 16 characters"),
        (f"puzzle\n{PUZZLE}\n1100{'0' * 12}\n", "line 3: clues clash: digit 1 stands twice in row 1"),
        ("puzzle\n1000100000000000\n", "line 2: clues clash: digit 1 stands twice in column 1"),
        ("puzzle\n1000010000000000\n", "line 2: clues clash: digit 1 stands twice in box 1"),
        ("puzzle\n1230000400000000\n", "line 2: the puzzle has no solution"),
        (f"puzzle\n{PUZZLE}\n{SEVERAL}\n", "line 3: the puzzle has several solutions; expected exactly one"),
        (f"puzzle,solution\n{PUZZLE},1234341221434321\n", "line 2: the given solution does not solve"),
        (f"puzzle,solution\n{PUZZLE},{PUZZLE}\n", "line 2: the given solution does not solve"),
        (f"puzzle,solution\n{PUZZLE}\n", "line 2: expected 2 fields as in the first row, got 1"),
        (f"puzzle,solution\n{PUZZLE},{SOLUTION},1\n", "line 2: expected 2 fields"),
        (f"puzzle,quizzes\n{PUZZLE},{PUZZLE}\n", "line 1: expected one column"),
        (f"solution\n{SOLUTION}\n", "line 1: expected a column named puzzle"),
        (f"puzzle,a,a\n{PUZZLE},1,2\n", "line 1: expected column names that differ"),
        ("name,age\nx,1\n", "line 1: expected a header with a puzzle column, or a board, got 'name'"),
        ("", "at least one puzzle"),
        ("\n\n", "at least one puzzle"),
        ("puzzle,solution\n", "at least one puzzle"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe\x00", "UTF-8"),
        (b"puzzle\n\x00\x00\x00\n", "binary|NUL|comma-separated"),
        ("puzzle\n" + "0" * 200_000, "comma-separated text.*field"),
        ("puzzle\n" + "0" * 100_000, "got 100000"),
    ],
)
def test_errors_name_the_line_and_the_reason(tmp_path, text, reason):
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=reason) as caught:
        read_csv(file)
    assert "file.csv" in str(caught.value) and len(str(caught.value)) < 600


def test_directories_and_missing_files(tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        read_csv(tmp_path)
    with pytest.raises(ValueError, match=r"cannot read .*No such file"):
        read_csv(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="cannot write"):
        write_csv(tmp_path, [parse(PUZZLE)])


def test_only_the_first_bad_row_is_named_and_the_others_counted(tmp_path):
    with pytest.raises(ValueError, match=r"line 2: .*several.*\(and 1 more rows\)"):
        read_csv(write(tmp_path, f"puzzle\n{SEVERAL}\n{SEVERAL}\n"))


def test_several_solutions_are_kept_on_request_when_one_is_given(tmp_path):
    text = f"puzzle,solution\n{SEVERAL},3241413224131324\n{PUZZLE},{SOLUTION}\n"
    read = read_csv(write(tmp_path, text), unique=False)
    assert read.unique.tolist() == [False, True]
    assert format_board(read.solutions[0]) == "3241413224131324"
    with pytest.raises(ValueError, match=r"line 2: .*none is given"):
        read_csv(write(tmp_path, f"puzzle,solution\n{SEVERAL},\n"), unique=False)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_csv_round_trip(tmp_path, size):
    puzzles, solutions = generate(20, size=size, seed=3)
    file = tmp_path / "out.csv"
    write_csv(file, puzzles, solutions, {"note": [f'"{i}", so' for i in range(20)]})
    read = read_csv(file)
    assert (read.puzzles == puzzles).all() and (read.solutions == solutions).all()
    assert read.extra["note"][7] == '"7", so' and read.lines.tolist() == list(range(2, 22))
    write_csv(file, puzzles)
    assert (read_csv(file).solutions == solutions).all()


def test_columns_of_different_length_are_refused(tmp_path):
    puzzles, solutions = generate(3, size=4)
    with pytest.raises(ValueError, match="one length"):
        write_csv(tmp_path / "out.csv", puzzles, solutions[:2])


# Real files.

needs_shared = pytest.mark.skipif(not shared.is_dir(), reason="the shared data is not on this machine")


@needs_shared
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hkunlp_test1000.csv", 500),
        ("magictour_top1465.csv", 500),
        ("norvig_easy50.csv", 49),
        ("norvig_top95.csv", 95),
        ("royle17_clue.csv", 2000),
    ],
)
def test_stated_difficulty_agrees_with_ours(name, count):
    """Those labels know naked singles, hidden singles, then locked candidates; pairs and triples count as beyond."""
    read = read_csv(shared / name)
    assert len(read.puzzles) == count
    stated, ours = np.array(read.extra["weakest_technique"]), hardest(read.puzzles)
    assert ((stated == "naked_singles") == (ours == TECHNIQUES.index("naked_single"))).all()
    assert ((stated == "hidden_singles") == (ours == TECHNIQUES.index("hidden_single"))).all()
    assert (ours[stated == "locked_candidates"] <= TECHNIQUES.index("locked_candidate")).all()
    assert (read.extra["clues"] == (read.puzzles > 0).sum(1).astype(str)).all()


@needs_shared
def test_the_paper_corpus():
    read = read_csv(shared / "rao_5000.csv")
    ours = hardest(read.puzzles)
    assert len(ours) == 5000
    assert (ours == 0).mean() == pytest.approx(0.8162) and (ours <= 1).mean() == pytest.approx(0.974)


@needs_shared
@pytest.mark.parametrize(
    ("name", "several"),
    [("d1_4x4_test_sudoku.csv", 124), ("pcsampler_sudoku.csv", 124), ("anantmehta_4x4_train_sudoku.csv", 0)],
)
def test_published_four_by_four_sets(name, several):
    read = read_csv(shared / name, unique=False)
    assert (~read.unique).sum() == several
    if several:
        with pytest.raises(ValueError, match=f"several solutions.*and {several - 1} more"):
            read_csv(shared / name)
