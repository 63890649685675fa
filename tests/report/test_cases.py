"""Traces of evaluations, puzzles and texts: the most informative problems, and the links to them in a report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.commands import Call
from support.denoisers import text_denoiser
from support.evaluations import evaluation, row
from support.families import write
from support.viewer import WORDS, board
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.evaluation.evaluate import Report
from unmask.generation.text_canvas import TextCanvas
from unmask.report import cases, page
from unmask.report.gather import gather
from unmask.report.traces import record as trace
from unmask.report.traces.text import trace_texts
from unmask.report.viewer import page as viewer
from unmask.schedulers.loading import load_scheduler

SMALL = "1200000040320000"


def report(**solved: str) -> Report:
    base = solved["confidence"]
    rows = [row(name, marks, None if name == "confidence" else ("confidence", base)) for name, marks in solved.items()]
    return Report("sudoku", "some", "small", len(base), 0, rows)


def test_most_informative_problems() -> None:
    #                           0123456789
    one = report(confidence="0111001100", sas="1101101100")
    order, base = cases.select_pair(one, "sequential")
    assert (order.scheduler, base.scheduler) == ("sas", "confidence")
    assert cases.group_by_outcome(order, base) == {"won": [0, 4], "lost": [2], "failed by both": [5, 8, 9]}
    assert cases.most_informative_problems(one, "sequential", 4) == [0, 2, 5, 4]
    assert cases.most_informative_problems(one, "sequential", 99) == [0, 2, 5, 4, 8, 9, 1, 3, 6, 7]


def test_select_pair() -> None:
    about = lambda **solved: tuple(one.scheduler for one in cases.select_pair(report(**solved), "sequential"))  # noqa: E731
    assert about(confidence="0011", margin="0111", gt_logp="1111") == ("margin", "confidence")  # an oracle never leads
    assert about(confidence="0011", margin="0111", sas="0001") == ("sas", "confidence")
    assert about(confidence="0011", margin="0111", **{"runs/order": "0000"}) == ("runs/order", "confidence")
    assert about(confidence="0011") == ("confidence", "confidence")
    assert cases.most_informative_problems(report(confidence="0110"), "sequential", 3) == [0, 3, 1]


def test_evaluate_records_traces_of_its_own_decodings(command: Call) -> None:
    words = ("evaluate", "--denoiser", "sudoku-4x4-imperfect", "--schedulers", "confidence,random,sas", "--limit", "40")
    code, out, err = command(
        *words, "--no-nll", "--clues", "4-5", "--json", "r.json", "--traces", "t", "--trace-cases", "5"
    )
    assert (code, err) == (0, "") and "wrote 5 traces to t; see them with: unmask report r.json t" in out
    stored = gather([Path("r.json")]).evaluations[0].report
    chosen = cases.most_informative_problems(stored, "sequential", 5)
    assert {path.name for path in Path("t").iterdir()} == {f"{nth + 1:04d}.json" for nth in chosen}
    for nth in chosen:
        one = trace.read(f"t/{nth + 1:04d}.json")
        assert one.problem == f"{stored.source}, problem {nth + 1}" and one.decoding == "any order"
        for path in one.trajectories:
            assert one.solved(path) == (stored.row(path.scheduler).solved[nth] == "1"), (nth, path.scheduler)
            assert path.candidates is not None and set(path.others) == {"confidence", "random", "sas"} - {
                path.scheduler
            }
    # The same folder again is refused before anything is decoded.
    code, out, err = command(*words, "--traces", "t")
    assert (code, out) == (2, "") and "expected t to be absent or an empty folder" in err
    code, _, err = command(*words, "--trace-cases", "0", "--traces", "new")
    assert (
        code == 2
        and "trace_cases: expected a number greater than or equal to 1, got int 0" in err
        and not Path("new").exists()
    )


def test_a_trace_per_decoding(command: Call) -> None:
    words = ("evaluate", "--denoiser", "sudoku-4x4", "--schedulers", "confidence,margin", "--limit", "3", "--no-nll")
    assert command(*words, "--steps", "4", "6", "--traces", "t", "--trace-cases", "1")[0] == 0
    assert sorted(path.name for path in Path("t").iterdir()) == ["0001-4-steps.json", "0001-6-steps.json"]
    found = [trace.read(path) for path in sorted(Path("t").iterdir())]
    assert [max(path.steps for path in one.trajectories) for one in found] == [4, 6]
    assert [one.decoding for one in found] == ["4 steps", "6 steps"]
    (together,) = viewer.merge_traces(found)
    assert [path.scheduler for path in together.trajectories] == [
        "confidence, 4 steps",
        "margin, 4 steps",
        "confidence, 6 steps",
        "margin, 6 steps",
    ]
    assert together.decoding == "4 steps, 6 steps"


def linked(html: str) -> list[tuple[str, str]]:
    return re.findall(r'<a href="#traces" class="watch" data-case="(\d+)">(\d+)</a>', html)


def traced(tmp_path: Path, n: int) -> list[Path]:
    """An evaluation, and traces of its first problems that are won and lost."""
    one = evaluation(n, ("margin", "sas"))
    one.write(tmp_path / "r.json")
    order, base = cases.select_pair(one, "sequential")
    shown = board()
    trajectories = (
        replace(shown.trajectories[0], scheduler="confidence"),
        replace(shown.trajectories[1], scheduler="sas"),
    )
    groups = cases.group_by_outcome(order, base)
    given = next(place for place, token in enumerate(shown.prompt) if token != shown.mask_id)
    for nth, outside in ((groups["won"][1], -1), (groups["failed by both"][0], given)):
        name = cases.problem_name(one.source, nth)
        # Another region makes another problem of it.
        block = tuple(-1 if place == outside else 0 for place in range(16))
        mine = replace(shown, problem=name, denoiser="small", block=block, trajectories=trajectories)
        trace.write(mine, tmp_path / f"{nth + 1:04d}.json")
    return [tmp_path / "r.json", *sorted(tmp_path.glob("0*.json"))]


def test_a_report_links_problems_to_their_traces(tmp_path: Path) -> None:
    inputs = traced(tmp_path, 200)
    html = page.render(gather(inputs))
    assert sorted(number for _, number in linked(html)) == sorted(str(int(path.stem)) for path in inputs[1:])
    text = re.sub(r"<[^>]+>", "", html)
    one = gather(inputs).evaluations[0].report
    won = one.row("sas").versus.won  # pyright: ignore[reportOptionalMemberAccess]
    assert f"sas against confidence: {won} won (problems " in text and " 0 lost; " in text
    assert linked(page.render(gather(inputs[:1]))) == []
    # Of another denoiser, or of other problems, they are not these.
    for path in inputs[1:]:
        other = replace(trace.read(path), denoiser="large")
        trace.write(other, path)
    assert linked(page.render(gather(inputs))) == []


def test_a_link_opens_its_case(opened: Callable, tmp_path: Path) -> None:
    inputs = traced(tmp_path, 200)
    shown = opened(page.render(gather(inputs)))
    frame = shown.frame_locator("#viewer")
    frame.locator("html[data-ready]").wait_for()
    for link in shown.locator(".watch").all()[::-1]:
        link.click()
        number = link.inner_text()
        frame.locator("#about", has_text=f"some puzzles, problem {number} ·").wait_for()
        assert f"problem {number} " in shown.locator(".case[aria-current=true]").inner_text()


def test_decode_records_traces(command: Call, tmp_path: Path) -> None:
    words = ("decode", SMALL, "--denoiser", "sudoku-4x4-imperfect", "--json")
    plain = json.loads(command(*words)[1])
    code, out, err = command(*words, "--traces", "t")
    assert (code, err) == (0, "") and {**json.loads(out), "token_logp": 0} == {**plain, "token_logp": 0}
    one = trace.read("t/0001.json")
    assert [path.scheduler for path in one.trajectories] == ["sas", "confidence"]
    assert (
        list(one.trajectory("sas").order) == plain["order"]
        and one.trajectory("sas").denoiser_calls == plain["denoiser_calls"]
    )
    assert one.first_wrong(one.trajectory("confidence")) == plain["compared"]["first_wrong"]
    Path("two.csv").write_text(f"puzzle\n{SMALL}\n{SMALL}\n")
    assert command("decode", "two.csv", "--denoiser", "sudoku-4x4", "--steps", "4", "--traces", "both")[0] == 0
    assert [trace.read(f"both/000{n}.json").problem for n in (1, 2)] == ["two.csv, problem 1", "two.csv, problem 2"]
    assert trace.read("both/0001.json").decoding == "4 steps"
    (tmp_path / "file").write_text("kept")
    for folder, message in (("t", "absent or an empty folder"), ("file/t", "cannot write file/t")):
        code, out, err = command(*words, "--traces", folder)
        assert (code, out) == (2, "") and message in err


def test_generate_records_traces(command: Call, tmp_path: Path) -> None:
    from support.tokenizers import words as tokenizer

    write(tmp_path / "llada", "llada")
    tokenizer(31, chat=True, eos=27).save_pretrained(tmp_path / "llada")
    (tmp_path / "p.jsonl").write_text('{"prompt": "w3 w4"}\n{"prompt": [{"role": "user", "content": "w5"}]}\n')
    options = ("generate", "--denoiser", "llada", "--file", "p.jsonl", "--length", "6", "--block", "3", "--json")
    records = [json.loads(line) for line in command(*options, "--chat")[1].splitlines()]
    code, _, err = command(*options, "--chat", "--traces", "t")
    assert (code, err) == (0, "")
    for nth, record in enumerate(records):
        one = trace.read(f"t/000{nth + 1}.json")
        start = len(one.prompt) - 6
        assert one.kind == "text" and one.target is None and one.decoding == "blocks of 3"
        (path,) = one.trajectories
        assert path.scheduler == "confidence" and [place - start for place in path.order] == record["order"]
        assert list(path.tokens[start:]) == record["tokens"] and list(path.step) == record["step"]
        assert path.denoiser_calls == path.steps and path.candidates is not None
        assert list(path.logp) == pytest.approx(record["token_logp"], abs=1e-5)
        assert one.block[start:] == (0, 0, 0, 1, 1, 1)
    assert [trace.read(f"t/000{n}.json").problem for n in (1, 2)] == ["prompt 1: w3 w4", "prompt 2: w5"]
    assert command("view", "t", "--out", "texts.html")[0] == 0
    code, _, err = command(*options, "--chat", "--traces", "t")
    assert code == 2 and "absent or an empty folder" in err


def test_trace_texts() -> None:
    """Two rows of different lengths in one batch: padding is in neither trace, and each row has its own order."""
    import torch

    from unmask.decoding.loop import unmask as decoded

    tokens = torch.tensor([[0, 0, 5, 12, 12, 12], [2, 7, 5, 12, 12, 12]])
    attention = torch.tensor([[False, False, *[True] * 4], [True] * 6])
    region = torch.tensor([[False] * 3 + [True] * 3] * 2)
    model, canvas = text_denoiser(), TextCanvas(tokens, attention, region, 3)
    order = load_scheduler("confidence")
    for record in (True, False):
        path = decoded(model, order, Canvas(tokens, region=region, attention=attention), record=record)
        found = trace_texts(model, WORDS.__getitem__, canvas, {"confidence": path}, "tiny", Decoding(), ["one", "two"])
        assert [len(one.prompt) for one in found] == [4, 6] and [one.problem for one in found] == ["one", "two"]
        for nth, one in enumerate(found):
            real = attention[nth]
            assert list(one.trajectories[0].tokens) == path.tokens[nth][real].tolist()
            padding = int((~real).sum())
            assert [place + padding for place in one.trajectories[0].order] == path.order[nth].tolist()
            assert (one.trajectories[0].candidates is not None) == record
            if record:
                chosen = one.trajectories[0].candidates
                assert chosen is not None and chosen.token.shape == (6, 1)  # 3 + 2 + 1 candidates
