"""What the loop costs beyond its forwards, and what pricing only eligible positions saves. Ratios of CPU time, interleaved.

CPU time of the process, not wall time: a busy machine slows both sides of a ratio, and the median over rounds drops outliers.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import price
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.heuristics import confidence
from unmask.tasks.sudoku.task import SudokuTask

ROUNDS = 3
ALONE = """
import sys
sys.path.insert(0, {tests!r})
import test_speed
print(*test_speed.measured())
"""


def ratio(first: Callable[[], object], second: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median over rounds of CPU time of ``first`` over that of ``second``, one after the other in each round."""
    for call in (first, second):
        call()
    found = []
    for _ in range(rounds):
        times = []
        for call in (first, second):
            began = time.process_time()
            call()
            times.append(time.process_time() - began)
        found.append(times[0] / times[1])
    return statistics.median(found)


@torch.no_grad()
def measured() -> tuple[float, float]:
    """Bare forwards over decoding (1: the loop is free), and the whole head over eligible positions only (1: nothing is saved)."""
    torch.set_num_threads(1)
    denoiser = load_denoiser("sudoku-9x9-imperfect")
    tokens = SudokuTask.generate(6, clues="52-54").canvas(range(6)).tokens
    states: list[Tensor] = []
    unmask(denoiser, confidence, tokens, on_step=lambda step: states.append(step.view.tokens), record=False)
    overhead = ratio(
        lambda: [denoiser.logits(denoiser.hidden(state)) for state in states],
        lambda: unmask(denoiser, confidence, tokens, record=False),
    )

    config = TransformerConfig(
        vocab_size=32_000, width=128, n_layers=2, n_heads=4, ffn=256, mask_id=31_999, max_length=64
    )
    language = Transformer(config).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()
    canvas = torch.randint(31_999, (1, 64), generator=torch.Generator().manual_seed(1))
    canvas[:, 48:] = language.mask_id

    def whole_head() -> Tensor:
        """Confidence in blocks of 8 as decoders of these models do it: the head and its prices over the whole canvas."""
        tokens = canvas.clone()
        for start in range(48, 64, 8):
            for _ in range(8):
                prices = price(language.logits(language.hidden(tokens)[0]), language.forbidden_ids)
                among = prices.confidence.masked_fill(tokens[0] != language.mask_id, -torch.inf)
                position = start + int(among[start : start + 8].argmax())
                tokens[0, position] = prices.best[position]
        return tokens

    def ours() -> Tensor:
        return unmask(language, confidence, canvas, Decoding(block=8), record=False).tokens

    assert torch.equal(whole_head(), ours())
    return overhead, ratio(whole_head, ours)


@pytest.fixture(scope="module")
def ratios() -> tuple[float, float]:
    """In a process of its own: here every call is checked for its shapes, which is not what users pay."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(tests=str(Path(__file__).parent))],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    overhead, saved = map(float, done.stdout.split())
    return overhead, saved


def test_decoding_is_mostly_forwards(ratios: tuple[float, float]) -> None:
    assert ratios[0] >= 0.6


def test_pricing_only_eligible_positions_is_faster(ratios: tuple[float, float]) -> None:
    assert ratios[1] > 1.5
