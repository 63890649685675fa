"""Run directories: the configuration, metrics and checkpoints of one training run, safe against being killed.

    folder/
      config.json                 the resolved configuration
      versions.json               what it ran on ("earlier": before a resumed run changed it)
      inputs.json                 digests of the denoiser's and the policy's files that it reads
      metrics.jsonl               one JSON object a line, in the order of its "step"
      checkpoints/latest.json     which checkpoint counts
      checkpoints/step-XXXXXXXX/  state.safetensors (tensors) and state.json (the rest, with checksums)
      .lock                       held by the one process that writes here

A file or a checkpoint gets its name only when it is complete: written aside, synced, renamed. Nothing is
pickled. Resuming, in the order in which it must happen:

    run = Run.create(folder, config, resume=True)
    with run.lock():
        checkpoint = run.load_latest()
        run.rewind(checkpoint.step if checkpoint else None)
        ...
        run.log({"step": step, "loss": loss})
        run.save(step, tensors, state)
"""

import dataclasses
import fcntl
import hashlib
import json
import logging
import math
import os
import platform
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load_file
from torch import Tensor

from unmask.runs.atomic import ASIDE, append, atomic_write, save_tensors, sync
from unmask.runs.config import read
from unmask.runs.jsonable import flatten, format_json, read_json, to_jsonable
from unmask.runs.versions import versions

LOG = logging.getLogger(__name__)
OWN = ("config.json", "versions.json", "inputs.json", "metrics.jsonl", "samples.jsonl", ".lock")
"""Files of a run that has produced nothing yet."""
KEPT = 2  # the newest checkpoint, and one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """What `save` was given. `skipped` says which newer checkpoints were damaged, and how."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    skipped: tuple[str, ...] = ()

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Around what reads it: a part that is missing or of another shape is one error."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            lacking = (
                f"lacks {error}" if isinstance(error, KeyError) else f"does not fit: {str(error).partition(chr(10))[0]}"
            )
            raise ValueError(f"the checkpoint of step {self.step} {lacking}; it is of another training") from error


@dataclass(frozen=True)
class Latest:
    """latest.json: which checkpoint counts."""

    step: int
    folder: str


@dataclass(frozen=True)
class Run:
    """A run directory; `Run.create` begins or resumes one, `Run(folder)` only looks at one."""

    folder: Path

    @classmethod
    def create(
        cls,
        folder: str | Path,
        config: Any,
        resume: bool = False,
        may_differ: Collection[str] = (),
        inputs: Mapping[str, Any] | None = None,
    ) -> "Run":
        """Begin a run in `folder` with the dataclass `config`, or `resume` it (begin it if there is none).

        A resumed run must have the stored configuration but for the keys in `may_differ` ("steps"; "policy"
        for "policy.width" and all its kin), whose new values replace the stored ones. `inputs` describes the
        files behind names of the configuration ({"denoiser": {"sha256": ...}}); they must be the same, too.
        """
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise ValueError(f"expected the configuration as a dataclass instance, got {config!r}")
        run, new = cls(Path(folder)), to_jsonable(config, finite=True)
        if run.folder.exists() and not run.folder.is_dir():
            raise ValueError(f"expected a folder for the run, but {run.folder} is a file; name another")
        run.folder.mkdir(parents=True, exist_ok=True)
        with run.lock():  # two processes that start together must not both find the folder empty
            present = run._require_place(resume)
            if present:
                _refuse_changes(_stored(run.folder / "config.json"), new, may_differ, run.folder)
            if present and inputs and (run.folder / "inputs.json").exists():
                _refuse_other_files(_stored(run.folder / "inputs.json"), inputs, run.folder)
            run._sweep()
            atomic_write(run.folder / "config.json", format_json(new))
            if inputs:
                atomic_write(run.folder / "inputs.json", format_json(to_jsonable(inputs)))
            run._write_versions()
        return run

    def _require_place(self, resume: bool) -> bool:
        """Whether there is a run to resume; ValueError if there is something else, or a run that must not be touched."""
        present = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        if present and not resume:
            raise ValueError(
                f"expected {self.folder} to be absent or empty, but it holds {', '.join(present[:3])}; "
                "name another folder, delete this one, or resume the run in it"
            )
        if present and "config.json" not in present:
            raise ValueError(f"cannot resume {self.folder}: it has no config.json; name another folder")
        return bool(present)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder: meanwhile no other process (nor another `lock` in this one) gets it.

        The folder itself is locked, and a file in it that names the holder: deleting that file admits no other. The
        kernel lets go when the process ends, however it ends: a killed run leaves no stale lock.
        """
        with _open_lock(self.folder / ".lock") as file, _open_folder(self.folder) as folder:
            for one in (file.fileno(), folder):
                try:
                    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    reason = f"{self.folder} is in use by {file.read(200) or 'another process'}"
                    raise ValueError(f"{reason}; wait for it to end, or name another folder") from None
                except OSError:  # a file system that locks no folders, as NFS: the file must do
                    if one is not folder:
                        raise
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            yield

    @contextmanager
    def work(self) -> Iterator[None]:
        """`lock`; and if the work fails before it has produced anything, the next try may have another configuration."""
        with self.lock():
            try:
                yield
            except Exception:
                self._clear_if_bare()
                raise

    def _clear_if_bare(self) -> None:
        """Remove what was written, unless there are checkpoints, samples, records past the first or something unknown."""
        unknown = [path for path in self.folder.iterdir() if path.name not in (*OWN, "tensorboard")]
        samples = self.folder / "samples.jsonl"
        if any(not path.is_dir() or any(path.iterdir()) for path in unknown) or (
            samples.exists() and samples.stat().st_size
        ):
            return
        if all(record.get("step") == 0 for record in self.metrics()):
            for name in OWN:
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
            for path in unknown:
                path.rmdir()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append `record`, which should have a "step" (see `rewind`), to metrics.jsonl in a single write."""
        append(self.folder / "metrics.jsonl", json.dumps(to_jsonable(record, finite=True)).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The logged records; a torn line, as a killed process leaves it, is left out."""
        return [record for _, record in _whole_lines(self.folder / "metrics.jsonl")]

    def rewind(self, step: int | None) -> None:
        """Cut metrics.jsonl at the first record past `step` (None: at the beginning); drop torn lines.

        Records without a "step" belong to the record before them.
        """
        path = self.folder / "metrics.jsonl"
        last = -math.inf if step is None else step
        lines = _whole_lines(path) if step is not None else iter(())
        kept = takewhile(lambda pair: _number(pair[1].get("step", last)) <= last, lines)
        if path.exists():
            atomic_write(path, b"".join(line for line, _ in kept))

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, make it the latest, and delete all but the last two. Returns its folder.

        `state` is JSON data (text keys; tuples come back as lists); all else goes through `tensors`.
        """
        if step < 0:
            raise ValueError(f"expected a step >= 0, got {step}")
        folder = self.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        target = folder / f"step-{step:08d}"
        aside = folder / f".{target.name}.{secrets.token_hex(4)}"
        try:
            aside.mkdir()
            save_tensors(aside / "state.safetensors", tensors)
            content = {"step": step, "state": to_jsonable(state), "tensors": _checksum(aside / "state.safetensors")}
            atomic_write(aside / "state.json", format_json({**content, "checksum": _checksum(content)}))
            if (self.folder / "metrics.jsonl").exists():  # no hole before a checkpoint that survives
                sync(self.folder / "metrics.jsonl")
            if target.exists():  # a folder cannot be renamed onto it; it stays readable until the new one is
                replaced = target.with_suffix(".replaced")
                shutil.rmtree(replaced, ignore_errors=True)
                os.rename(target, replaced)
            os.rename(aside, target)
            sync(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        atomic_write(folder / "latest.json", format_json(to_jsonable(Latest(step, target.name))))
        # Later steps are what a run that fell back has left behind: not this run's past any more.
        earlier = [path for path in self._checkpoints() if _step(path) < step]
        for path in {*self._checkpoints(), *folder.glob(".step-*")} - {target, *earlier[: KEPT - 1]}:
            shutil.rmtree(path)
        return target

    def load_latest(self) -> Checkpoint | None:
        """The latest whole checkpoint, None before the first; ValueError if there are only damaged ones.

        Damaged ones that are passed over are logged as warnings.
        """
        latest = self._latest()
        candidates = sorted(self._checkpoints(), key=lambda path: path.name != latest)  # stable: newest first
        skipped: list[str] = []
        for path in candidates:
            try:
                found = dataclasses.replace(_read_checkpoint(path), skipped=tuple(skipped))
                for reason in skipped:
                    LOG.warning("a damaged checkpoint is passed over, the run goes on from %s: %s", path.name, reason)
                return found
            except (OSError, ValueError) as error:
                skipped.append(f"{path.name}: {error}")
        if skipped:
            raise ValueError(
                f"every checkpoint in {self.folder} is damaged ({'; '.join(skipped)}); "
                "restore one from a copy, or delete the folder `checkpoints` to begin again"
            )
        return None

    def _latest(self) -> str | None:
        """The checkpoint that latest.json names; None if that file is absent or damaged."""
        try:
            return read(Latest, read_json(self.folder / "checkpoints" / "latest.json")).folder
        except (OSError, ValueError):
            return None

    def _checkpoints(self) -> list[Path]:
        """Newest first; of one step, the replaced one last."""
        found = (path for path in (self.folder / "checkpoints").glob("step-*") if path.stem[5:].isdecimal())
        return sorted(found, key=lambda path: (_step(path), path.suffix == ""), reverse=True)

    def _sweep(self) -> None:
        """Remove what killed processes were writing. Only under the lock: no other process is writing now."""
        for path in [*self.folder.glob(".*"), *self.folder.glob("*/.*")]:
            if ASIDE.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _write_versions(self) -> None:
        path, now = self.folder / "versions.json", versions()
        try:
            before = read_json(path)
            earlier = before.pop("earlier", []) + ([before] if before != now else [])
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            earlier = []  # a note for people: that it is damaged must not keep a run from going on
        atomic_write(path, format_json({**now, "earlier": earlier} if earlier else now))


def _open_lock(path: Path) -> IO[str]:
    """The file of that name itself: what it is linked to would be emptied."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = open(os.open(path, flags, 0o666), "r+")  # noqa: SIM115
    except OSError as error:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ValueError(f"{path} is not a file of this run's: remove it") from None
        raise error
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        file.close()
        raise ValueError(f"{path} is not a file of this run's: remove it")
    return file


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


def _refuse_other_files(stored: Any, new: Mapping[str, Any], folder: Path) -> None:
    before, now = flatten(stored), flatten(to_jsonable(new))
    if lacking := sorted(key for key in now.keys() - before.keys() if key.endswith("sha256")):
        raise ValueError(
            f"cannot resume {folder}: its inputs.json lacks {lacking[0]}, so that other files would go unnoticed; "
            "restore it from a copy, or name another folder"
        )
    if changed := sorted(key for key in before.keys() & now.keys() if before[key] != now[key]):
        what = " and ".join(dict.fromkeys(key.partition(".")[0] for key in changed))
        first = f"{changed[0]} was {str(before[changed[0]])[:16]}, now {str(now[changed[0]])[:16]}"
        raise ValueError(
            f"cannot resume {folder}: the files of the {what} have changed since it began ({first}); "
            "restore them, or name another folder"
        )


def _stored(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(
            f"cannot resume: {path} is damaged ({error}); restore it from a copy, or name another folder"
        ) from None


def _number(value: Any) -> int | float:
    """A step, or infinity for a value that is none: the record is damaged, and it and what follows it are dropped."""
    return value if isinstance(value, int | float) and value == value else math.inf


def _checksum(content: Any) -> str:
    """SHA-256 of a file, or of JSON data."""
    if not isinstance(content, Path):
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _read_checkpoint(path: Path) -> Checkpoint:
    """ValueError or FileNotFoundError if any byte of it is not as it was written."""
    content = read_json(path / "state.json")
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise ValueError("the checksum of state.json does not match")
    step, state = content.get("step"), content.get("state")
    if type(step) is not int or not isinstance(state, dict) or not isinstance(content.get("tensors"), str):
        raise ValueError("state.json lacks its step, its state or the checksum of its tensors")
    if _checksum(path / "state.safetensors") != content["tensors"]:
        raise ValueError("the checksum of state.safetensors does not match")
    return Checkpoint(step, load_file(path / "state.safetensors"), state)


def _whole_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(record, dict):
            yield line, record


def _refuse_changes(stored: Any, new: Any, may_differ: Collection[str], folder: Path) -> None:
    before, now = flatten(stored), flatten(new)
    changed = [
        f"{key} (stored {before.get(key, 'nothing')!r}, now {now.get(key, 'nothing')!r})"
        for key in sorted(before.keys() | now.keys())
        if (key not in before or key not in now or before[key] != now[key])
        and not any(f"{key}.".startswith(f"{free}.") for free in may_differ)
    ]
    if changed:
        raise ValueError(
            f"cannot resume {folder} with another configuration: {'; '.join(changed)}; "
            "restore these values, or name another folder"
        )
