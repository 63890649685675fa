"""Writing so that a kill, a crash or a full disk leaves the old content or the new: written aside, synced, renamed."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
ASIDE = re.compile(r"\..+\.[0-9a-f]{8}")
"""Names of what is being written aside; a process that was killed leaves them."""


@contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Put the file's name into an error that has none, as those of a full disk: they come from a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, f"could not write: {error.strerror}", str(path)) from None


def atomic_write(path: str | Path, content: bytes) -> None:
    """Replace the file: after a crash it holds the old content or the new, never a part."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with name_errors(path):
        try:
            with open(aside, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync(path.parent)


def append(path: Path, content: bytes) -> None:
    """Append in a single write, to a file and not to what a link of that name leads to."""
    with name_errors(path), open(path, "ab", buffering=0, opener=_open_itself) as file:
        if file.write(content) != len(content):
            raise OSError(f"could not write all of a line to {path}; is the disk full?")


def _open_itself(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace a safetensors file as :func:`atomic_write` does; OSError if the disk does not take it."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with name_errors(path):
            save_file(_untie(tensors), aside)
            sync(aside)
            os.replace(aside, path)
            sync(path.parent)
    except SafetensorError as error:  # which has neither the file's name nor the number of the error
        raise OSError(f"could not write {path}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def write_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, whose files move into ``folder`` at the end, each complete, the weights last.

    If ``folder`` has weights, it has everything else that belongs to them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with name_errors(folder):
            aside.mkdir()
            yield aside
            for path in sorted(aside.iterdir(), key=lambda path: (path.name == WEIGHTS, path.name)):
                sync(path)
                os.replace(path, folder / path.name)
    except SafetensorError as error:
        raise OSError(f"could not write {folder}: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sync(folder)


def sync(path: Path) -> None:
    """Onto the disk: a file's content, or a folder's names."""
    file = os.open(path, os.O_RDONLY)
    try:
        with name_errors(path):
            os.fsync(file)
    finally:
        os.close(file)


def _untie(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and contiguous; of tied weights, which safetensors refuses, the second name gets a copy."""
    separate = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    first = {tensor.untyped_storage().data_ptr(): name for name, tensor in reversed(separate.items())}
    owners = set(first.values())
    return {name: tensor if name in owners else tensor.clone() for name, tensor in separate.items()}
