"""The paper's own numbers, by the label of the table in its LaTeX source. They are of other denoisers: for orientation."""

from __future__ import annotations

SUDOKU: dict[str, tuple[float, float]] = {
    "random": (62.7, 89.80),
    "confidence": (82.0, 98.56),
    "margin": (80.0, 98.38),
    "entropy": (81.0, 98.53),
    "expert": (76.6, 96.18),
    "sas": (91.8, 99.21),
}
"""tab:sudoku: puzzles and cells, %. SMDM of 1 B parameters on Rao's corpus."""

TAU: dict[str, tuple[float, float, float]] = {
    "random": (-0.002, 0.49, 0.00),
    "confidence": (0.514, 1.00, 0.58),
    "margin": (0.516, 0.99, 0.59),
    "entropy": (0.513, 1.00, 0.58),
    "sas": (0.735, 0.59, 0.47),
}
"""tab:tau_sudoku: mean, share above 0, share above 0.5. The last row contradicts itself: with 41 % of the values at most 0 and
12 % at most 0.5 the mean is at most 0.53."""

SECOND_STAGE: dict[str, tuple[float, float]] = {"expert": (76.6, 97.8), "sas": (91.8, 97.5)}
"""tab:stage2_sudoku: puzzles before and after, %."""

CROSS_SCALE: dict[str, tuple[float, float]] = {"rival-upo": (80.0, 76.0), "sas": (95.0, 91.0)}
"""tab:sudoku_cross_scale_comparison: 4×4 and 9×9, %; Hong et al. is UPO."""
