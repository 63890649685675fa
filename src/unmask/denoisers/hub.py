"""Where the files of a denoiser are: a folder, or the hub at a revision; and what they are, so that a resumed run meets the same.

A hub id may name a commit, tag or branch: ``owner/name@revision``, ``owner/name@revision/path/to/file.safetensors``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unmask.assets import MODELS
from unmask.denoisers.checkpoint import has_weights
from unmask.denoisers.lora import base_of, has_adapter

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json")
TOKENIZER = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model")
HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/@][^@]*?))?(?:/(?P<file>[^@]+\.safetensors))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


def parse_hub_id(name: str) -> tuple[str, str | None, str | None] | None:
    """The repository, the revision if one is named, and the file in it if one is; None for what is no hub id."""
    found = HUB_ID.fullmatch(name)
    if found is None or name.startswith("."):
        return None
    if {".", ".."} & {*found["repository"].split("/"), *(found["file"] or "").split("/")}:
        return None  # a path, which leads elsewhere
    return found["repository"], found["revision"], found["file"]


def download(name: str, patterns: list[str], **options: Any) -> Path:
    """The files of a hub id that match, or its one safetensors file. ValueError with one line if that fails."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    parsed = parse_hub_id(name)
    if parsed is None:
        raise ValueError(f"{name!r} is no hub id: expected owner/name, owner/name@revision or a safetensors file in it")
    repository, revision, file = parsed
    at: dict[str, Any] = {} if revision is None else {"revision": revision}
    try:
        if file is not None:
            return Path(hf_hub_download(repository, file, **at))
        return Path(snapshot_download(repository, allow_patterns=patterns, **at, **options))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{name!r} is neither a local folder nor a model on the Hub: {reason}") from error


def describe_denoiser(name: str | Path, find: Callable[[str], Path]) -> dict[str, str]:
    """A digest of the denoiser's weights, configuration and tokenizer; of a hub id also the commit that it stands for.

    ``find`` gives the files of a hub id. An adapter's digest has that of its base in it.
    """
    path = Path(name)
    if path.suffix == ".safetensors" and path.is_file():
        return {"sha256": digest([path])}
    for folder in (MODELS / name, path / "denoiser", path):
        if has_adapter(folder):
            base = describe_denoiser(base_of(folder), find)
            own = digest(_matching(folder))
            return {**base, "sha256": hashlib.sha256(f"{own} {base['sha256']}".encode()).hexdigest()}
        if has_weights(folder):
            return {"sha256": digest(_matching(folder))}
    found = find(str(name))
    commit = next((part for part in found.parts if COMMIT.fullmatch(part)), None)
    files = [found] if found.is_file() else _matching(found)
    return {"sha256": digest(files), **({"revision": commit} if commit else {})}


def _matching(folder: Path) -> list[Path]:
    return [path for pattern in (*WEIGHTS, *TOKENIZER) for path in folder.glob(pattern)]


def digest(files: Iterable[Path]) -> str:
    """SHA-256 of the names and contents of files. The hub's cache has that of large ones as a name: they are not read again."""
    whole = hashlib.sha256()
    for path in sorted(set(files)):
        blob = path.resolve()
        if blob.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", blob.name):
            content = blob.name
        else:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {content}\n".encode())
    return whole.hexdigest()
