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


def atomic_write(path: str | Path, content: bytes) -> None:
    """Replace the file: after a crash it holds the old content or the new, never a part."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
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


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace a safetensors file as :func:`atomic_write` does; OSError if the disk does not take it."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        save_file(_untie(tensors), aside)
        sync(aside)
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):  # which has neither the file's name nor the number of the error
            raise OSError(f"could not write {path}: {error}") from None
        raise
    sync(path.parent)


@contextmanager
def write_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, whose files move into ``folder`` at the end, each complete, the weights last.

    If ``folder`` has weights, it has everything else that belongs to them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
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
        os.fsync(file)
    finally:
        os.close(file)


def _untie(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and contiguous; of tied weights, which safetensors refuses, the second name gets a copy."""
    separate = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    first = {tensor.untyped_storage().data_ptr(): name for name, tensor in reversed(separate.items())}
    owners = set(first.values())
    return {name: tensor if name in owners else tensor.clone() for name, tensor in separate.items()}
