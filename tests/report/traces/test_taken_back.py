"""What a revision takes back is in the trace, the terminal and the viewer: each shows the canvas of every step as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Trajectory, View
from unmask.decoding.standing import Standing
from unmask.denoisers.loading import load_denoiser
from unmask.report.terminal.boards import Lane, LiveBoards
from unmask.report.traces import record as trace
from unmask.report.traces.reading import read
from unmask.report.viewer import page as viewer
from unmask.schedulers.heuristics import confidence
from unmask.tasks.sudoku.task import SudokuTask

DENOISER = "sudoku-4x4"
GO = "n => { const s = document.getElementById('step'); s.value = n; s.dispatchEvent(new Event('input')); }"
DIGITS = "all => all.map(one => one.matches('.given, .shown') ? Number(one.firstElementChild.textContent) : 0)"
LEFT = ".pane[data-side=left] .cell"
CANVAS = SudokuTask.generate(1, 4, "6-7", "test", 0).canvas([0])


def now_and_then(view: View, standing: Standing) -> Tensor:
    """Doubts a third of what stands, at every third step."""
    doubted = (standing.at[1] % 3 == 0) & (view.step % 3 == 2)
    return torch.where(doubted, 0.0, -torch.inf)


@pytest.fixture(scope="module")
def decoded() -> Trajectory:
    return unmask(load_denoiser(DENOISER), confidence, CANVAS, Decoding(revision=now_and_then))


@pytest.fixture(scope="module")
def traced(decoded: Trajectory) -> trace.Trace:
    about = trace.about_boards(4, DENOISER, "any order, now and then")
    return trace.make_trace(load_denoiser(DENOISER), {"confidence": decoded}, CANVAS, about)


def test_a_trace_of_a_revised_trajectory_is_read_again(traced: trace.Trace, tmp_path: Path) -> None:
    (one,) = traced.trajectories
    assert len(one.taken_back) >= 3 and one.total_logp is None
    assert len(one.order) == len(set(one.order)) + len(one.taken_back)
    trace.write(traced, tmp_path / "trace.json")
    again = read(tmp_path / "trace.json")
    assert again.trajectories[0].taken_back == one.taken_back and again.trajectories[0].order == one.order
    damaged = replace(traced, trajectories=(replace(one, taken_back=one.taken_back[1:]),))
    trace.write(damaged, tmp_path / "damaged.json")
    with pytest.raises(ValueError, match="once more whenever it was taken back"):
        read(tmp_path / "damaged.json")


def test_the_terminal_shows_every_canvas(decoded: Trajectory, traced: trace.Trace) -> None:
    (one,), states = traced.trajectories, decoded.states
    assert states is not None
    lane = Lane("confidence", np.array(one.tokens), one.order, one.step, one.taken_back)
    for step, tokens in enumerate(states.tokens[: lane.steps].tolist()):
        shown = {cell: digit for cell, (_, digit) in lane.standing(step).items()}
        assert shown == {i: t for i, t in enumerate(tokens) if t and not CANVAS.tokens[0, i]}
    live = LiveBoards(CANVAS.tokens[0].numpy(), CANVAS.truth[0].numpy(), [lane])
    live.steps = one.taken_back[0][0] + 1
    assert "taken back at row" in live.line() and "taken back" in live.board(lane).plain
    live.steps = lane.steps
    assert [int(c) for c in live.board(lane).plain.split("\n", 1)[1] if c.isdigit()] == list(one.tokens)


def test_the_viewer_shows_every_canvas(decoded: Trajectory, traced: trace.Trace, opened: Callable) -> None:
    page, states = opened(viewer.page([traced])), decoded.states
    assert states is not None and "tokens taken back" in page.inner_text(".facts")
    (one,) = traced.trajectories
    for step in range(1, one.steps):
        page.evaluate(GO, step)
        assert page.eval_on_selector_all(LEFT, DIGITS) == states.tokens[step].tolist(), step
        gone = page.eval_on_selector_all(LEFT, "all => all.map(one => one.classList.contains('taken-back'))")
        assert [i for i, back in enumerate(gone) if back] == sorted(i for s, i, _ in one.taken_back if s == step - 1)
