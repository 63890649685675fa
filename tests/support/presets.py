"""Presets of trainings that take seconds, as TOML."""

from __future__ import annotations

TINY = """# An order in seconds.
denoiser = "sudoku-4x4"
[policy]
kind = "grid"
width = 4
n_layers = 1
[data]
size = 4
puzzles = 40
clues = "5-7"
[training]
steps = 6
prompts = 2
states = 16
correctness = 0.5
validate = 4
validate_every = 3
save_every = 2
"""


TINY_STAGE = """# A second stage in seconds.
denoiser = "sudoku-4x4"
order = "confidence"
validate = 4
[data]
size = 4
puzzles = 8
clues = "5-7"
[training]
samples = 64
batch = 8
lr = 1e-3
log_every = 4
save_every = 4
"""
