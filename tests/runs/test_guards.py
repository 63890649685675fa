"""What a run refuses: other weights under the same name, a lock that is a link, a second writer; and what a failed one leaves."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from support.commands import call
from support.forks import Fork
from support.trainings import DATA, TRAINING
from unmask.assets import MODELS, POLICIES
from unmask.denoisers import hub, loading
from unmask.denoisers.loading import describe_source, load_denoiser
from unmask.runs import atomic, bounded
from unmask.runs.run import Run
from unmask.runs.tensorboard import scalar_writer
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import describe_policy
from unmask.training.policy import run as policy_run
from unmask.training.policy.run import PolicyRun, run_policy_training

NAME = "state.json"


@dataclass(frozen=True)
class Config:
    denoiser: str = "d"


def change_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    first = next(iter(weights))
    weights[first] = weights[first] + 1
    save_file(weights, folder / "model.safetensors")


def test_resuming_with_other_weights_is_refused(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "sudoku-4x4", tmp_path / "d")
    shutil.copytree(POLICIES / "sas-sudoku-4x4", tmp_path / "p")
    training = dataclasses.replace(TRAINING, steps=2, save_every=1, warm_start=1, teacher=str(tmp_path / "p"))
    config = PolicyRun(
        str(tmp_path / "d"), PolicyConfig(kind="grid", width=8, n_layers=1, n_heads=2), data=DATA, training=training
    )
    stop = iter([False, True])
    list(run_policy_training(config, tmp_path / "run", stop=lambda: next(stop)))
    stored = json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert stored["denoiser"] == describe_source(tmp_path / "d") and stored["teacher"] == describe_policy(
        str(tmp_path / "p")
    )
    for what, folder in (("denoiser", tmp_path / "d"), ("teacher", tmp_path / "p")):
        whole = (folder / "model.safetensors").read_bytes()
        change_a_weight(folder)
        with pytest.raises(ValueError, match=f"the files of the {what} have changed since it began"):
            list(run_policy_training(config, tmp_path / "run", resume=True))
        (folder / "model.safetensors").write_bytes(whole)
    for damaged in ("[]", "{}", '{"denoiser": 3}', "{"):
        (tmp_path / "run" / "inputs.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"cannot resume.*(lacks denoiser\.sha256|is damaged)"):
            list(run_policy_training(config, tmp_path / "run", resume=True))
    (tmp_path / "run" / "inputs.json").write_text(json.dumps(stored))
    list(run_policy_training(config, tmp_path / "run", resume=True))


def test_digests_of_adapters_and_heuristics(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from unmask.denoisers.lora import add_lora, save_adapter

    shutil.copytree(MODELS / "sudoku-4x4", tmp_path / "base")
    adapted: Any = add_lora(load_denoiser(tmp_path / "base"), 2, 4.0)
    folder = save_adapter(adapted, tmp_path / "adapter", str(tmp_path / "base"), 2, 4.0, ())
    before = describe_source(folder)
    change_a_weight(tmp_path / "base")
    assert describe_source(folder) != before
    assert describe_policy("confidence") == {} and describe_policy("sas", "sudoku-4x4") != {}


def test_hub_ids_take_a_revision_and_give_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "hub" / "snapshots" / commit
    shutil.copytree(MODELS / "sudoku-4x4", snapshot)
    requested: list[Any] = []

    def fetch(name: str, *inside: str, **options: Any) -> str:
        requested.append((name, *inside, options.get("revision")))
        return str(snapshot / "model.safetensors" if inside else snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    load_denoiser("some/model@v1.0")
    assert describe_source("some/model@refs/pr/3")["revision"] == commit
    assert describe_source("some/model")["sha256"] == describe_source("sudoku-4x4")["sha256"]
    describe_source("some/model@main/deep/file.safetensors")
    assert requested == [
        ("some/model", "v1.0"), ("some/model", "refs/pr/3"), ("some/model", None), ("some/model", "deep/file.safetensors", "main")
    ]  # fmt: skip
    assert [
        hub.parse_hub_id(name) for name in ("a/b/c", "a/b@", "/a/b", "./a", "~/b", "a@b/c", "a/b@c@d", "", "a/b@/c")
    ] == [None] * 9
    paths = ("a/..", "a/.", "a/b/../c.safetensors", "a/b@main/../../c.safetensors", "a/b@main/./c.safetensors")
    assert [hub.parse_hub_id(name) for name in paths] == [None] * 5
    assert hub.parse_hub_id("a/b..c@v1/d/e..safetensors.safetensors") is not None
    with pytest.raises(ValueError, match="no denoiser 'some/model@'"):
        load_denoiser("some/model@")
    assert loading.list_denoisers()


def test_weights_in_the_cache_of_the_hub_are_not_read_again(tmp_path: Path) -> None:
    """Their name is their digest."""
    (tmp_path / "blobs").mkdir()
    name = "ab" * 32
    (tmp_path / "blobs" / name).write_bytes(b"x")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / name)
    before = hub.digest([tmp_path / "model.safetensors"])
    (tmp_path / "blobs" / name).write_bytes(b"y")
    assert hub.digest([tmp_path / "model.safetensors"]) == before
    (tmp_path / "blobs" / name).rename(tmp_path / "blobs" / "etag")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "etag")
    assert hub.digest([tmp_path / "model.safetensors"]) != before


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling", "folder", "fifo"])
def test_a_lock_that_is_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("kept")
    folder.mkdir()
    make = {
        "symbolic": lambda path: path.symlink_to(precious),
        "hard": lambda path: path.hardlink_to(precious),
        "dangling": lambda path: path.symlink_to(tmp_path / "made"),
        "folder": Path.mkdir,
        "fifo": os.mkfifo,
    }
    make[kind](folder / ".lock")
    with pytest.raises(ValueError, match=r"\.lock is not a file of this run's: remove it"):
        Run.create(folder, Config())
    assert precious.read_text() == "kept" and not (tmp_path / "made").exists()


def test_deleting_the_lock_admits_no_second_writer(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Config())

    def enter() -> None:
        with Run(run.folder).lock():
            print("in")

    with run.lock():
        (run.folder / ".lock").unlink()
        with pytest.raises(ValueError, match="is in use by another process"), run.lock():
            pass
        (run.folder / ".lock").unlink(missing_ok=True)
        out, err = Fork(enter, tmp_path).communicate()
        assert "in use" in err and out == ""
    with run.lock():
        pass


def test_lines_are_not_written_through_links(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Config())
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (run.folder / "metrics.jsonl").symlink_to(precious)
    with pytest.raises(OSError):
        run.log({"step": 1})
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_the_message_of_a_full_disk_names_the_file(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = Run.create(tmp_path / "run", Config())
    if where == "write":
        with pytest.raises(OSError, match=r"No space left on device.*/dev/full"):
            atomic.append(Path("/dev/full"), b"x")
        return
    monkeypatch.setattr(atomic.os, where, fail)
    for write in (
        lambda: atomic.atomic_write(tmp_path / NAME, b"x"),
        lambda: atomic.save_tensors(tmp_path / NAME, load_file(MODELS / "sudoku-4x4" / "model.safetensors")),
        lambda: run.save(1, {}, {}),
    ):
        with pytest.raises(OSError) as full:
            write()
        assert NAME in str(full.value.filename) or "state." in str(full.value.filename), full.value
        assert "No space left on device" in str(full.value)


def test_tensorboard_has_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    threads = threading.active_count()
    log = scalar_writer(tmp_path, 3)
    log({"step": 4, "loss": 0.5, "note": "x"})
    log({"step": 5, "loss": 0.25})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [(one.step, one.value) for one in found] == [(4, 0.5), (5, 0.25)]

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "events")

    monkeypatch.setattr("unmask.runs.tensorboard.append", fail)
    with pytest.raises(OSError, match="No space left"):
        log({"step": 6, "loss": 0.1})
    assert threading.active_count() == threads


def test_a_run_that_fails_before_its_first_step_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PolicyRun(
        "sudoku-4x4", PolicyConfig(kind="grid", width=8, n_layers=1, n_heads=2), data=DATA, training=TRAINING
    )

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("does not fit into memory")

    with monkeypatch.context() as patched:
        patched.setattr(policy_run, "preflight", fail)
        with pytest.raises(ValueError, match="does not fit"):
            list(run_policy_training(config, tmp_path / "run"))
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "other").mkdir()
    run = Run.create(tmp_path / "other", Config())
    for produce in (
        lambda: run.save(1, {}, {}),
        lambda: run.log({"step": 1}),
        lambda: (run.folder / "mine").write_text("x"),
    ):
        with pytest.raises(ZeroDivisionError), run.work():
            produce()
            raise ZeroDivisionError
        assert (run.folder / "config.json").exists()
        for path in (run.folder / "metrics.jsonl", run.folder / "mine"):
            path.unlink(missing_ok=True)
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
    (run.folder / "config.json").unlink()
    (run.folder / "versions.json").write_text("another's")
    with pytest.raises(ValueError, match="to be absent or empty"):
        Run.create(run.folder, Config())
    assert (run.folder / "versions.json").exists()


def test_a_checkpoint_without_a_key(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Config())
    folder = run.save(1, {}, {"a": 1})
    from unmask.runs.run import _checksum

    whole = json.loads((folder / NAME).read_text())
    for key in ("step", "state", "tensors"):
        content = {name: value for name, value in whole.items() if name not in (key, "checksum")}
        (folder / NAME).write_text(json.dumps({**content, "checksum": _checksum(content)}))
        with pytest.raises(ValueError, match=r"every checkpoint .* is damaged .*lacks its step"):
            run.load_latest()


def test_a_training_whose_checkpoint_lacks_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = PolicyConfig(kind="grid", width=8, n_layers=1, n_heads=2)
    config = PolicyRun("sudoku-4x4", shape, data=DATA, training=dataclasses.replace(TRAINING, steps=2, save_every=1))
    stop = iter([False, True])
    list(run_policy_training(config, tmp_path / "run", stop=lambda: next(stop)))
    run = Run(tmp_path / "run")
    whole = run.load_latest()
    assert whole is not None
    for lacking in ("optimizer", "best_score"):
        run.save(whole.step, whole.tensors, {key: value for key, value in whole.state.items() if key != lacking})
        with pytest.raises(ValueError, match=rf"the checkpoint of step . lacks '{lacking}'"):
            list(run_policy_training(config, run.folder, resume=True))
    run.save(whole.step, {}, whole.state)
    with pytest.raises(ValueError, match=r"the checkpoint of step . lacks"):
        list(run_policy_training(config, run.folder, resume=True))


EMPTY = "1.34341221434321"


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (["decode", EMPTY, "--steps", "9" * 20], None, "steps"),
        (["decode", EMPTY, "--block", "9" * 20], None, "block"),
        (["decode", EMPTY, "--denoiser", "x" * 5000], None, "too long"),
        (["decode", EMPTY, "--top-k", "9" * 20], None, "top-k"),
        (["decode", EMPTY, "--token-temperature", "nan"], None, "token"),
        (["decode", EMPTY, "--token-temperature", "inf"], None, "token"),
        (["decode", EMPTY, "--order-temperature", "nan"], None, "order"),
        (["decode", EMPTY, "--top-p", "nan"], None, "top"),
        (["decode", EMPTY, "--guidance", "nan"], None, "guidance"),
        (["decode", EMPTY, "--speed", "nan"], None, "speed"),
        (["decode", EMPTY, "--pace", "threshold:p=0.9:p=0.8"], None, "twice"),
        (["decode", EMPTY, "--scheduler", ""], None, "no scheduler ''"),
        (["decode", EMPTY, "--denoiser", ""], None, "denoiser"),
        (["generate", "--denoiser", "sudoku-4x4", "--length", "9" * 20], '{"prompt": "x"}', ""),
        (["generate", "--denoiser", "sudoku-4x4"], '{"prompt": ' + "[" * 100_000, "line 1"),
        (["generate", "--denoiser", "sudoku-4x4"], '{"prompt": ' + "9" * 5000 + "}", "line 1"),
        (["evaluate", "--denoiser", "sudoku-4x4", "--limit", "9" * 20], None, "count"),
    ],
)
def test_values_beyond_reason_are_one_line(
    words: list[str],
    stdin: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = call(monkeypatch, capsys, *words, stdin=stdin)
    assert code == 2 and len(err.splitlines()) == 1 and message in err and len(err) < 2100, err


def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import torch

    from support.families import write
    from support.tokenizers import words

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    folder = write(tmp_path / "llada", "llada")
    words(size=31, eos=27).save_pretrained(folder)
    for device in ("cuda", "cuda:7", "mps", "toaster", "cpu:x", "meta"):
        code, _, err = call(
            monkeypatch,
            capsys,
            "generate",
            "--denoiser",
            str(folder),
            "--prompt",
            "w1",
            "--length",
            "2",
            "--device",
            device,
        )
        assert code == 2 and len(err.splitlines()) == 1 and device.partition(":")[0] in err, (device, err)


@pytest.mark.parametrize(
    "words",
    [
        ["decode", "/dev/zero"],
        ["view", "/dev/zero"],
        ["report", "/dev/zero"],
        ["generate", "--denoiser", "sudoku-4x4", "--file", "/dev/zero"],
        ["train", "--preset", "zero.toml", "--out", "run"],
    ],
)
def test_a_device_without_an_end_is_not_read(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bounded, "LARGEST", 2**16)
    Path("zero.toml").symlink_to("/dev/zero")
    code, _, err = call(monkeypatch, capsys, *words)
    assert code == 2 and len(err.splitlines()) == 1 and "is it" in err, err


def test_keys_nested_beyond_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.toml").write_text("a" + ".a" * 5000 + " = 1")
    code, _, err = call(monkeypatch, capsys, "train", "--preset", "deep.toml", "--out", "run")
    assert code == 2 and len(err.splitlines()) == 1 and "nested beyond reason" in err, err


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (["--length", "2"], '{"prompt": "\\ud800"}', "surrogate"),
        (["--length", "2", "--prompt", "w3 \udcff"], None, "surrogate"),
        (["--infill", "--prompt", "w3 <mask:99999999999999999999>"], None, "at most 1,000,000"),
        (["--infill", "--prompt", "w3 <mask:9999999999>"], None, "at most 1,000,000"),
        (["--infill", "--prompt", "w3 <mask:0>"], None, "at least 1"),
    ],
)
def test_prompts_that_are_no_text_and_gaps_without_end(
    words: list[str],
    stdin: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from support.text import tiny_llada

    folder = tiny_llada(tmp_path / "llada")
    code, _, err = call(monkeypatch, capsys, "generate", "--denoiser", str(folder), *words, stdin=stdin)
    assert code == 2 and len(err.splitlines()) == 1 and message in err, err


def test_a_configuration_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """Reading it would wait for a writer."""
    shutil.copytree(MODELS / "sudoku-4x4", tmp_path / "d")
    (tmp_path / "d" / "config.json").unlink()
    os.mkfifo(tmp_path / "d" / "config.json")
    with pytest.raises(ValueError, match="it is a pipe or a device"):
        load_denoiser(tmp_path / "d")


@pytest.mark.parametrize(
    "template",
    ["{{ 1/0 }}", "{%", "{{ messages.__class__.__mro__ }}", "{% include 'x' %}", "{{ raise_exception('no\x1b[31m') }}"],
)
def test_a_chat_template_that_fails_is_one_line(
    template: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from support.families import write
    from support.tokenizers import words

    folder = write(tmp_path / "llada", "llada")
    tokenizer = words(size=31, eos=27, chat=True)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    code, _, err = call(
        monkeypatch, capsys, "generate", "--denoiser", str(folder), "--prompt", "w3", "--length", "2", "--chat"
    )
    assert code == 2 and len(err.splitlines()) == 1 and "chat template failed" in err and "\x1b" not in err, err
