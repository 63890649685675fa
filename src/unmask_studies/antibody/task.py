"""Antibody chains whose complementarity-determining regions (CDRs) are hidden: the framework is given, the loops are designed.

``L`` positions. Files need no annotation: the CDRs are located by residues that all variable domains share. In IMGT's numbering,
with C23, W41, C104 and [WF]G.G at 118 to 121, and the number of residues between them::

    … C23 3 │CDR1│ 2 W41 14 │CDR2│ 37 C104 │CDR3│ W118 G . G …      heavy
    … C23 3 │CDR1│ 2 W41 14 │CDR2│ 35 C104 │CDR3│ F118 G . G …      light

Framework 2 and the part of framework 3 behind CDR2 have the same number of residues in nearly all chains (IMGT's positions without
its usual gaps), so that the borders follow by counting. A chain that does not match is skipped.

Chains are clustered by single linkage; a cluster never crosses a split (:func:`cluster_chains`).
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.generation.alignment import align_rows
from unmask.generation.text_canvas import Tokenizer, load_tokenizer
from unmask.tasks.kinds import EvaluationRequest, EvaluationSet, TaskKind, shuffle_rows

RESIDUES = frozenset("ACDEFGHIKLMNPQRSTVWY")
SPLITS = ("train", "validation", "test")
CDRS = {"all": (1, 2, 3), "1": (1,), "2": (2,), "3": (3,)}
LINKED = 0.8
"""Two chains are linked if their CDRs have equal lengths and at least this share of equal residues."""
_LOOPS = {
    "H": re.compile(r".{17,25}C...(?P<c1>.{4,12})..W.{14}(?P<c2>.{4,13}).{37}C(?P<c3>.{2,35})WG.G.*"),
    "L": re.compile(r".{17,25}C...(?P<c1>.{3,14})..W.{14}(?P<c2>.{3,8}).{35}C(?P<c3>.{3,18})FG.G.*"),
}
"""Matched from the left: the first cysteine for which the rest of the pattern fits."""


@dataclass(frozen=True)
class Chain:
    """A variable domain. ``loops`` are (begin, end) of CDR1, CDR2 and CDR3, counted from 0, end excluded."""

    name: str
    kind: str
    sequence: str
    loops: tuple[tuple[int, int], ...]

    @property
    def cdrs(self) -> tuple[str, ...]:
        return tuple(self.sequence[begin:end] for begin, end in self.loops)


def locate(sequence: str, name: str = "") -> Chain | None:
    """The chain with its CDRs, heavy or light; None where the motifs are not found."""
    for kind, pattern in _LOOPS.items():
        if found := pattern.fullmatch(sequence):
            return Chain(name, kind, sequence, tuple(found.span(f"c{n}") for n in (1, 2, 3)))
    return None


def read_chains(file: str | Path) -> list[Chain]:
    """The chains of a CSV file (columns ``name`` and ``sequence``) whose CDRs are located, each sequence once."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            rows = csv.DictReader(opened)
            if missing := {"name", "sequence"} - set(rows.fieldnames or ()):
                raise ValueError(
                    f"{file} has no column {' and no column '.join(sorted(missing))}: expected name, sequence"
                )
            entries = [(rows.line_num, row["name"] or "", (row["sequence"] or "").strip().upper()) for row in rows]
    except OSError as error:
        raise ValueError(f"cannot read the antibodies {file}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV file in UTF-8: {error}") from error
    found: dict[str, Chain] = {}
    for line, name, sequence in entries:
        if not sequence or not RESIDUES.issuperset(sequence):
            strange = "".join(sorted(set(sequence) - RESIDUES)) or "nothing"
            raise ValueError(f"{file}, line {line}: expected a sequence of the twenty residues, got {strange!r} in it")
        if (chain := locate(sequence, name)) is not None:
            found.setdefault(sequence, chain)
    if not found:
        raise ValueError(f"{file}: no chain whose CDRs are found: expected whole variable domains, heavy or light")
    return list(found.values())


def cluster_chains(chains: Sequence[Chain]) -> list[int]:
    """The cluster number of each chain, by single linkage."""
    same_shape: dict[tuple[object, ...], list[int]] = {}
    for number, chain in enumerate(chains):
        same_shape.setdefault((chain.kind, *map(len, chain.cdrs)), []).append(number)
    cluster = list(range(len(chains)))
    for members in same_shape.values():
        loops = np.array([list("".join(chains[number].cdrs)) for number in members])
        linked = (loops[:, None] == loops[None]).mean(2) >= LINKED
        waiting = set(range(len(members)))
        while waiting:
            front, together = {min(waiting)}, set[int]()
            while front:
                together |= front
                front = {int(j) for i in front for j in np.flatnonzero(linked[i])} - together
            waiting -= together
            for i in together:
                cluster[members[i]] = members[min(together)]
    return cluster


@dataclass(frozen=True)
class AntibodyData(TaskKind):
    """The antibodies of a CSV file.

    Attributes:
        file: CSV with columns name and sequence.
        cdrs: Which CDRs are hidden: all, 1, 2 or 3.
        validation: The share of the clusters that is held out for validation, by a hash of a cluster's first sequence and the seed.
        test: The share that is held out for tests.
        seed: Seeds the splits.
    """

    kind: Literal["antibody"] = "antibody"
    file: str = ""
    cdrs: str = "all"
    validation: float = 0.15
    test: float = 0.25
    seed: int = 0

    options: ClassVar[Mapping[str, str]] = {"cdrs": "Which CDRs are hidden: all, 1, 2 or 3."}

    def __post_init__(self) -> None:
        if self.cdrs not in CDRS:
            raise ValueError(f"cdrs must be one of {', '.join(CDRS)}, got {self.cdrs!r}")
        if not (self.validation > 0 and self.test > 0 and self.validation + self.test < 1):
            raise ValueError(
                f"validation and test must leave something to train on, got {self.validation}, {self.test}"
            )

    def problems(self, denoiser: Denoiser, name: str) -> AntibodyProblems:
        if not self.file:
            raise ValueError("the antibodies have no file: name a CSV file with columns name and sequence (--data)")
        return AntibodyProblems(self, denoiser, load_tokenizer(name))

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """The test split of the file; its seed is the default, as in training."""
        data = replace(self, file=self.require_file(request))
        task = data.problems(denoiser, name).held_out(request.limit, "test")
        return EvaluationSet(denoiser, task, lambda token: task.tokenizer.decode([token]))

    def split(self, chains: Sequence[Chain]) -> dict[str, list[Chain]]:
        """The chains of each split. A cluster is in one split."""
        cluster = cluster_chains(chains)
        first: dict[int, str] = {}
        for number, chain in zip(cluster, chains, strict=True):
            first[number] = min(first.get(number, chain.sequence), chain.sequence)
        splits: dict[str, list[Chain]] = {name: [] for name in SPLITS}
        for number, chain in zip(cluster, chains, strict=True):
            digest = hashlib.sha256(f"{self.seed} {first[number]}".encode()).digest()
            place = int.from_bytes(digest[:8]) / 2**64
            split = "test" if place < self.test else "validation" if place < self.test + self.validation else "train"
            splits[split].append(chain)
        return splits


@dataclass(frozen=True, eq=False)
class AntibodyProblems:
    """Antibodies for one denoiser: training canvases, and held-out tasks."""

    data: AntibodyData
    denoiser: Denoiser
    tokenizer: Tokenizer
    vary = None
    judge = None

    @cached_property
    def splits(self) -> dict[str, AntibodyTask]:
        parts = self.data.split(read_chains(self.data.file))
        if empty := [split for split, chains in parts.items() if not chains]:
            raise ValueError(f"{self.data.file} has too few antibodies: none is left for {', '.join(empty)}")
        return {
            split: AntibodyTask(
                tuple(chains), self.denoiser, self.tokenizer, self.data.cdrs, f"{self.data.file}, {split}"
            )
            for split, chains in parts.items()
        }

    def __call__(self, step: int, count: int) -> Canvas:
        rows = shuffle_rows(self.data.seed, step, count, len(self.splits["train"]))
        return self.splits["train"].canvas(rows.tolist())

    def held_out(self, count: int, which: str | None = None) -> AntibodyTask:
        """The first ``count`` antibodies of a split, by default of the validation split."""
        split = which or "validation"
        if split not in SPLITS:
            raise ValueError(f"validation of antibodies must be one of {', '.join(SPLITS)}, got {which!r}")
        task = self.splits[split]
        return replace(task, chains=task.chains[:count])

    def fixed(self) -> Canvas:
        return self.splits["train"].canvas(range(len(self.splits["train"])))


@dataclass(frozen=True, eq=False)
class AntibodyTask:
    """Chains with hidden CDRs. The region of a row is its hidden positions: blocks and indices count inside it."""

    chains: tuple[Chain, ...]
    denoiser: Denoiser
    tokenizer: Tokenizer
    cdrs: str = "all"
    source: str = "antibodies"

    @property
    def name(self) -> str:
        return "antibody"

    def __len__(self) -> int:
        return len(self.chains)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        encoded = [self._encode(self.chains[row]) for row in rows]
        target, attention, *_ = align_rows(self.denoiser, [((), ids, ()) for ids, _ in encoded])
        region = torch.zeros_like(attention)
        for number, (_, hidden) in enumerate(encoded):
            region[number, hidden] = True
        tokens = target.masked_fill(region, self.denoiser.mask_id)
        return Canvas(tokens=tokens, target=target, region=region, attention=attention)

    def _encode(self, chain: Chain) -> tuple[list[int], list[int]]:
        """The chain's ids with special tokens, and the hidden positions."""
        ids = self.tokenizer.encode(chain.sequence)
        inner = self.tokenizer.encode(chain.sequence, add_special_tokens=False)
        if len(inner) != len(chain.sequence):
            raise ValueError(
                f"the tokenizer makes {len(inner)} tokens of the {len(chain.sequence)} residues of {chain.name}: "
                "expected one for each; name a model of antibodies"
            )
        start = next(n for n in range(len(ids)) if ids[n : n + len(inner)] == inner)
        loops = [chain.loops[n - 1] for n in CDRS[self.cdrs]]
        return ids, [start + place for begin, end in loops for place in range(begin, end)]

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: every hidden residue equals the antibody's. Share: the part of them that does (sequence recovery)."""
        canvas = self.canvas(rows)
        assert canvas.region is not None
        return Verdict.of(tokens, canvas.truth, canvas.region)

    def stratum(self, row: int) -> str:
        length = len(self.chains[row].cdrs[2])
        return f"{self.chains[row].kind}, CDR3 " + (
            "up to 9" if length < 10 else "10 to 13" if length < 14 else "14 or more"
        )

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        """The chain as text, hidden residues in lower case."""
        ids, hidden = self._encode(self.chains[row])
        letters = [self.tokenizer.decode([token], skip_special_tokens=True) for token in tokens[: len(ids)].tolist()]
        return "".join(letter.lower() if place in hidden else letter for place, letter in enumerate(letters))
