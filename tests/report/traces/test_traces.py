"""Traces equal the decoding, survive a round trip through their file, and invalid files are refused."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.denoisers import CountingTable, Fixed, text_denoiser
from unmask.cli.view import View as ViewCommand
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, View
from unmask.denoisers.loading import load_denoiser
from unmask.generation.generate import generate
from unmask.generation.text_canvas import as_turns, load_tokenizer
from unmask.report.traces import format as trace_file
from unmask.report.traces import record as trace
from unmask.report.traces.reading import from_json
from unmask.report.viewer import page as viewer
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask

NAMES = ("confidence", "margin", "gt_logp", "look_ahead")
WORDS = ["<pad>", "<end>", " the", "</script><script>", "\n", *"abcdefg", "[mask]"]


@pytest.fixture(scope="module")
def four() -> dict[str, Any]:
    """Three 4×4 puzzles, decoded in four orders at once."""
    denoiser = load_denoiser("sudoku-4x4")
    schedulers = {name: load_scheduler(name) for name in NAMES}
    canvas = SudokuTask.generate(3, 4, "5-7").canvas(range(3)).seeded(torch.arange(3))
    traces = trace.record(denoiser, schedulers, canvas, trace.about_boards(4, "sudoku-4x4"))
    return {"denoiser": denoiser, "schedulers": schedulers, "canvas": canvas, "traces": traces}


def test_a_recorded_trajectory_equals_a_plain_decoding(four: dict[str, Any]) -> None:
    canvas = four["canvas"]
    for name, scheduler in four["schedulers"].items():
        for row in range(3):
            alone = Canvas(canvas.tokens[row : row + 1], canvas.target[row : row + 1])
            trajectory = unmask(
                four["denoiser"], scheduler, Canvas(alone.tokens, target=alone.target, seeds=torch.tensor([row]))
            )
            traced = four["traces"][row].trajectory(name)
            assert traced.order == tuple(trajectory.order[0].tolist())
            assert traced.tokens == tuple(trajectory.tokens[0].tolist())
            assert traced.logp == pytest.approx(trajectory.logp[0].tolist(), abs=1e-4)
            # The others' look-ahead is not charged to this order, its own is.
            assert traced.denoiser_calls == trajectory.denoiser_calls
            assert (traced.denoiser_calls > traced.steps) == (name == "look_ahead")


def test_choices_of_the_other_schedulers(four: dict[str, Any]) -> None:
    """Where another scheduler agrees on every step it has the same order; and each alone in that state chooses the same."""
    first = four["traces"][0]
    trajectory = first.trajectory("margin")
    canvas = torch.tensor([first.prompt])
    for step in range(trajectory.steps):
        state = Canvas(canvas, torch.tensor([first.target]))
        for name in ("confidence", "gt_logp"):
            alone = unmask(four["denoiser"], four["schedulers"][name], Canvas(state.tokens, target=state.target))
            assert alone.order[0, 0] == trajectory.others[name][step]
        canvas = canvas.clone()
        canvas[0, trajectory.order[step]] = trajectory.tokens[trajectory.order[step]]
    assert set(trajectory.others) == set(NAMES) - {"margin"}


def test_candidates_hold_the_probabilities_of_the_model(four: dict[str, Any]) -> None:
    first = four["traces"][1]
    trajectory = first.trajectory("confidence")
    candidates = trajectory.candidates
    assert candidates is not None and candidates.truth is not None
    states = unmask(four["denoiser"], four["schedulers"]["confidence"], torch.tensor([first.prompt])).states
    assert states is not None
    for step in range(trajectory.steps):
        at = candidates.at(step)
        where = np.flatnonzero(candidates.eligible[step])
        assert candidates.probability[at, 0] == pytest.approx(states.confidence[step, where].exp().numpy(), abs=1e-4)
        assert candidates.token[at, 0].tolist() == states.best[step, where].tolist()
        assert (np.diff(candidates.probability[at], axis=1) <= 1e-6).all()
        # The order is confidence's: its score is the highest of the step.
        assert where[candidates.score[at].argmax()] == trajectory.order[step]
        found = candidates.token[at] == np.array(first.target)[where][:, None]
        row = found.any(1)
        assert candidates.truth[at][row] == pytest.approx(candidates.probability[at][found], abs=1e-4)


def test_the_first_wrong_reveal() -> None:
    """A denoiser that wants token 1 everywhere, more and more to the right; the truth is 1, 0, 1, 0."""
    logits = torch.tensor([[0.0, 1.0 + i, 0.0] for i in range(4)])
    target = torch.tensor([[1, 0, 1, 0]])
    canvas = Canvas(torch.full_like(target, 2), target)
    schedulers = {"confidence": load_scheduler("confidence"), "left_to_right": load_scheduler("left_to_right")}
    one = trace.record(Fixed(logits, 2), schedulers, canvas, trace.About())[0]
    by_confidence, by_place = one.trajectory("confidence"), one.trajectory("left_to_right")
    assert by_confidence.order == (3, 2, 1, 0) and by_place.order == (0, 1, 2, 3)
    assert (one.first_wrong(by_confidence), one.first_wrong(by_place)) == (0, 1)
    assert one.wrong(by_place).tolist() == [False, True, False, True]
    assert one.solved(by_place) is False
    unknown = trace.record(Fixed(logits, 2), schedulers, canvas.without_target(), trace.About())[0]
    assert unknown.target is None and unknown.first_wrong(unknown.trajectories[0]) is None
    assert unknown.trajectories[0].candidates is not None and unknown.trajectories[0].candidates.truth is None


def test_blocks_padding_and_end_tokens() -> None:
    """Two rows, the second padded in front: its trace knows nothing of the padding, nor of the other row."""
    denoiser = text_denoiser()
    tokens = torch.tensor([[5, 6, 7, 12, 12, 12, 12, 12], [0, 0, 5, 6, 12, 12, 12, 12]])
    attention = torch.tensor([[True] * 8, [False] * 2 + [True] * 6])
    canvas = Canvas(tokens, attention=attention)
    schedulers = {"confidence": load_scheduler("confidence")}
    decoding = Decoding(block=2, stop_at_end=False)
    second = trace.record(denoiser, schedulers, canvas, trace.About(labels=WORDS.__getitem__), decoding)[1]
    alone = Canvas(tokens[1:, 2:])
    other = trace.record(denoiser, schedulers, alone, trace.About(labels=WORDS.__getitem__), decoding)[0]
    assert second.prompt == (5, 6, 12, 12, 12, 12) and second.block == (-1, -1, 0, 0, 1, 1)
    (mine,), (theirs,) = second.trajectories, other.trajectories
    assert (mine.order, mine.tokens) == (theirs.order, theirs.tokens)
    eligible = mine.candidates.eligible  # pyright: ignore[reportOptionalMemberAccess]
    assert not eligible[0, 4:].any() and eligible[0, 2:4].all()

    ends = Fixed(torch.tensor([[5.0, 0.0, 0.0]] * 4), mask_id=2, end_ids=(0,), pad_id=1)
    stopped = trace.record(
        ends,
        {"left": load_scheduler("left_to_right")},
        Canvas(torch.full((1, 4), 2), torch.zeros(1, 4).long()),
        trace.About(),
    )[0]
    assert stopped.trajectories[0].order == (0,) and stopped.trajectories[0].tokens == (0, 1, 1, 1)
    again(stopped)


def test_several_reveals_in_a_step() -> None:
    denoiser = CountingTable()
    canvas = Canvas(torch.full((1, 9), 3), torch.zeros(1, 9).long())
    one = trace.record(
        denoiser, {"confidence": load_scheduler("confidence")}, canvas, trace.About(), Decoding(steps=4)
    )[0]
    trajectory = again(one).trajectories[0]
    assert trajectory.steps == 4 and len(trajectory.order) == 9 and trajectory.denoiser_calls == 4
    assert one.decoding == "4 steps"


def test_a_scheduler_sees_what_it_would_see_alone() -> None:
    """A scheduler without ``whole`` or ``oracle`` beside one with both: neither foreign prices nor the truth reach it."""
    seen: list[View] = []

    def plain(view: View) -> torch.Tensor:
        seen.append(view)
        return view.confidence

    def greedy(view: View) -> torch.Tensor:
        assert view.reference is not None and len(view.at[0]) == int(view.hidden.sum())
        return view.confidence

    greedy.prices_all = greedy.needs_truth = True  # pyright: ignore[reportFunctionMemberAccess]
    canvas = Canvas(torch.full((1, 6), 3), torch.zeros(1, 6).long())
    trace.record(CountingTable(), {"plain": plain, "greedy": greedy}, canvas, trace.About(), Decoding(block=2))
    assert len(seen) == 12
    for view in seen:
        assert view.reference is None and len(view.at[0]) == int(view.eligible.sum())
        assert torch.isfinite(view.confidence).equal(view.eligible)


def test_a_trajectory_without_states(four: dict[str, Any]) -> None:
    canvas = four["canvas"]
    trajectory = unmask(four["denoiser"], four["schedulers"]["margin"], canvas.tokens, record=False)
    one = trace.make_trace(four["denoiser"], {"margin": trajectory}, canvas, trace.about_boards(4, "mine"), row=2)
    assert (
        one.trajectories[0].candidates is None
        and one.trajectories[0].order == four["traces"][2].trajectory("margin").order
    )
    again(one)
    with_states = unmask(four["denoiser"], four["schedulers"]["margin"], canvas.tokens)
    found = (
        trace.make_trace(four["denoiser"], {"margin": with_states}, canvas, trace.about_boards(4, "mine"))
        .trajectories[0]
        .candidates
    )
    assert found is not None and found.token.shape[1] == 1


def again(one: trace.Trace) -> trace.Trace:
    """Through JSON and back; everything but rounding is the same."""
    back = from_json(json.loads(json.dumps(trace_file.as_json(one))))
    for field in (
        "prompt",
        "target",
        "block",
        "labels",
        "grid",
        "problem",
        "decoding",
        "denoiser",
        "end_ids",
        "mask_id",
    ):
        assert getattr(back, field) == getattr(one, field)
    for trajectory, other in zip(one.trajectories, back.trajectories, strict=True):
        assert (trajectory.order, trajectory.step, trajectory.tokens, dict(trajectory.others)) == (
            other.order,
            other.step,
            other.tokens,
            dict(other.others),
        )
        assert other.total_logp == pytest.approx(trajectory.total_logp, abs=1e-6)
        assert (trajectory.candidates is None) == (other.candidates is None)
        if trajectory.candidates is None or other.candidates is None:
            continue
        assert (trajectory.candidates.eligible == other.candidates.eligible).all()
        assert (trajectory.candidates.token == other.candidates.token).all()
        assert np.abs(trajectory.candidates.probability - other.candidates.probability).max() < 6.2e-5
        assert other.candidates.score == pytest.approx(trajectory.candidates.score, rel=2**-12)
    return back


def test_file_round_trip(four: dict[str, Any], tmp_path: Path) -> None:
    for one in four["traces"]:
        again(one)
    trace.write(four["traces"][0], tmp_path / "one.json")
    assert trace.read(tmp_path / "one.json").trajectories[0].order == four["traces"][0].trajectories[0].order


@pytest.mark.parametrize("p", [0.0, 1e-9, 1e-6, 0.01, 0.5, 0.97, 1 - 1e-6, 1 - 1e-12, 1.0])
def test_probabilities_in_two_bytes(p: float) -> None:
    code = trace_file.probability_code(np.array([p]))
    back = float(trace_file.probability_of(code)[0])
    assert back == pytest.approx(p, abs=6.2e-5)
    if 1e-6 <= p <= 1 - 1e-6:
        assert math.log(back / (1 - back)) == pytest.approx(math.log(p / (1 - p)), abs=3e-4)
    else:
        assert back in (0.0, 1.0)


def put(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the value at the end of a chain of keys."""

    def change(value: dict[str, Any]) -> None:
        target: Any = value
        for key in keys[:-2]:
            target = target[key]
        target[keys[-2]] = keys[-1]

    return change


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


HOSTILE = {
    "another format": (put("format", "other"), "expected a trace"),
    "a later version": (put("version", 2), "expected version 1 .* got 2; record the trace again"),
    "a version that is True": (put("version", "1"), "expected version 1"),
    "an unknown field": (put("more", 1), "more is not a known field"),
    "a missing field": (lambda value: value.pop("block"), "block is missing"),
    "no position": (put("prompt", []), "prompt: expected at least one item"),
    "a token that is a truth value": (put("prompt", 0, True), "whole number"),
    "a target of another length": (put("target", [1]), "target: expected a list of 16, got one of 1"),
    "a token without a label": (put("trajectories", 0, "tokens", 0, 77), "labels: .* none for 77"),
    "a label that is no id": (put("labels", "x", "y"), "labels, x.*whole number as the key"),
    "a label that is no text": (put("labels", "1", 1), "labels, 1: expected text"),
    "half a surrogate pair": (put("labels", "1", "\ud800"), "surrogate pair"),
    "no path": (put("trajectories", []), "trajectories: expected at least one item"),
    "a trajectory that is a list": (put("trajectories", 0, []), "trajectories, 0: expected a JSON object"),
    "two paths of one scheduler": (put("trajectories", 1, "scheduler", "confidence"), "one per scheduler"),
    "a position twice": (
        lambda value: put("trajectories", 0, "order", 1, value["trajectories"][0]["order"][0])(value),
        "each position once",
    ),
    "a position beyond the board": (put("trajectories", 0, "order", 0, 16), "from 0 to 15"),
    "a position that was given": (
        lambda value: [
            put("trajectories", 0, "order", 0, next(i for i, t in enumerate(value["prompt"]) if t))(value),
            put("trajectories", 0, "candidates", None)(value),
        ],
        "expected hidden positions",
    ),
    "a step that is skipped": (put("trajectories", 0, "step", 1, 3), "the same or the next step"),
    "a step that comes late": (put("trajectories", 0, "step", 0, 1), "expected 0"),
    "a number that is text": (put("trajectories", 0, "logp", 0, "0"), "logp, 0: expected a number"),
    "too few numbers": (put("trajectories", 0, "logp", []), "logp: expected a list of"),
    "another first wrong reveal": (put("trajectories", 0, "first_wrong", 3), "first_wrong"),
    "another choice beyond the board": (put("trajectories", 0, "others", "margin", 0, 16), "others, 'margin'"),
    "no board": (put("grid", None), "grid: expected a JSON object"),
    "a board of another size": (put("grid", "size", 9), "the shape of a board of 16 cells"),
    "another kind": (put("kind", "image"), "kind: expected 'grid' or 'text'"),
    "not base64": (put("trajectories", 0, "candidates", "score", "%%"), "base64 of zlib"),
    "not zlib": (put("trajectories", 0, "candidates", "score", "AAAA"), "base64 of zlib"),
    "too many bytes": (put("trajectories", 0, "candidates", "eligible", packed(bytes(10**6))), "got more"),
    "too few bytes": (put("trajectories", 0, "candidates", "eligible", packed(b"\0")), "got fewer"),
    "a reveal that was no candidate": (
        lambda value: put(
            "trajectories", 0, "candidates", "eligible", packed(bytes(2 * len(value["trajectories"][0]["order"])))
        )(value),
        "score: expected 0 bytes|token: expected 0 bytes",
    ),
    "too many alternatives": (put("trajectories", 0, "candidates", "alternatives", 10**9), "alternatives"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_traces_are_refused(name: str, four: dict[str, Any]) -> None:
    change, message = HOSTILE[name]
    value = json.loads(json.dumps(trace_file.as_json(four["traces"][0])))
    change(value)
    with pytest.raises(ValueError, match=message) as error:
        from_json(value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b"[1]", "expected a trace"),
        (b'{"format": NaN}', "the word NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "expected JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits|expected a trace"),
    ],
)
def test_bytes_that_are_not_json_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        trace.read(tmp_path / "bad.json")
    assert "bad.json" in str(error.value)


def test_merge_traces_of_one_problem(four: dict[str, Any]) -> None:
    denoiser, canvas = four["denoiser"], four["canvas"]
    row = Canvas(canvas.tokens[:1], canvas.target[:1], canvas.region[:1])
    apart = [
        trace.record(denoiser, {name: load_scheduler(name)}, row, trace.about_boards(4, model))[0]
        for name, model in (("confidence", "small"), ("margin", "small"), ("margin", "large"))
    ]
    assert [trajectory.scheduler for trajectory in viewer.merge_traces(apart[:2])[0].trajectories] == [
        "confidence",
        "margin",
    ]
    both = viewer.merge_traces([*apart, four["traces"][1]])
    assert len(both) == 2 and both[0].denoiser == "small, large"
    assert [trajectory.scheduler for trajectory in both[0].trajectories] == [
        "confidence, small",
        "margin, small",
        "margin, large",
    ]
    again(both[0])


def traces_of(frame: str) -> list[dict[str, Any]]:
    """The traces inside the viewer that a notebook shows."""
    assert frame.startswith("<iframe") and "<script" not in frame  # it is inside an attribute, escaped
    return json.loads(unescape(frame).partition('id="traces">')[2].partition("</script>")[0])["traces"]


def test_notebook_html(four: dict[str, Any]) -> None:
    trajectory = unmask(four["denoiser"], four["schedulers"]["margin"], four["canvas"].tokens)
    shown = traces_of(trajectory._repr_html_())
    assert [one["kind"] for one in shown] == ["grid"] * 3
    for row, one in enumerate(shown):
        reveals = int(trajectory.reveals[row])
        assert one["trajectories"][0]["order"] == trajectory.order[row, :reveals].tolist()
        assert one["trajectories"][0]["denoiser_calls"] == trajectory.denoiser_calls
    words = unmask(text_denoiser(), load_scheduler("confidence"), torch.tensor([[5, 12, 12]]))
    (one,) = traces_of(words._repr_html_())
    assert one["kind"] == "text" and [token == one["mask_id"] for token in one["prompt"]] == [False, True, True]
    nothing = unmask(text_denoiser(), load_scheduler("confidence"), torch.tensor([[5, 6]]))
    assert traces_of(nothing._repr_html_())[0]["trajectories"][0]["order"] == []
    assert len(traces_of(four["traces"][0]._repr_html_())) == 1


def test_a_notebook_shows_the_text_of_a_generation() -> None:
    model, tokenizer = load_denoiser("arithmetic"), load_tokenizer("arithmetic")
    done = generate(model, tokenizer, [as_turns("b+2;4-1;"), as_turns("3+1;")], length=8)
    first, second = traces_of(done._repr_html_())
    shown = "".join(first["labels"][str(token)] for token in first["trajectories"][0]["tokens"])
    assert shown.startswith("b+2;4-1;") and done.texts[0] in shown
    assert first["prompt"].count(first["mask_id"]) == second["prompt"].count(second["mask_id"]) == 8


def test_texts_of_other_blocks_and_budgets_are_compared(tmp_path: Path) -> None:
    tokens = torch.full((1, 9), 12)
    tokens[0, :3] = torch.tensor([5, 6, 7])
    schedulers, about = {"confidence": load_scheduler("confidence")}, trace.About("text", "tiny")
    for name, decoding in (("a", Decoding()), ("b", Decoding(block=2)), ("c", Decoding(block=3, steps=2))):
        (one,) = trace.record(text_denoiser(), schedulers, Canvas(tokens), about, decoding, problems=["the text"])
        trace.write(one, tmp_path / f"{name}.json")
    ViewCommand(tuple(tmp_path / f"{name}.json" for name in "abc"), tmp_path / "page.html").run()
    page = (tmp_path / "page.html").read_text()
    (both,) = json.loads(page.partition('id="traces">')[2].partition("</script>")[0])["traces"]
    names = [f"confidence, {how}" for how in ("any order", "blocks of 2", "blocks of 3, 2 steps")]
    assert [one["scheduler"] for one in both["trajectories"]] == names
    assert both["block"] == [-1] * 3 + [0] * 6  # no boundary, as each has its own
    again(from_json(both))


def test_nothing_to_record(four: dict[str, Any]) -> None:
    about = trace.about_boards(4, "sudoku-4x4")
    with pytest.raises(ValueError, match="at least one scheduler"):
        trace.record(four["denoiser"], {}, four["canvas"], about)
    with pytest.raises(ValueError, match="at least 1"):
        trace.record(four["denoiser"], four["schedulers"], four["canvas"], about, alternatives=0)
    with pytest.raises(ValueError, match="at least one trace"):
        viewer.page([])
    with pytest.raises(ValueError, match="no trajectory of 'other': the trace has confidence"):
        four["traces"][0].trajectory("other")
