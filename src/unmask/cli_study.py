"""``unmask study``: questions that are answered by a table, each by one command."""

from __future__ import annotations

import json as json_text
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from unmask.command_line import console, require_writable
from unmask.registry import did_you_mean, load_denoiser
from unmask.runs import atomic_write, plain
from unmask.theory.four_by_four import Findings, Study, arms, study

STUDIES = ("four-by-four",)


def study_command(
    name: str,
    /,
    denoiser: str = "sudoku-4x4-imperfect",
    seed: int = 1,
    quick: bool = False,
    json: Path | None = None,
) -> None:
    """Answer a question by a table. What learning reaches where the optimum is known exactly (four-by-four).

    $ unmask study four-by-four --json four.json
    $ unmask study four-by-four --quick

    Args:
        name: four-by-four: on 4x4 boards, the share of the way from the best heuristic to the best policy that each advantage
            reaches, and the bias and variance of each gradient estimator against the exact gradient.
        denoiser: A denoiser of 4x4 boards.
        seed: Which held-out boards, initial weights and training stream.
        quick: A small version, for a look: its numbers are not results.
        json: Also write everything to this file.
    """
    if name not in STUDIES:
        raise ValueError(f"no study {name!r}: expected {', '.join(STUDIES)}{did_you_mean(name, STUDIES)}")
    if json is not None:
        require_writable(json)
    config = Study(seed=seed, trainings=arms(seed=seed))
    if quick:
        config = replace(config, puzzles=10, ambiguous=4, groups=40, group_sizes=(2,), estimator_canvases=1)
        config = replace(config, trainings={k: replace(v, steps=5) for k, v in config.trainings.items()})
    findings = study(load_denoiser(denoiser), config)
    console.print(_standings(findings, denoiser))
    console.print(_qualities(findings))
    if json is not None:
        content = {
            "command": shlex.join(["unmask", *sys.argv[1:]]),
            "denoiser": denoiser,
            "config": plain(config),
            **plain(asdict(findings), finite=True),
        }
        atomic_write(json, (json_text.dumps(content, indent=1) + "\n").encode())


def _standings(findings: Findings, denoiser: str) -> Table:
    table = Table(title=f"{denoiser}: exact E[R] of each order, and its share of the way to the best policy")
    for column in ("boards", "order", "n", "E[R], nats", "solved %", "share of the gap", "training calls"):
        table.add_column(column, justify="left" if column in ("boards", "order") else "right")
    for row in findings.standings:
        table.add_row(
            row.boards,
            row.order,
            str(row.count),
            f"{row.value:.3f}",
            "" if row.solved != row.solved else f"{100 * row.solved:.1f}",
            f"{row.share:.2f} [{row.low:.2f}, {row.high:.2f}]",
            str(findings.calls.get(row.order, "")),
        )
    return table


def _qualities(findings: Findings) -> Table:
    table = Table(title="gradient estimators against the exact gradient, at equal sampled orders")
    for column in (
        "policy",
        "estimator",
        "G",
        "bias / |gradient|",
        "variance",
        "trajectory's / its variance",
        "cosine",
    ):
        table.add_column(column, justify="left" if column in ("policy", "estimator") else "right")
    for policy, found in findings.qualities.items():
        plain_variance = {q.group: q.variance for q in found if q.advantage == "trajectory" and not q.normalised}
        for q in found:
            ratio = plain_variance[q.group] / q.variance if q.group in plain_variance and q.variance else float("nan")
            kind = f"{q.advantage}, {q.baseline.replace('_', ' ')}" + ", normalised" * q.normalised
            bias = q.bias if q.known_bias is None else q.known_bias
            table.add_row(
                policy,
                kind,
                str(q.group),
                f"{bias:.2f}" + ("" if q.known_bias is None else " exactly"),
                f"{q.variance:.3g}",
                "" if ratio != ratio else f"{ratio:.2f}",
                f"{q.cosine:.2f}",
            )
    return table
