"""A distribution outside this one adds a scheduler, a policy, a denoiser and a task by entry points; commands know their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

MODULE = '''
from dataclasses import dataclass
from typing import Literal
import torch
from unmask import load_denoiser
from unmask.schedulers.networks import PolicyNetwork
from unmask.tasks.kinds import TaskKind
from unmask.tasks.sudoku.source import SudokuProblems, SudokuData

def zigzag(view):
    """The even places first, then the odd ones."""
    return -(view.index % 2).float()

class Tilt(PolicyNetwork):
    """The later in the row the sooner, as far as its one weight says."""

    def __init__(self, config):
        super().__init__(config)
        self.readout = torch.nn.Linear(1, 1)

    def observe(self, view):
        return {"index": view.index.float()}

    def forward(self, seen, at):
        return self.readout(seen["index"][..., None])[..., 0]

def load_mirror(folder, dtype, device, device_map):
    return load_denoiser("sudoku-4x4", dtype, device, device_map)

@dataclass(frozen=True)
class Easy(TaskKind):
    """4x4 boards with a few blanks."""

    kind: Literal["easy"] = "easy"
    seed: int = 0
    blanks: int = 2

    options = {"blanks": "How many cells are blank."}

    def problems(self, denoiser, name):
        return Problems(SudokuData(size=4, puzzles=8, clues=str(16 - self.blanks), seed=self.seed))


class Problems(SudokuProblems):
    def held_out(self, count, which=None):
        return super().held_out(count, self.data.clues)
'''
ENTRY_POINTS = """
[unmask.schedulers]
zigzag = zigzag_plugin:zigzag
[unmask.policies]
tilt = zigzag_plugin:Tilt
[unmask.denoisers]
MirrorModel = zigzag_plugin:load_mirror
[unmask.tasks]
easy = zigzag_plugin:Easy
"""
PRESET = """
denoiser = "sudoku-4x4"
[data]
kind = "easy"
blanks = 3
[policy]
kind = "tilt"
[training]
steps = 1
prompts = 2
group = 2
validate = 2
"""
PUZZLE = "1.3.341.2.4.432."
COMMANDS = {
    "decode": f"decode {PUZZLE} --denoiser mirror --scheduler zigzag",
    "evaluate": "evaluate --denoiser sudoku-4x4 --schedulers confidence,zigzag --limit 4 --no-nll",
    "evaluate the task": "evaluate --task easy --denoiser sudoku-4x4 --limit 3 --schedulers confidence,random "
    "--blanks 3 --json easy.json",
    "help": "evaluate --task easy --help",
    "train": "train --task easy --preset easy.toml --out run",
    "decode by the policy": f"decode {PUZZLE} --denoiser sudoku-4x4 --scheduler run",
}
SCRIPT = """
import contextlib, io, json, sys
from unmask.cli.main import main

printed = {}
for name, words in json.load(sys.stdin).items():
    sys.argv = ["unmask", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    printed[name] = out.getvalue()
    printed.setdefault("compiler", str("sympy" in sys.modules))
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the plug-in as an installer would lay it out, a checkpoint of its architecture, and a preset."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "zigzag_plugin-1.0.dist-info"
    info.mkdir()
    (folder / "zigzag_plugin.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zigzag-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "mirror").mkdir()
    (folder / "mirror" / "config.json").write_text(json.dumps({"architectures": ["MirrorModel"]}))
    (folder / "mirror" / "model.safetensors").touch()
    (folder / "easy.toml").write_text(PRESET)
    return folder


@pytest.fixture(scope="module")
def printed(site: Path) -> dict[str, str]:
    """What the commands print, all in one interpreter, which starts after the plug-in was installed."""
    paths = [str(site), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(COMMANDS),
        env=environment,
        cwd=site,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_a_scheduler_and_a_denoiser_of_a_plugin_decode_a_puzzle(printed: dict[str, str]) -> None:
    assert "solved" in printed["decode"]


def test_decoding_does_not_import_the_compiler(printed: dict[str, str]) -> None:
    """Of torch: 800 modules, two seconds of every command. The first command here decodes."""
    assert printed["compiler"] == "False"


def test_a_scheduler_of_a_plugin_is_evaluated(printed: dict[str, str]) -> None:
    assert "confidence" in printed["evaluate"] and "zigzag" in printed["evaluate"]


def test_evaluate_a_task_of_a_plugin(printed: dict[str, str], site: Path) -> None:
    report = json.loads((site / "easy.json").read_text())
    assert report["task"] == "sudoku" and len(report["rows"]) == 2
    assert report["rows"][0]["denoiser_calls"] == 3
    assert "How many cells are blank." in printed["help"]


def test_train_a_policy_of_a_plugin_on_its_task(printed: dict[str, str], site: Path) -> None:
    stored = json.loads((site / "run" / "config.json").read_text())
    assert stored["data"] == {"kind": "easy", "seed": 0, "blanks": 3} and stored["policy"]["kind"] == "tilt"
    assert set(load_file(site / "run" / "policy" / "model.safetensors")) == {
        "network.readout.weight",
        "network.readout.bias",
    }
    assert "solved" in printed["decode by the policy"]
