"""Schedulers by name: heuristics with their options, learned policies by shipped name or folder."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from safetensors import SafetensorError

from unmask.assets import POLICIES
from unmask.decoding.protocols import DeclaredScheduler, Denoiser, Scheduler, needs_truth, prices_all
from unmask.denoisers.checkpoint import Checkpoint, read_json
from unmask.denoisers.config import LARGEST_GRID
from unmask.denoisers.hub import digest
from unmask.runs.config import read
from unmask.runs.names import EntryPoints, build
from unmask.schedulers.config import PURPOSES, PolicyConfig
from unmask.schedulers.policy import OrderPolicy, choose_network

SCHEDULERS = EntryPoints("unmask.schedulers")
"""Name → the scheduler, or a function of its options."""
BEST, GENERAL = "sas", "sas-general"
"""Names of shipped policies that the denoiser completes. Where the general one is the best, it ships once, as that."""
MOST_DIGITS = 6
"""Decimals that a score in float32 may be rounded to."""
NAME = "unmask_name"
"""The key of ``config.json`` in which ``unmask models`` keeps a model's name."""


def list_policies() -> list[str]:
    """The learned policies inside the package."""
    return [name for name in _list_shipped() if not name.startswith(tuple(f"{head}-" for head in PURPOSES[1:]))]


def _list_shipped() -> list[str]:
    """Policies and heads."""
    return sorted(path.parent.name for path in POLICIES.glob("*/model.safetensors"))


def published_name(denoiser: str) -> str:
    """The name of a denoiser whose folder may have any: ``unmask models`` leaves it in the configuration."""
    file = Path(denoiser) / "config.json"
    return str(read_json(file).get(NAME, denoiser)) if file.exists() else denoiser


def load_scheduler(spec: str, denoiser: Denoiser | None = None, denoiser_name: str = "") -> Scheduler:
    """A scheduler by name, with options after colons: ``confidence``, ``pc_sampler:decay=0:cap=10``.

    A learned policy by its shipped name, its folder (or the run that trained it), or ``sas``: the best shipped one of the denoiser;
    ``sas-general`` is the shipped general one. ``round=2`` after any of them rounds its scores to so many decimals.
    With ``denoiser``, a policy that was trained for another is refused, and one that fits is moved to the same device.
    """
    spec, digits = _split_digits(spec)
    if digits is not None:
        return _rounded(load_scheduler(spec, denoiser, denoiser_name), digits)
    folder = _find_policy(spec, denoiser_name)
    if folder is not None:
        return _load_policy(folder, denoiser)
    if spec in (BEST, GENERAL):
        known = ", ".join(list_policies()) or "none"
        raise ValueError(
            f"no policy {spec} ships for the denoiser {denoiser_name!r}: learn one with unmask train; shipped are {known}"
        )
    return build(spec, SCHEDULERS, "scheduler")


def load_head(purpose: str, name: str, denoiser: Denoiser) -> OrderPolicy:
    """A head (:mod:`.heads`) by its shipped name, its folder, or the run that trained it; by default the shipped one."""
    own = name or f"{purpose}-{published_name(getattr(denoiser, 'name', ''))}"
    folder = _find_policy(own, "")
    if folder is not None:
        return _load_policy(folder, denoiser, purpose)
    known = ", ".join(policy for policy in _list_shipped() if policy.startswith(f"{purpose}-")) or "none"
    raise ValueError(
        f"no {purpose} head {own!r}: learn one with unmask train (objective {purpose!r}) and name its folder with the option head; "
        f"shipped are {known}"
    )


def _split_digits(spec: str) -> tuple[str, int | None]:
    """A scheduler's name without its option ``round``, and that option."""
    parts = spec.split(":")
    found = [part for part in parts[1:] if part.startswith("round=")]
    if not found:
        return spec, None
    digits = found[-1].removeprefix("round=")
    if not digits.isdecimal() or int(digits) > MOST_DIGITS:
        raise ValueError(
            f"scheduler {spec!r}: round must be a number of decimals in 0 .. {MOST_DIGITS}, got {digits!r}"
        )
    return ":".join(part for part in parts if part not in found), int(digits)


def _rounded(scheduler: Scheduler, digits: int) -> DeclaredScheduler:
    """Positions whose scores agree to so many decimals go by their index: a hair no longer makes sure ones change places."""
    return DeclaredScheduler(
        lambda view: scheduler(view).float().round(decimals=digits), needs_truth(scheduler), prices_all(scheduler)
    )


def list_heads(purpose: str) -> list[str]:
    """The denoisers that a head of this purpose ships for."""
    return [name.removeprefix(f"{purpose}-") for name in _list_shipped() if name.startswith(f"{purpose}-")]


def describe_policy(spec: str, denoiser_name: str = "") -> dict[str, str]:
    """What a run stores of a learned policy's files: their digest. Nothing for a heuristic, which has none."""
    folder = _find_policy(spec, denoiser_name)
    return {} if folder is None else {"sha256": digest([folder / "config.json", folder / "model.safetensors"])}


def _find_policy(spec: str, denoiser_name: str) -> Path | None:
    names = [spec]
    if spec in (BEST, GENERAL) and denoiser_name:
        own = published_name(denoiser_name)
        names = [f"{spec}-{own}"]
        if spec == GENERAL and _ships_general(f"{BEST}-{own}"):
            names.append(f"{BEST}-{own}")
    folders = [folder for name in names for folder in (POLICIES / name, Path(name) / "policy", Path(name))]
    return next(
        (one for one in folders if (one / "model.safetensors").exists() and (one / "config.json").exists()), None
    )


def _ships_general(name: str) -> bool:
    """Is the shipped policy of this name of the general kind?"""
    file = POLICIES / name / "config.json"
    return file.exists() and read_json(file).get("kind") == "general"


def _load_policy(folder: Path, denoiser: Denoiser | None, purpose: str = "order") -> OrderPolicy:
    _check_config(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the hub's loader prints, a library does not
            policy = OrderPolicy.from_pretrained(str(folder), strict=True)
    except (OSError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder} is not an order policy: {str(error).strip().splitlines()[0]}") from error
    if policy.config.purpose != purpose:
        raise ValueError(f"{folder} was learned for another purpose: expected {purpose}, got {policy.config.purpose}")
    policy.requires_grad_(False).eval()
    return policy if denoiser is None else policy.check(denoiser).to(getattr(denoiser, "device", "cpu"))


def _check_config(folder: Path) -> None:
    """Check the types of a configuration, and its sizes before memory is allocated for them."""
    file = folder / "config.json"
    stored = read_json(file)
    config = read(PolicyConfig, {key: value for key, value in stored.items() if value is not None}, str(file))
    choose_network(config).require_plausible(config, Checkpoint(folder).shapes, folder / "model.safetensors")
    if config.size is not None and not 1 <= config.size <= LARGEST_GRID:
        raise ValueError(f"{folder / 'config.json'}: size must be in 1 .. {LARGEST_GRID}, got {config.size}")
