"""Full disks, folders that may not be written, damaged files, denoisers that answer NaN: one line, exit code 2, nothing lost."""

from __future__ import annotations

import ast
import errno
import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support import kill_harness
from support.commands import Call
from support.presets import TINY, TINY_STAGE
from unmask.assets import POLICIES
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.runs import atomic as writing
from unmask.runs.atomic import save_tensors, write_folder
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.training.policy.run import PolicyRun, run_policy_training

pytestmark = pytest.mark.usefixtures("unchecked")

SOURCE = Path(writing.__file__).parents[1]
SHORT = TINY.replace('clues = "5-7"', 'clues = "10-12"').replace("save_every = 2", "save_every = 1")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was left after three of its steps, with two checkpoints; ``whole`` beside it was not left."""
    folder = tmp_path_factory.mktemp("half")
    (folder / "tiny.toml").write_text(SHORT)
    config = load_preset(folder / "tiny.toml", PolicyRun)
    list(run_policy_training(config, folder / "whole"))
    count = iter(range(100))
    list(run_policy_training(config, folder / "half", stop=lambda: next(count) >= 2))
    return folder


@pytest.fixture
def training(half: Path, tmp_path: Path) -> Path:
    """A copy of that training to damage."""
    for name in ("tiny.toml", "half"):
        copy = shutil.copytree if (half / name).is_dir() else shutil.copy
        copy(half / name, tmp_path / name)
    return tmp_path / "half"


def one_line(code: int, err: str, *messages: str) -> None:
    assert code == 2, err
    assert err.count("\n") == 1, err
    for message in messages:
        assert message in err, err


def goes_on(command: Call, training: Path, half: Path) -> None:
    """The training resumes, and ends with the weights of the one that nothing happened to."""
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "half", "--resume")
    assert (code, err) == (0, "")
    ended, whole = (folder / "policy" / "model.safetensors" for folder in (training, half / "whole"))
    assert ended.read_bytes() == whole.read_bytes()


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full(command: Call, small_disk: Path, training: Path, half: Path) -> None:
    shutil.copytree(training, small_disk / "half")
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    before = Run(small_disk / "half").load_latest()
    code, _, err = command("train", "--preset", "tiny.toml", "--out", str(small_disk / "half"), "--resume")
    one_line(code, err, "No space left on device")
    after = Run(small_disk / "half").load_latest()
    assert before is not None and after is not None and after.step >= before.step and not after.skipped
    filler.unlink()
    shutil.rmtree(training)
    shutil.copytree(small_disk / "half", training)
    goes_on(command, training, half)


def test_a_file_that_may_not_grow(training: Path, half: Path, command: Call) -> None:
    """Checkpoints do not fit, metrics do: the error names the file, and the checkpoint before still counts."""
    limit, output = 3000, training.parent / "output"
    assert any(path.stat().st_size > limit for path in training.rglob("state.safetensors"))
    child = os.fork()
    if child == 0:  # the limit can be lowered, but not raised again
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            code, _, err = command("train", "--preset", "tiny.toml", "--out", "half", "--resume")
            output.write_text(f"{code} {err}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    code, _, err = output.read_text().partition(" ")
    one_line(int(code), err, "File too large")
    goes_on(command, training, half)


@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_a_disk_that_fails_at_any_call(call: str, training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that makes something durable or visible fails once, for every place where there is one."""
    original = getattr(os, call)
    count, failing = [0], [0]

    def fails(*args: object, **options: object) -> object:
        count[0] += 1
        if count[0] == failing[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **options)

    monkeypatch.setattr(os, call, fails)
    place = training.parent / "copies"
    for n in range(1, 30, 4):
        failing[0], folder = 0, place / str(n)
        shutil.copytree(training, folder)
        count[0], failing[0] = 0, n
        with pytest.raises(OSError, match="No space left"):
            run = Run(folder)
            for step in range(4, 40):
                run.log({"step": step})
                run.save(step, {"x": torch.ones(3)}, {})
                run.rewind(step)
        found = Run(folder).load_latest()
        assert found is not None and not found.skipped
        shutil.rmtree(folder)


def test_tensors_that_cannot_be_written_leave_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})

    def full(*_: object) -> None:
        raise writing.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(OSError, match=r"could not write .*a\.safetensors.*No space left"):
        save_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(2)})
    assert load_file(tmp_path / "a.safetensors")["x"].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_folder_gets_its_weights_last(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(RuntimeError), write_folder(folder) as aside:
        (aside / "model.safetensors").write_bytes(b"half")
        raise RuntimeError
    assert list(folder.iterdir()) == [] and [path.name for path in tmp_path.iterdir()] == ["model"]
    moved: list[str] = []
    original = os.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda a, b: (moved.append(Path(b).name), original(a, b)))
        with write_folder(folder) as aside:
            for name in ("model.safetensors", "zebra.md", "config.json"):
                (aside / name).write_text(name)
    assert moved == ["config.json", "zebra.md", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "locked/run")
    one_line(code, err, "Permission denied")


def test_a_folder_without_write_permission(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "/proc/run")
    one_line(code, err, "/proc/run")
    (tmp_path / "file").touch()
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "file/run")
    one_line(code, err, "file")


# Checkpoints


def regions(path: Path) -> dict[str, tuple[int, int]]:
    """Where the parts of a safetensors file lie: the header's length, the header, the tensors."""
    header = int.from_bytes(path.read_bytes()[:8], "little")
    return {"length": (0, 8), "header": (8, 8 + header), "tensors": (8 + header, path.stat().st_size)}


@pytest.mark.parametrize(
    "part", ["length", "header", "tensors", "json", "truncated", "empty", "grown", "gone", "folder"]
)
def test_a_damaged_checkpoint_is_passed_over(part: str, training: Path, half: Path, command: Call) -> None:
    latest = json.loads((training / "checkpoints" / "latest.json").read_text())["folder"]
    file = training / "checkpoints" / latest / ("state.json" if part == "json" else "state.safetensors")
    content, chance = bytearray(file.read_bytes()), np.random.default_rng(0)
    if part in ("length", "header", "tensors", "json"):
        low, high = (0, len(content)) if part == "json" else regions(file)[part]
        content[chance.integers(low, high)] ^= 1 << int(chance.integers(8))
        file.write_bytes(content)
    elif part == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif part == "empty":
        file.write_bytes(b"")
    elif part == "grown":
        file.write_bytes(bytes(content) + b"x")
    else:
        file.unlink()
        if part == "folder":
            file.mkdir()
    found = Run(training).load_latest()
    assert found is not None and len(found.skipped) == 1 and latest in found.skipped[0]
    assert found.step == 2
    if part in ("tensors", "json"):
        goes_on(command, training, half)


def test_only_damaged_checkpoints_are_an_error(training: Path, command: Call) -> None:
    for file in training.rglob("state.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "half", "--resume")
    one_line(code, err, "every checkpoint", "damaged", "delete the folder `checkpoints`")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"steps": 1}'])
def test_a_damaged_configuration_is_an_error(content: bytes, training: Path, command: Call) -> None:
    (training / "config.json").write_bytes(content)
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "half", "--resume")
    one_line(code, err, "cannot resume", "name another folder")


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"earlier": 3}'])
def test_damaged_notes_do_not_stop_a_run(content: bytes, training: Path, half: Path, command: Call) -> None:
    (training / "versions.json").write_bytes(content)
    with open(training / "metrics.jsonl", "ab") as file:
        file.write(b"[" * 100_000 + b"\n" + content + b'\n{"step": "x"}\n{"step": 3, "l')
    goes_on(command, training, half)
    assert [record["step"] for record in Run(training).metrics() if "step" in record] == list(range(1, 7))


def test_damaged_orders_are_an_error(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_STAGE)
    words = ("finetune", "--preset", "tiny.toml", "--out", "tuned", "--samples", "16")
    assert command(*words)[0] == 0
    shutil.rmtree(tmp_path / "tuned" / "checkpoints")
    for file in (tmp_path / "tuned" / "orders").rglob("*.*"):
        file.write_bytes(file.read_bytes()[:-3])
    code, _, err = command(*words, "--resume")
    one_line(code, err, "orders", "damaged", "delete the file to draw them again")


def test_what_killed_processes_leave_is_removed(training: Path, half: Path, command: Call) -> None:
    left = [".config.json.0123abcd", "checkpoints/.latest.json.89abcdef", ".policy.00000000/model.safetensors"]
    for name in left:
        (training / name).parent.mkdir(exist_ok=True)
        (training / name).write_text("half")
    (training / ".mine").write_text("not ours")
    goes_on(command, training, half)
    assert not any((training / name).exists() for name in left)
    assert (training / ".mine").exists()


# Denoisers and policies


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_denoiser_that_answers_no_numbers(value: float, command: Call, tmp_path: Path) -> None:
    denoiser = load_denoiser("sudoku-4x4")
    with torch.no_grad():
        denoiser.head.weight.fill_(value)
    save_denoiser(denoiser, tmp_path / "broken")  # pyright: ignore
    (tmp_path / "tiny.toml").write_text(TINY)
    code, _, err = command("evaluate", "--denoiser", "broken", "--schedulers", "confidence", "--limit", "2")
    one_line(code, err, "NaN or infinite")
    code, _, err = command("train", "--preset", "tiny.toml", "--denoiser", "broken", "--out", "run")
    one_line(code, err, "NaN or infinite")


def test_a_policy_of_another_denoiser(command: Call) -> None:
    words = ("evaluate", "--denoiser", "sudoku-9x9-imperfect", "--limit", "1", "--schedulers")
    code, _, err = command(*words, "sas-sudoku-4x4")
    one_line(code, err, "trained for 5 tokens")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    shutil.copytree(POLICIES / "sas-sudoku-4x4", folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 10**9}, "needs"),
        ({"n_layers": 10**9}, "1,000,000,000 layers"),
        ({"n_layers": 0}, "n_layers: expected"),
        ({"width": "16"}, "expected a valid integer"),
        ({"size": 10**6}, "size must be"),
        ({"kind": "pickle"}, "kind must be"),
        ({"temperature": 0}, "temperature: expected"),
        ({"depth": 3}, "unknown key"),
        ({"features": ["mood"]}, "features must be"),
    ],
)
def test_a_policy_with_a_hostile_configuration(change: dict[str, object], message: str, policy: Path) -> None:
    stored = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(stored | change))
    with pytest.raises(ValueError, match=message):
        load_scheduler(str(policy), load_denoiser("sudoku-4x4"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 10**9}, "1,000,000,000 layers"),
        ({"vocab_size": 10**12}, "vocab_size: expected a number less than"),
        ({"vocab_size": 10**9}, "needs"),
        ({"width": 0}, "width: expected"),
        ({"n_heads": 0}, "n_heads: expected"),
        ({"grid": 10**6}, "grid: expected"),
        ({"mask_id": 99}, "below vocab_size"),
        ({"norm_eps": 0}, "norm_eps: expected"),
        ({"n_layers": 2.5}, "expected a valid integer"),
    ],
)
def test_a_denoiser_with_a_hostile_configuration(
    change: dict[str, object],
    message: str,
    command: Call,
    tmp_path: Path,
) -> None:
    folder = save_denoiser(load_denoiser("sudoku-4x4"), tmp_path / "mine")  # pyright: ignore
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | change))
    code, _, err = command("evaluate", "--denoiser", "mine", "--schedulers", "confidence", "--limit", "1")
    one_line(code, err, message)


# Giant and empty


def test_more_than_there_is_memory_for(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY.replace("prompts = 2", f"prompts = {10**13}"))
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "run")
    one_line(code, err, "out of memory", "use smaller")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed = 99999999999999999999", "seed must be in"),
        ("clip = nan", "NaN"),
        ("lr = inf", "lr must be"),
        ("steps = true", "expected a valid integer"),
        ("a = " + "[" * 5000, "nested beyond reason"),
    ],
)
def test_a_hostile_preset(change: str, message: str, command: Call, tmp_path: Path) -> None:
    key = change.partition(" ")[0]
    kept = "\n".join(line for line in TINY.splitlines() if line.partition(" ")[0] != key)
    (tmp_path / "tiny.toml").write_text(f"{kept}\n{change}\n")
    code, _, err = command("train", "--preset", "tiny.toml", "--out", "run")
    one_line(code, err, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"puzzle\n", b"\0\0\0", b"\xff\xfe\xfd", b"puzzle\n" + b"1" * 200_000]
)
def test_a_file_that_holds_no_puzzles(content: bytes, command: Call, tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_bytes(content)
    code, _, err = command("evaluate", "--denoiser", "sudoku-4x4", "--data", "puzzles.csv")
    one_line(code, err, "puzzles.csv")
    assert len(err) < 1000


# Pickles


class Planted:
    """Runs a command as soon as it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.file),)


def test_a_pickle_is_never_loaded(command: Call, policy: Path, training: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    poison = pickle.dumps(Planted(trap))
    pickle.loads(poison)
    assert trap.exists()  # the trap works
    trap.rmdir()
    denoiser = save_denoiser(load_denoiser("sudoku-4x4"), tmp_path / "mine")  # pyright: ignore
    decodes = ("evaluate", "--denoiser", "mine", "--schedulers", "policy", "--limit", "1", "--no-nll")
    reads = ("evaluate", "--denoiser", "sudoku-4x4", "--data", "puzzles.csv", "--schedulers", "confidence")
    (tmp_path / "puzzles.csv").touch()
    (tmp_path / "poison.toml").touch()
    assert command(*decodes)[0] == 0
    for place, words in (
        (policy / "model.safetensors", decodes),
        (policy / "config.json", decodes),
        (denoiser / "model.safetensors", decodes),
        (denoiser / "config.json", decodes),
        (tmp_path / "puzzles.csv", reads),
        (tmp_path / "poison.toml", ("train", "--preset", "poison.toml", "--out", "new")),
    ):
        before = place.read_bytes()
        place.write_bytes(poison)
        code, _, err = command(*words)
        one_line(code, err)
        place.write_bytes(before)
        assert not trap.exists(), place
    for file in [*training.rglob("state.json"), *training.rglob("state.safetensors")]:
        file.write_bytes(poison)
    assert command("train", "--preset", "tiny.toml", "--out", "half", "--resume")[0] == 2
    for name in ("pytorch_model.bin", "model.bin"):
        shutil.rmtree(denoiser)
        denoiser.mkdir()
        (denoiser / "config.json").write_text('{"family": "unmask"}')
        (denoiser / name).write_bytes(poison)
        assert command("evaluate", "--denoiser", "mine", "--schedulers", "confidence", "--limit", "1")[0] == 2
    assert not trap.exists()


def test_nothing_in_the_source_unpickles() -> None:
    """``torch.load`` only with ``weights_only=True``, which builds tensors and runs nothing; ``np.load`` without pickles."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {name.partition(".")[0] for name in names} & {"dill", "joblib", "shelve", "marshal"}, path
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
                assert node.attr.endswith("Error"), f"{path}: of pickle only the names of its errors may be used"
            if isinstance(node, ast.ImportFrom) and node.module == "pickle":
                assert all(alias.name.endswith("Error") for alias in node.names), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert given.get("weights_only") == "True", f"{path}: torch.load without weights_only=True"
        assert not re.search(r"allow_pickle\s*=\s*True|weights_only\s*=\s*False", path.read_text()), path


def test_a_repository_without_safetensors_is_not_unpickled(tmp_path: Path) -> None:
    from unmask.schedulers.policy import OrderPolicy

    with pytest.raises(ValueError, match="never read from a pickle"):
        OrderPolicy._load_as_pickle(None, str(tmp_path), "cpu", True)


# Kills


@pytest.mark.parametrize("job", ["pretrain", "policy", "finetune", "study"])
def test_killed_at_random_moments(job: str, tmp_path: Path) -> None:
    """A few of the kills of tests/support/kill_harness.py; ``make soak`` runs hundreds."""
    kill_harness.warm_up()
    outcome = kill_harness.harass(job, tmp_path, kills=2, seed=1)
    assert outcome.kills == 2


def test_a_benchmark_killed_at_random_moments(tmp_path: Path) -> None:
    """The whole command `unmask lm-eval`, killed and resumed: samples and scores of one that was not, each sample once."""
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")
    kill_harness.warm_up(["lm-eval"])
    outcome = kill_harness.harass("lm-eval", tmp_path, kills=2, seed=1)
    assert outcome.kills == 2
    whole = kill_harness.result(tmp_path / "lm-eval-whole")
    keys = [json.loads(line)["key"] for line in whole["samples.jsonl"]]
    assert len(keys) == len(set(keys)) == whole["results.json"]["documents"] == kill_harness.PROBLEMS


@pytest.mark.slow
def test_killed_hundreds_of_times(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, kill_harness.__file__, "--kills", "100"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{100 * len(kill_harness.JOBS)} kills in all" in done.stdout


def test_tensors_of_a_header_that_lies(tmp_path: Path) -> None:
    """A header that asks for more than the file has is refused by safetensors, in a line."""
    folder = save_denoiser(load_denoiser("sudoku-4x4"), tmp_path / "mine")  # pyright: ignore
    for header in (
        b"",
        b"{}",
        b'{"x": {"dtype": "F32", "shape": [9999999999], "data_offsets": [0, 39999999996]}}',
        b"[" * 9999,
    ):
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            load_denoiser(folder)
    save_file({"x": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="does not fit"):
        load_denoiser(folder)
