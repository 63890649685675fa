"""Every launch line of the docs for GPUs is run: by forks of this process in seconds, and by its own launcher (slow).

``support/launch_lines.py`` has the one table of what is put in the place of GPUs and of large models.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from support.launch_lines import LaunchLine, free_port, prepare, read_batch_script, read_launch_lines
from support.processes import kill_tree, together
from unmask.cli.main import main
from unmask.runs.run import Run

pytestmark = pytest.mark.usefixtures("unchecked")
LINES = read_launch_lines()
PATIENCE = 600
TRAINED = ("train", "finetune")


def distinct(lines: list[LaunchLine]) -> list[LaunchLine]:
    """Of lines that start the same work, but for the folder and who starts it, only one."""
    return list({(line.what, bool(line.launcher)): line for line in lines}.values())


def named(lines: list[LaunchLine]) -> list[Any]:
    return [pytest.param(line, id=f"{number}-{line.id}") for number, line in enumerate(lines)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def place(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "place"))


def find_out(line: LaunchLine) -> Path | None:
    """Where the command writes."""
    given = dict(itertools.pairwise(line.small()))
    out = given.get("--out", given.get("--json"))
    return None if out is None else Path(out)


def make_room(line: LaunchLine, place: Path) -> Path | None:
    """Its folder is not there yet: other lines read an order of that name."""
    out = find_out(line)
    if out is not None:
        shutil.rmtree(place / out, ignore_errors=True)
    return out


def require_result(line: LaunchLine, place: Path) -> None:
    """What the command leaves behind is there and whole."""
    out = find_out(line)
    if out is None:
        return
    if line.words[0] in TRAINED:
        records = Run(place / out).metrics()
        assert records and (place / out / "versions.json").exists()
        assert list((place / out).glob("*/*model.safetensors"))
    elif line.words[0] == "lm-eval":
        results = json.loads((place / out / "results.json").read_text())
        assert results["documents"] == 3
    elif line.words[0] == "study":
        assert json.loads((place / out / "study.json").read_text())["tables"]
    else:
        (row, *_) = json.loads((place / out).read_text())["rows"]
        assert len(row["solved"]) == 3


def test_the_lines_are_those_of_the_docs() -> None:
    """Each kind of work is there, and a launcher for each."""
    assert len(LINES) >= 15
    assert {line.launcher for line in LINES} == {"accelerate", "torchrun", ""}
    started = {line.words[0] for line in LINES if line.module == "unmask" and line.launcher}
    assert started == {"train", "finetune", "evaluate", "lm-eval", "study"}
    assert max(line.machines for line in LINES) == 2
    assert "torchrun --nnodes" in read_batch_script()


@pytest.mark.parametrize("line", named([line for line in LINES if line.launcher]))
def test_launchers_know_their_options(line: LaunchLine) -> None:
    """By the launchers' own parsers: what is left for the module is what the page says."""
    if line.launcher == "accelerate":
        from accelerate.commands.launch import launch_command_parser as parser

        count = "num_processes"
    else:
        from torch.distributed.run import get_args_parser as parser

        count = "nproc_per_node"
    known = parser().parse_args([*line.options, "-m", line.module, *line.words])
    assert known.module and (known.training_script, known.training_script_args) == (line.module, line.words)
    assert int(getattr(known, count)) >= 2


@pytest.mark.parametrize(
    "line", named(distinct([line for line in LINES if line.module == "unmask" and line.what != "study"]))
)
def test_two_processes_do_the_work_of_a_line(line: LaunchLine, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forks; a line without a launcher is one. The study takes minutes: tests/studies/test_llada_study.py."""
    monkeypatch.chdir(place)
    make_room(line, place)

    def work(rank: int) -> None:
        sys.argv = ["unmask", *line.small()]
        main()

    codes, _ = together(2 if line.launcher else 1, work, place / "log")
    assert set(codes) == {0}, "\n".join(log.read_text() for log in sorted(place.glob("log.*")))
    require_result(line, place)


def start(command: list[str], line: LaunchLine, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=place,
        env=line.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(started: list[subprocess.Popen[str]]) -> str:
    shown = ""
    for one in started:
        output, _ = one.communicate(timeout=PATIENCE)
        shown += output
        assert one.returncode == 0, output
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("line", named([line for line in LINES if line.launcher]))
def test_its_own_launcher_runs_the_line(line: LaunchLine, processes: int, place: Path) -> None:
    """For two machines a launcher each. One process is the same line with the number 1."""
    if processes < line.machines:
        pytest.skip("two machines are two processes at least")
    make_room(line, place)
    port = free_port()
    shown = finish([start(line.command(processes, machine, port), line, place) for machine in range(line.machines)])
    if line.words[0] in TRAINED and processes == 2:
        shared = {"train": "in each of 2 processes", "finetune": "are shared by 2 processes"}[line.words[0]]
        assert shown.count(shared) == 1  # one training, not two strangers
    require_result(line, place)


PAPER = [line for line in LINES if line.launcher and line.what.endswith("-llada")]


@pytest.mark.slow
@pytest.mark.parametrize("line", named(PAPER))
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_the_papers_trainings_killed_and_resumed(line: LaunchLine, first: int, then: int, place: Path) -> None:
    """By the documented line, begun by some processes and ended by others: the policy of a training that was left alone."""
    out = make_room(line, place)
    assert out
    finish([start(line.command(1), line, place)])
    (place / out).rename(place / "alone")
    killed = start(line.command(first), line, place)
    try:
        end = time.monotonic() + PATIENCE
        while not list((place / out).glob("checkpoints/step-*")):
            assert killed.poll() is None and time.monotonic() < end
            time.sleep(0.05)
    finally:
        kill_tree(killed)
    assert not (place / out / "policy").exists()
    finish([start(line.command(then), line, place)])
    alone, resumed = (load_file(place / run / "policy" / "model.safetensors") for run in ("alone", out))
    assert [record["step"] for record in Run(place / out).metrics()] == [1, 2, 3]
    for name, tensor in alone.items():
        assert torch.allclose(tensor, resumed[name], atol=2e-3)


SRUN = """#!{python}
import os, subprocess, sys
nodes = [subprocess.Popen(sys.argv[1:], env={{**os.environ, "SLURM_NODEID": str(n), "SLURM_NNODES": "2"}}) for n in range(2)]
sys.exit(max(node.wait() for node in nodes))
"""


@pytest.mark.slow
def test_the_batch_script(place: Path) -> None:
    """Its own text, but for the device, the folder and the sizes; ``srun`` starts two nodes of one process here."""
    (line,) = [one for one in LINES if one.machines == 2]
    script = read_batch_script().replace("/shared/runs", "runs").replace("--nproc_per_node 8", "--nproc_per_node 1")
    smaller = shlex.join(line.small()[len(line.words) :])
    script = script.replace("--resume'", f"--resume {smaller}'").replace("29500", str(free_port()))
    tools = place / "tools"
    tools.mkdir()
    for name, text in {
        "srun": SRUN.format(python=sys.executable),
        "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
        "torchrun": f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (place / "job.sh").write_text(script)
    make_room(line, place)
    settings = {**line.environment(), "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]"}
    settings |= {"SLURM_NNODES": "2"}
    done = subprocess.run(
        ["bash", "job.sh"], cwd=place, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in each of 2 processes") == 1
    require_result(line, place)
