"""A benchmark shared by several processes: the samples and scores of one process, each sample decoded once."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from support.kill_harness import benchmark_words, result, write_benchmark
from support.processes import together
from unmask.decoding.options import Decoding
from unmask.evaluation.lm_eval.run import run_lm_eval
from unmask.evaluation.lm_eval.samples import SampleLog, collect_samples
from unmask.evaluation.lm_eval.settings import AnswerOptions, LmEval
from unmask_studies.bench.processes import launch

pytestmark = pytest.mark.usefixtures("unchecked")

LIMIT = 7
"""Problems: two processes cannot have as many of them each."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("benchmark")
    write_benchmark(made)
    return made


@pytest.fixture(scope="module")
def config(place: Path) -> LmEval:
    answers = AnswerOptions(length=6, scheduler="random", decoding=Decoding(block=3, token_temperature=1.0))
    tiny, data = str(place / "tiny"), str(place / "data")
    return LmEval(denoiser=tiny, data=data, shots=2, limit=LIMIT, batch=2, answers=answers)


@pytest.fixture(scope="module")
def alone(config: LmEval, place: Path) -> dict[str, Any]:
    assert run_lm_eval(config, place / "alone") is not None
    found = result(place / "alone")
    assert len(found["samples.jsonl"]) == LIMIT and found["results.json"]["documents"] == LIMIT
    return found


def shared(config: LmEval, folder: Path, resume: bool = False) -> list[int]:
    """Exit codes of two processes that share the benchmark."""

    def work(rank: int) -> None:
        run_lm_eval(config, folder, resume)

    return together(2, work, folder.parent / "log")[0]


def keys(file: Path) -> list[str]:
    return [json.loads(line)["key"] for line in file.read_text().splitlines()]


def test_two_processes_score_as_one(config: LmEval, alone: dict[str, Any], tmp_path: Path) -> None:
    def work(rank: int) -> None:
        counts: list[tuple[int, int]] = []
        results = run_lm_eval(config, tmp_path / "run", on_sample=lambda *each: counts.append(each))
        assert (results is None) == (rank > 0)
        (tmp_path / f"{rank}.json").write_text(json.dumps(counts[-1]))

    codes, _ = together(2, work, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text() + (tmp_path / "log.1").read_text()
    assert result(tmp_path / "run") == alone
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[4, 4], [3, 3]]
    assert not list((tmp_path / "run").glob("samples-*"))


def test_fewer_problems_than_processes(config: LmEval, tmp_path: Path) -> None:
    assert shared(replace(config, limit=1), tmp_path / "run") == [0, 0], (tmp_path / "log.1").read_text()
    assert len(keys(tmp_path / "run" / "samples.jsonl")) == 1
    assert json.loads((tmp_path / "run" / "results.json").read_text())["documents"] == 1


def test_resume_with_a_different_number_of_processes(config: LmEval, alone: dict[str, Any], tmp_path: Path) -> None:
    """The second process is killed after two of its samples; the first has finished its share, and reports the missing one."""
    run = tmp_path / "run"

    def work(rank: int) -> None:
        def kill(done: int, total: int) -> None:
            if rank == 1 and done == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        run_lm_eval(config, run, on_sample=kill)

    codes, _ = together(2, work, tmp_path / "log")
    assert codes == [2, -signal.SIGKILL]
    assert "another process of this run has died or does not answer" in (tmp_path / "log.0").read_text()
    first, second = keys(run / "samples.jsonl"), keys(run / "samples-1.jsonl")
    assert len(first) == 4 and len(second) == 2 and not (run / "results.json").exists()
    assert run_lm_eval(config, run, resume=True) is not None
    assert keys(run / "samples.jsonl")[:6] == [*first, *second]
    assert result(run) == alone
    assert not list(run.glob("samples-*"))

    run_lm_eval(replace(config, limit=3), tmp_path / "other")
    before = keys(tmp_path / "other" / "samples.jsonl")
    assert shared(config, tmp_path / "other", resume=True) == [0, 0], (tmp_path / "log.0").read_text()
    assert keys(tmp_path / "other" / "samples.jsonl")[:3] == before
    assert result(tmp_path / "other") == alone


def test_device_spread_is_refused_with_several_processes(config: LmEval, tmp_path: Path) -> None:
    assert shared(replace(config, device="spread"), tmp_path / "run") == [2, 2]
    assert "device spread puts one denoiser on all devices" in (tmp_path / "log.1").read_text()


def test_records_of_ended_processes_are_collected_once(tmp_path: Path) -> None:
    for name, found in (("samples", "ab"), ("samples-1", "bc"), ("samples-12", "d")):
        for key in found:
            SampleLog(tmp_path / f"{name}.jsonl").add({"key": key, "of": name})
    with (tmp_path / "samples-1.jsonl").open("a") as torn:
        torn.write('{"key": "e"')
    assert list(collect_samples(tmp_path).records) == ["a", "b", "c", "d"]
    assert keys(tmp_path / "samples.jsonl") == ["a", "b", "c", "d"]
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


@pytest.mark.slow
def test_the_launched_command(place: Path, tmp_path: Path) -> None:
    """`accelerate launch -m unmask lm-eval`: two processes, a new folder, one table."""
    few = [*benchmark_words(place, tmp_path / "two"), "--limit", "3"]
    output = launch(2, tmp_path, "lm-eval", *few)
    assert output.count("s of 2 processes") == 1
    assert output.count("3 problems, 2-shot") == 1
    assert len(keys(tmp_path / "two" / "samples.jsonl")) == 3
