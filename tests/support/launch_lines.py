"""The launch lines of the docs, and what is put in the place of GPUs and of large models when a test runs one.

Everything else of a line, the launcher's options and the command's, is used as it is written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.families import write
from support.tokenizers import words
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import build_policy

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(?:\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LAUNCHERS = {"accelerate": "accelerate.commands.accelerate_cli", "torchrun": "torch.distributed.run"}
DENOISER = "tiny"
"""A folder with a tiny LLaDA, beside the tests' benchmark files and training files."""

INSTEAD = {
    "--device cuda": "--device cpu",
    "GSAI-ML/LLaDA-8B-Instruct": DENOISER,
    "GSAI-ML/LLaDA-8B-Base": DENOISER,
    "/shared/runs": "runs",
    "10.0.0.1": "127.0.0.1",
}
"""Word of a line → what a machine without GPUs, without the model and without a second machine has instead."""
SMALL_LLADA = "--steps 3 --data.length 24 --training.validate 2 --training.validate-every 3 --training.save-every 1"
SMALLER = {
    "train sas-sudoku-9x9-imperfect": "--steps 1 --training.prompts 2 --training.validate 1 --data.puzzles 4",
    "train sas-gsm8k-llada": f"--denoiser {DENOISER} {SMALL_LLADA}",
    "train sas-mbpp-llada": f"--denoiser {DENOISER} {SMALL_LLADA}",
    "finetune lora-text": f"--denoiser {DENOISER} --samples 4 --validate 2 --training.log-every 1 --data.length 40",
    "evaluate": "--limit 3 --schedulers confidence --batch 3",
    "lm-eval": f"--denoiser {DENOISER} --data . --limit 3 --length 8",
    "study": "--settings gsm8k-128-32 --schedulers confidence --data . --limit 4 --steps 1 --batch 4",
    "lm_eval": "--limit 2",
}
"""Command and preset → the sizes that make it a matter of seconds, appended to the line. A line of another command has none, and
its test fails until it gets one."""
CPU = ["train", "finetune", "evaluate", "lm-eval", "study"]
"""Commands that are given ``--device cpu`` where the line names no device."""


@dataclass(frozen=True)
class LaunchLine:
    """One line of a page: ``settings`` of the environment, a launcher with its ``options``, and the words of a module."""

    page: str
    text: str
    settings: dict[str, str]
    launcher: str
    options: list[str]
    module: str
    words: list[str]

    @property
    def what(self) -> str:
        """The key of ``SMALLER``: the command, with its preset where there is one."""
        if self.module != "unmask":
            return "lm_eval"
        command = self.words[0]
        preset = self.words[self.words.index("--preset") + 1] if "--preset" in self.words else ""
        return f"{command} {preset}" if f"{command} {preset}" in SMALLER else command

    @property
    def machines(self) -> int:
        return int(self.option("--num_machines", "--nnodes") or 1)

    @property
    def id(self) -> str:
        return f"{self.page}-{self.launcher or 'unmask'}-{self.what.replace(' ', '-')}-{self.machines}"

    def option(self, *names: str) -> str | None:
        given = dict(zip(self.options, self.options[1:], strict=False))
        return next((given[name] for name in names if name in given), None)

    def small(self) -> list[str]:
        """The module's words, on the CPU and of a small size."""
        text = shlex.join(self.words)
        for theirs, ours in INSTEAD.items():
            text = text.replace(theirs, ours)
        sizes, small = SMALLER[self.what].split(), shlex.split(text)
        for name in sizes[::2]:
            if name in small:
                del small[small.index(name) : small.index(name) + 2]
        small += sizes
        wants_cpu = self.module == "unmask" and small[0] in CPU and "--device" not in small
        return [*small, "--device", "cpu"] if wants_cpu else small

    def command(self, processes: int, machine: int = 0, port: int = 0) -> list[str]:
        """The whole line for so many processes of this machine's CPU."""
        if not self.launcher:
            return [sys.executable, "-m", self.module, *self.small()]
        options = list(self.options)
        for theirs, ours in INSTEAD.items():
            options = [ours if one == theirs else one for one in options]
        changed = {"--num_processes": str(processes), "--nproc_per_node": str(processes // self.machines)}
        changed |= {"--machine_rank": str(machine), "--node_rank": str(machine)}
        changed |= {"--main_process_port": str(port), "--master_port": str(port)}
        for name, value in changed.items():
            if name in options:
                options[options.index(name) + 1] = value
        if self.launcher == "accelerate":  # which would look for GPUs (docs/scaling.md)
            options = [one for one in options if one != "--multi_gpu"]
            options = ["--multi_gpu" if processes > 1 else "--cpu", *options]
        where = ["launch"] if self.launcher == "accelerate" else []
        return [
            sys.executable,
            "-m",
            LAUNCHERS[self.launcher],
            *where,
            *options,
            "-m",
            self.module,
            *self.small(),
        ]

    def environment(self) -> dict[str, str]:
        given = {
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
            "MASTER_PORT": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**os.environ, **given, **self.settings}


def read_launch_lines() -> list[LaunchLine]:
    """Every line of README and docs that starts a training or an evaluation by a launcher, or on a GPU by name."""
    return [
        parse_line(page.name, line)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for line in _shell_lines(page)
        if re.match(r"(\w+=\S+ )*(accelerate launch|torchrun) ", line)
        or (line.startswith("unmask ") and "--device cuda" in line and not line.startswith("unmask play"))
    ]


def read_batch_script() -> str:
    """The script for SLURM."""
    scripts = [
        block
        for page in sorted((ROOT / "docs").glob("*.md"))
        for _, block in FENCE.findall(page.read_text(encoding="utf-8"))
        if "#SBATCH" in block
    ]
    (script,) = scripts
    return script


def _shell_lines(page: Path) -> list[str]:
    found = [block for _, block in FENCE.findall(page.read_text(encoding="utf-8")) if "#SBATCH" not in block]
    return [line.strip() for line in "\n".join(found).replace("\\\n", " ").splitlines()]


def parse_line(page: str, text: str) -> LaunchLine:
    given = shlex.split(text)
    settings = {}
    while re.fullmatch(r"[A-Z_]+=\S+", given[0]):
        name, _, value = given.pop(0).partition("=")
        settings[name] = value
    launcher = given.pop(0) if given[0] in LAUNCHERS else ""
    if not launcher:
        return LaunchLine(page, text, settings, "", [], given[0], given[1:])
    given = given[1:] if launcher == "accelerate" else given
    at = given.index("-m")
    return LaunchLine(page, text, settings, launcher, given[:at], given[at + 1], given[at + 2 :])


def prepare(place: Path) -> Path:
    """A folder with all that the lines read: a tiny LLaDA, an order for it, files to train on and the benchmarks' own."""
    folder = write(place / DENOISER, "llada", max_sequence_length=4096)
    words(size=31, eos=27, chat=True).save_pretrained(folder)
    denoiser = load_denoiser(folder)
    policy = build_policy(PolicyConfig(kind="mlp", width=8, tokens=False), denoiser, DENOISER)
    policy.save_pretrained(place / "runs" / "order" / "policy", config=policy.config)
    (place / "gsm8k").mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"w{n + 3} w{2 * n}", "answer": f"w{n}\n#### {2 + 20 * (n % 2)}"} for n in range(12)]
        _write_lines(place / "gsm8k" / f"{split}.jsonl", rows)
    (place / "mbpp").mkdir()
    code = [
        {"task_id": n, "text": f"w{n % 20} w3", "code": f"w{n % 7 + 2}", "test_list": [f"w{n % 5 + 2}"] * 3,
         "test_setup_code": "", "challenge_test_list": []}
        for n in (2, 3, 4, 11, 12, 13, *range(601, 640))
    ]  # fmt: skip
    _write_lines(place / "mbpp" / "mbpp.jsonl", code)
    lines = [{"prompt": f"w{n % 9 + 2} w{n % 5 + 3}", "completion": f"w{n % 7 + 2} w{n % 3 + 4}"} for n in range(60)]
    for name in ("gsm8k-train", "mbpp-train", "train"):
        _write_lines(place / f"{name}.jsonl", lines)
    return place


def _write_lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
