"""Sudoku's symmetries at work: splits that no symmetry crosses, and random symmetries to augment training.

Symmetries: digits relabelled, bands and rows in a band permuted, stacks and columns in a stack permuted, and
the transpose where boxes are square. Shapes: N boards, C cells, n digits.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.tasks.sudoku.canonical import canonical, canonical_puzzle
from unmask.tasks.sudoku.grid import as_boards, grid

SPLITS = ("train", "validation", "test")


def split_of(
    puzzles: ArrayLike,
    solutions: ArrayLike,
    size: int,
    shares: tuple[float, float, float] = (0.90, 0.05, 0.05),
) -> NDArray[np.int8]:
    """The split of each puzzle `[N]`, an index into `SPLITS`, by a hash that is the same on every machine.

    Relatives under symmetry always fall on the same side. 9 x 9 goes by the solution (so all puzzles of a
    grid and of its relatives stay together); 4 x 4 and 6 x 6, with 2 and 49 classes of solutions, go by the
    puzzle.
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"expected three shares that sum to 1, got {shares}")
    source = as_boards(solutions if size == 9 else puzzles)
    if source.shape[1] != grid(size).cells:
        raise ValueError(f"expected boards of {grid(size).cells} cells for size {size}, got {source.shape[1]}")
    forms = canonical(source) if size == 9 else canonical_puzzle(source)
    digests = b"".join(blake2b(form.tobytes(), digest_size=8).digest() for form in forms)
    place = np.frombuffer(digests, "<u8") / 2.0**64
    return np.searchsorted(np.cumsum(shares)[:2], place, side="right").astype(np.int8)


@dataclass(frozen=True)
class Symmetries:
    """N symmetries. `cells [N, C]`: new[c] = old[cells[c]]; `digits [N, n + 1]`: old digit to new, 0 to 0."""

    cells: NDArray[np.int64]
    digits: NDArray[np.int8]


def _lines(rng: np.random.Generator, count: int, size: int, band: int) -> NDArray[np.int64]:
    # [N, n] permutations of the lines that keep bands of `band` lines together.
    bands = rng.random((count, size // band, 1)).argsort(axis=1)
    inner = rng.random((count, size // band, band)).argsort(axis=2)
    return (bands * band + inner).reshape(count, size)


def random_symmetries(count: int, size: int, seed: int | np.random.Generator) -> Symmetries:
    """Symmetries drawn uniformly and independently. A Generator is advanced; an int starts a new one."""
    shape = grid(size)
    rng = np.random.default_rng(seed)
    rows = _lines(rng, count, size, shape.box_rows)[:, :, None]
    columns = _lines(rng, count, size, shape.box_cols)[:, None, :]
    cells = rows * size + columns
    if shape.box_rows == shape.box_cols:
        transposed = rng.random(count) < 0.5
        cells = np.where(transposed[:, None, None], cells.transpose(0, 2, 1), cells)
    digits = np.zeros((count, size + 1), np.int8)
    digits[:, 1:] = rng.random((count, size)).argsort(axis=1) + 1
    return Symmetries(cells.reshape(count, size * size), digits)


def apply(symmetries: Symmetries, boards: NDArray) -> NDArray[np.int8]:
    """Board i under symmetry i, `[N, C]`."""
    if boards.shape != symmetries.cells.shape:
        raise ValueError(f"expected boards of shape {symmetries.cells.shape}, got {boards.shape}")
    lines = np.arange(len(boards))[:, None]
    return symmetries.digits[lines, boards[lines, symmetries.cells]]
