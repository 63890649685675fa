"""Runs killed with SIGKILL at random moments and resumed: the end must equal, bit for bit, that of an uninterrupted run.

    python tests/kill_harness.py --kills 100 --seed 0

Every job is killed ``--kills`` times, in as many runs as that takes: a run is killed up to ``PER_RUN`` times and then left alone to
end. Moments are drawn from the whole duration of a run; since every step is followed by a checkpoint, many of them fall inside the
writing of one. Children are forks of this process, so a life costs milliseconds and not an import of torch.

The benchmark is the whole command ``unmask lm-eval … --resume``, of which no finished sample may be in the log twice.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import TransformerConfig
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask.training.denoiser.second_stage import SecondStage, run_rounds, run_second_stage
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask_studies.study import Findings, GridStudy, Key, Results, conclude, run_study
from unmask_studies.tables import Table

PER_RUN = 8
PATIENCE = 120.0
"""Seconds after which a child that was left alone counts as hung."""
TIMED = {"seconds", "denoiser_seconds", "update_seconds", "samples_per_second"}
PROBLEMS = 8
"""Of the benchmark."""

DATA = SudokuData(size=4, puzzles=24, clues="9-11")
SHAPE = TransformerConfig(
    vocab_size=5, width=12, n_layers=1, n_heads=3, ffn=16, mask_id=0, max_length=16, positions="learned", grid=4
)
PRETRAIN = Pretrain(SHAPE, DATA, MaskedTraining(samples=80, batch=8, ema=0.9, log_every=3, save_every=1))
LEARN = PolicyRun(
    "sudoku-4x4",
    PolicyConfig(width=4, n_layers=1),
    data=DATA,
    training=PolicyTraining(
        steps=4, prompts=2, states=8, mu=2, correctness=0.5, validate=2, validate_every=2, save_every=1
    ),
)
TUNE = SecondStage(
    "sudoku-4x4",
    "confidence",
    DATA,
    validate=2,
    refresh=2,
    training=MaskedTraining(samples=48, batch=8, lr=1e-3, ema=0.5, log_every=3, save_every=1),
)
ROUND_TUNE = replace(TUNE, refresh=0, training=replace(TUNE.training, samples=16))
ROUND_LEARN = replace(LEARN, training=replace(LEARN.training, steps=2))


def _rounds(folder: Path) -> Iterable[Any]:
    return run_rounds(ROUND_TUNE, ROUND_LEARN, 2, folder, resume=True)


@dataclass(frozen=True)
class SmallStudy(GridStudy):
    """Three evaluations and a training: results that are written whole, and a run inside one of them."""

    schedulers: tuple[str, ...] = ("confidence", "margin", "random")

    def axes(self) -> Sequence[Iterable[str]]:
        return ((*self.schedulers, "training"),)

    def measure(self, key: Key, folder: Path) -> dict[str, Any]:
        name = str(key[0])
        if name == "training":
            for _ in run_policy_training(ROUND_LEARN, folder / "runs" / "policy", resume=True):
                pass
            return {"returns": [record["return"] for record in Run(folder / "runs" / "policy").metrics()]}
        denoiser = load_denoiser("sudoku-4x4")
        row = evaluate(
            SudokuTask(*DATA.boards), denoiser, {name: load_scheduler(name)}, options=EvaluationOptions(limit=4)
        ).rows[0]
        return {"solved": row.solved, "nll": row.nll, "calls": row.denoiser_calls}

    def findings(self, results: Results) -> Findings:
        return Findings(
            [Table.of("all", [{"key": str(key[0]), "result": str(found)} for key, found in results.items()])]
        )


def _study(folder: Path) -> Iterable[Any]:
    study = SmallStudy()
    yield from run_study(study, folder, resume=True)
    yield conclude(study, folder, "small", "none")


def write_benchmark(place: Path) -> None:
    """A tiny LLaDA with random weights and a file of problems in GSM8K's form, for ``unmask lm-eval``."""
    from support.families import write
    from support.tokenizers import words

    model = write(place / "tiny", "llada", max_sequence_length=4096)
    words(size=31, eos=27, chat=True).save_pretrained(model)
    (place / "data" / "gsm8k").mkdir(parents=True)
    for split in ("train", "test"):
        rows = [{"question": f"w{n % 20} w{n}", "answer": f"w{n}\n#### {2 + 20 * (n % 2)}"} for n in range(PROBLEMS)]
        (place / "data" / "gsm8k" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def benchmark_words(place: Path, folder: Path) -> list[str]:
    """The options of ``unmask lm-eval`` on what :func:`write_benchmark` wrote, into ``folder``."""
    given = {"preset": "gsm8k-128-32", "denoiser": place / "tiny", "data": place / "data", "dtype": "float32"}
    given |= {"length": 8, "block": 4, "shots": 2, "batch": 2, "out": folder}
    return [str(word) for name, value in given.items() for word in (f"--{name}", value)]


def _lm_eval(folder: Path) -> Iterable[Any]:
    """The whole command, from its words to its last line."""
    from unmask.cli import main as cli

    sys.argv = ["unmask", "lm-eval", *benchmark_words(folder.parent, folder), "--resume"]
    cli.main()
    return ()


JOBS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "pretrain": lambda folder: pretrain(PRETRAIN, folder, resume=True),
    "policy": lambda folder: run_policy_training(LEARN, folder, resume=True),
    "finetune": lambda folder: run_second_stage(TUNE, folder, resume=True),
    "rounds": _rounds,
    "study": _study,
}
if importlib.util.find_spec("lm_eval"):
    JOBS["lm-eval"] = _lm_eval
PREPARED: dict[str, Callable[[Path], None]] = {"lm-eval": write_benchmark}
"""What a job needs beside its folder."""


@dataclass(frozen=True)
class Outcome:
    """``in_save``: kills that left a checkpoint half written, or a benchmark half done. ``kills`` counts only children at work."""

    job: str
    kills: int
    runs: int
    in_save: int
    seconds: float


def result(folder: Path) -> dict[str, Any]:
    """All that must not depend on when a run was killed: weights, the latest checkpoint, orders as bytes, metrics without times;
    every line of a benchmark's samples, though not which was finished first.

    Older checkpoints may be one more: a save that was killed between its last two acts leaves one for the next save to delete.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        latest = path.parent.parent / "latest.json"
        if latest.exists() and json.loads(latest.read_text())["folder"] != path.parent.name:
            continue
        if path.suffix == ".safetensors" or path.name in ("state.json", "latest.json"):
            found[name] = path.read_bytes()
        elif path.parent.name == "pieces" or path.name == "study.json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key not in TIMED}
        elif path.name == "metrics.jsonl":
            found[name] = [{k: v for k, v in record.items() if k not in TIMED} for record in Run(path.parent).metrics()]
        elif path.name == "samples.jsonl":
            samples = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = sorted(json.dumps({k: v for k, v in one.items() if k not in TIMED}) for one in samples)
        elif path.name == "scores.jsonl":
            found[name] = path.read_bytes()
        elif path.name == "results.json":
            found[name] = json.loads(path.read_text())
            del found[name]["model"]["cost"]["seconds"]
        elif path.name.startswith(".") and path.name != ".lock":
            found[name] = "left behind"
    return found


def half_saved(folder: Path) -> bool:
    """Is there a checkpoint that was being written, or one that is complete but not yet the latest, or samples without a score?"""
    if (folder / "samples.jsonl").exists() and not (folder / "results.json").exists():
        return True
    for checkpoints in folder.rglob("checkpoints"):
        if any(checkpoints.glob(".*")):
            return True
        latest = checkpoints / "latest.json"
        named = json.loads(latest.read_text())["folder"] if latest.exists() else ""
        steps = sorted(path.name for path in checkpoints.glob("step-*"))
        if steps and (steps[-1] != named or len(steps) > 2):
            return True
    return False


def live(job: str, folder: Path, delay: float | None) -> tuple[bool, float]:
    """One child at work in ``folder``, killed after ``delay`` seconds. Was it killed at work, and how long did it live?"""
    sys.stdout.flush()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            for _ in JOBS[job](folder):
                pass
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = began + (PATIENCE if delay is None else delay)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        left = deadline - time.monotonic()
        if left <= 0:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(min(left, 0.002))
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed and delay is None:
        raise AssertionError(f"{job}: a run that was left alone did not end in {PATIENCE} s")
    if not killed and status != 0:
        raise AssertionError(f"{job}: resuming failed\n{folder.with_suffix('.log').read_text()[-3000:]}")
    return killed, time.monotonic() - began


def harass(job: str, place: Path, kills: int, seed: int, per_run: int = PER_RUN) -> Outcome:
    """Kill ``job`` so many times; AssertionError if a resumed run fails, hangs, or ends elsewhere than one that was not killed."""
    began, chance = time.monotonic(), random.Random(f"{job} {seed}")
    if job in PREPARED:
        PREPARED[job](place)
    _, duration = live(job, place / f"{job}-whole", None)
    expected = result(place / f"{job}-whole")
    assert "left behind" not in expected.values()
    done = runs = in_save = 0
    while done < kills:
        folder, here = place / f"{job}-{runs}", 0
        runs += 1
        for _ in range(per_run):
            killed, _ = live(job, folder, chance.uniform(0.0, duration))
            if not killed:
                break
            here += 1
            in_save += half_saved(folder)
            if done + here == kills:
                break
        live(job, folder, None)
        done += here
        got = result(folder)
        different = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
        assert not different, (
            f"{job}, run {runs} after {here} kills, seed {seed}: other than the whole run: {different}"
        )
        shutil.rmtree(folder)
    return Outcome(job, done, runs, in_save, time.monotonic() - began)


def warm_up(jobs: Iterable[str] = ()) -> None:
    """Everything that is slow only once, before the first fork."""
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    benchmark = (
        ("unmask.cli.main", "unmask.evaluation.lm_eval.run", "lm_eval.evaluator", "transformers")
        if "lm-eval" in jobs
        else ()
    )
    for module in ("accelerate", "torch.utils.tensorboard", *benchmark):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports torch's compiler
    DATA(0, 2)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    words.add_argument("--kills", type=int, default=100, help="of each job")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", choices=sorted(JOBS), help="one job")
    options = words.parse_args()
    jobs = [options.only] if options.only else list(JOBS)
    warm_up(jobs)
    total = 0
    with tempfile.TemporaryDirectory() as place:
        for job in jobs:
            outcome = harass(job, Path(place), options.kills, options.seed)
            total += outcome.kills
            killed = f"{outcome.kills} kills, {outcome.in_save} of them inside a save, in {outcome.runs} runs"
            print(f"{job}: {killed}; all ended as the uninterrupted run; {outcome.seconds:.0f} s", flush=True)
    print(f"{total} kills in all")


if __name__ == "__main__":
    main()
