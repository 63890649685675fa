"""What this process runs on, stored beside its results."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def versions() -> dict[str, Any]:
    """What this process runs on; the commit only when this source lies in its own repository."""

    def installed(package: str) -> str | None:
        return next((found.version for found in importlib.metadata.distributions(name=package)), None)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    found = {
        "python": platform.python_version(),
        **{package: installed(package) for package in ("unmask", "torch", "numba")},
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # fails in a repository around site-packages
        edited = bool(git("status", "--porcelain", "--", "."))
        return {**found, "commit": git("rev-parse", "HEAD"), "edited": edited}
    except (OSError, subprocess.SubprocessError):
        return found
