"""The paper's own numbers, by the label of the table in its LaTeX source. They are of other denoisers: for orientation."""

from __future__ import annotations

SUDOKU: dict[int, dict[str, tuple[float, float | None]]] = {
    9: {
        "random": (62.7, 89.80),
        "confidence": (82.0, 98.56),
        "margin": (80.0, 98.38),
        "entropy": (81.0, 98.53),
        "expert": (76.6, 96.18),
        "sas": (91.8, 99.21),
    },
    4: {"sas": (95.0, None)},
}
"""By the size of the board: puzzles and cells, %. tab:sudoku: SMDM of 1 B parameters on Rao's corpus. Of 4×4 boards
tab:sudoku_cross_scale_comparison has puzzles alone."""

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

MATH_CODE: dict[str, dict[str, tuple[float, ...]]] = {
    "arithmetic": {
        "confidence": (0.620, 0.728, 0.744, 0.628, 0.760, 0.758, 0.765, 0.810, 0.810),
        "margin": (0.608, 0.742, 0.740, 0.640, 0.794, 0.796, 0.628, 0.800, 0.815),
        "entropy": (0.600, 0.740, 0.700, 0.620, 0.790, 0.790, 0.792, 0.798, 0.802),
        "sas": (0.660, 0.788, 0.756, 0.760, 0.810, 0.800, 0.793, 0.825, 0.827),
    },
    "code": {
        "confidence": (0.373, 0.400, 0.388, 0.395, 0.396, 0.387, 0.385, 0.392, 0.388),
        "margin": (0.333, 0.390, 0.388, 0.363, 0.380, 0.378, 0.385, 0.388, 0.380),
        "entropy": (0.323, 0.388, 0.396, 0.388, 0.385, 0.378, 0.390, 0.390, 0.393),
        "sas": (0.375, 0.405, 0.416, 0.410, 0.407, 0.400, 0.407, 0.395, 0.395),
    },
}
"""tab:math_code_gen: LLaDA-8B on GSM8K and MBPP, 128, 256 and 512 tokens, in 1, 4 and 8 blocks each."""

TRANSFER: dict[tuple[str, str], dict[int, float]] = {
    ("arithmetic", "code"): {1: 1.5, 4: 1.4, 8: 0.33},
    ("code", "arithmetic"): {1: 8.5, 4: 0.27, 8: 0.8},
}
"""tab:cross_domain_transfer: points over the strongest heuristic at 256 tokens, by the number of blocks. By its own
tab:math_code_gen, where margin has 0.640 and 0.796, the first and the last of the second row are +7.3 and +0.7."""

HIDDEN: dict[str, dict[int, float]] = {
    "features": {1: 66.0, 2: 74.8, 4: 78.8},
    "hidden": {1: 47.8, 2: 70.0, 4: 75.4},
}
"""tab:gsm8k-hidden-policy: GSM8K, 128 tokens, %, by the number of blocks."""
