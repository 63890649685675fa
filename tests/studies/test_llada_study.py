"""The paper's tables on a tiny LLaDA: trained, decoded, compared; stopped and resumed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from support.families import write
from support.processes import kill_tree
from support.tokenizers import words
from unmask_studies.catalogue import load_study
from unmask_studies.study import conclude, run_study
from unmask_studies.text.llada import HIDDEN, ORDERS, LladaStudy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> LladaStudy:
    place = tmp_path_factory.mktemp("tiny")
    folder = write(place / "llada", "llada", max_sequence_length=4096)
    words(size=31, eos=27, chat=True).save_pretrained(folder)
    (place / "gsm8k").mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"w{n + 3} w{2 * n}", "answer": f"w{n}\n#### {2 + 20 * (n % 2)}"} for n in range(12)]
        (place / "gsm8k" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return LladaStudy(
        str(folder), ("gsm8k-128-32",), ("confidence",), str(place), limit=4, steps=1, batch=4, device="cpu"
    )


def test_the_whole_of_it_is_the_papers() -> None:
    grid = load_study("llada").grid()
    main = [key for key in grid if key[1] == "confidence"]
    tasks = [str(key[0]).split("-")[0] for key in main]
    assert {task: tasks.count(task) for task in set(tasks)} == {"gsm8k": 14, "mbpp": 13, "math500": 3, "ifeval": 1}
    assert {key[1] for key in grid} == {"confidence", "margin", "entropy", *ORDERS.values(), HIDDEN}
    transferred = [key for key in grid if str(key[0]).startswith("mbpp") and key[1] == ORDERS["gsm8k"]]
    assert [key[0] for key in transferred] == ["mbpp-256-32", "mbpp-256-64", "mbpp-256-any"]


def test_the_whole_is_planned_before_it_starts() -> None:
    """Hours and memory of every table and of every training, for LLaDA-8B itself."""
    (planned,) = load_study("llada").plan()
    named = [str(row[0]) for row in planned.rows]
    assert sum(name.startswith("Table tab:") for name in named) == 5
    assert {name for name in named if name.startswith("training")} == {
        f"training {order}" for order in (*ORDERS.values(), HIDDEN)
    }
    hours = [float(str(row[1])) for row in planned.rows]
    assert all(hour > 0 for hour in hours) and hours[-1] == pytest.approx(sum(hours[:-1]), abs=0.5)
    assert all(16 <= float(str(row[2])) < 80 for row in planned.rows)  # the weights alone are 16 GB


@pytest.mark.slow
def test_trained_decoded_and_compared(study: LladaStudy, tmp_path: Path) -> None:
    assert study.grid() == [("gsm8k-128-32", name) for name in ("confidence", ORDERS["gsm8k"], HIDDEN)]
    (planned,) = study.plan()
    assert [row[0] for row in planned.rows] == [
        "Table tab:math_code_gen",
        f"training {ORDERS['gsm8k']}",
        f"training {HIDDEN}",
        "all",
    ]
    pieces: Any = run_study(study, tmp_path / "study")
    next(pieces)
    pieces.close()  # stopped after the first run
    done = list(run_study(study, tmp_path / "study", resume=True))
    assert [one.seconds is None for one in done] == [True, False, False]
    findings = conclude(study, tmp_path / "study", "llada", "unmask study llada")
    (table,) = findings.tables
    assert [row[1] for row in table.rows] == ["confidence", ORDERS["gsm8k"], HIDDEN]
    assert [row[0] for row in table.rows] == ["128-32"] * 3
    assert [row[3] for row in table.rows] == [""] * 3  # no published number is of this denoiser
    (report,) = findings.evaluations
    assert report.n == 4 and all(len(row.solved) == 4 for row in report.rows)
    assert (tmp_path / "study" / "llada.svg").exists()


def documented_line(study: LladaStudy, processes: int) -> list[str]:
    """The line of the docs for four GPUs, on a tiny checkpoint and the CPU."""
    page = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"
    (line,) = re.findall(r"^accelerate launch .* study llada .*$", page.read_text(), re.M)
    line = line.replace("--num_processes 4", f"--multi_gpu --num_processes {processes}" if processes > 1 else "--cpu")
    given = shlex.split(line.replace("GSAI-ML/LLaDA-8B-Instruct", study.denoiser).replace("runs/llada", "study"))
    small = ["--settings", "gsm8k-128-32", "--schedulers", "confidence", "--data", study.data, "--limit", "4"]
    small += ["--steps", "1", "--batch", "4", "--device", "cpu", "--dtype", "float32"]
    return [sys.executable, "-m", "accelerate.commands.accelerate_cli", *given[1:], *small]


@pytest.mark.slow
def test_the_documented_line_by_two_processes_killed_and_resumed_by_one(study: LladaStudy, tmp_path: Path) -> None:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "MASTER_PORT": "0"}
    both = subprocess.Popen(documented_line(study, 2), cwd=tmp_path, env=settings, start_new_session=True)
    try:
        end = time.monotonic() + 900
        while not any((tmp_path / "study").rglob("results.json")):
            assert both.poll() is None and time.monotonic() < end
            time.sleep(0.2)
    finally:
        kill_tree(both)
    (first,) = (tmp_path / "study").rglob("results.json")
    before = first.stat().st_mtime_ns
    subprocess.run(documented_line(study, 1), cwd=tmp_path, env=settings, check=True, timeout=900)
    assert first.stat().st_mtime_ns == before  # what was finished is not repeated
    (table,) = json.loads((tmp_path / "study" / "study.json").read_text())["tables"]
    assert [row[1] for row in table["rows"]] == ["confidence", ORDERS["gsm8k"], HIDDEN]
