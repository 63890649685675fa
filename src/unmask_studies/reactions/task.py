"""The task ``reaction``: parts of reactions are hidden, and what is filled in is judged as chemistry.

``B`` canvases, ``L`` positions. The region of a row is what is hidden: blocks and positions count inside it. The denoisers were
trained on patents and have probably seen these reactions; schedulers and policies have not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.denoisers.masked_lm import silence_transformers
from unmask.generation.text_canvas import Tokenizer, load_tokenizer
from unmask.tasks.kinds import EvaluationRequest, EvaluationSet, TaskKind, shuffle_rows
from unmask_studies.reactions.chemistry import canonicalize, conserves_atoms, require_molecule, same_molecule
from unmask_studies.reactions.drawing import draw_tokens
from unmask_studies.reactions.hiding import Part, choose_hidden
from unmask_studies.reactions.smiles import ARROW, OPEN, Reaction, expand_open, read_reactions, tokenize

SIDES = ("train", "validation", "all")


@dataclass(frozen=True)
class ReactionData(TaskKind):
    """The reactions of a CSV file.

    Attributes:
        file: CSV with columns reactants and product.
        hide: The share of the product's tokens that is hidden.
        part: What is hidden: random tokens of the product, a span, a fragment, the product, or a reactant.
        longest: Reactions of more tokens are left out.
        validation: The share of the products that is held out; the side of a product follows from its SMILES and the seed.
    """

    kind: Literal["reaction"] = "reaction"
    file: str = ""
    hide: float = 0.7
    part: Part = "random"
    longest: int = 100
    validation: float = 0.1
    seed: int = 0

    options: ClassVar[Mapping[str, str]] = {
        "hide": "The share of the product's tokens that is hidden, for the parts random and span.",
        "part": "What is hidden of the product: random tokens, a span of them, a fragment (a ring system or a substituent), "
        "the whole product; or one reactant.",
        "longest": "Reactions of more tokens are left out.",
    }

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"part must be one of {', '.join(get_args(Part))}, got {self.part!r}")
        if not 0 < self.hide <= 1:
            raise ValueError(f"hide must be in (0, 1], the share of the product that is hidden, got {self.hide}")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation must be in (0, 1), got {self.validation}")
        if self.longest < 3:
            raise ValueError(f"longest must be at least 3 tokens, got {self.longest}")

    def problems(self, denoiser: Denoiser, name: str) -> ReactionProblems:
        if not self.file:
            raise ValueError("the reactions have no file: name a CSV file with columns reactants and product (--data)")
        return ReactionProblems(self, denoiser, load_tokenizer(name))

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """All reactions of the file; the seed chooses what is hidden."""
        data = replace(self, file=self.require_file(request), seed=request.seed)
        task = data.problems(denoiser, name).held_out(request.limit, "all")
        label = label_tokens(task.tokenizer)
        return EvaluationSet(denoiser, task, label, draw=draw_tokens(label))

    def side_of(self, product: str) -> str:
        """No product is on both sides."""
        digest = hashlib.sha256(f"{self.seed} {product}".encode()).digest()
        return "validation" if int.from_bytes(digest[:8]) / 2**64 < self.validation else "train"


@dataclass(frozen=True, eq=False)
class ReactionProblems:
    """Reactions for one denoiser: canvases to train on, others held out."""

    data: ReactionData
    denoiser: Denoiser
    tokenizer: Tokenizer
    vary = None

    @cached_property
    def sides(self) -> dict[str, ReactionTask]:
        reactions = [one for one in read_reactions(self.data.file) if self._fits(one)]
        if not reactions:
            raise ValueError(f"{self.data.file}: every reaction is longer than {self._longest} tokens; raise longest")
        for reaction in reactions:
            try:
                require_molecule(reaction.reactants)
                require_molecule(reaction.product)
            except ValueError as error:
                raise ValueError(f"{self.data.file}: {error}") from None
        parts: dict[str, list[Reaction]] = {"train": [], "validation": [], "all": reactions}
        for reaction in reactions:
            parts[self.data.side_of(reaction.product)].append(reaction)
        return {side: self._task(tuple(rows)) for side, rows in parts.items()}

    @cached_property
    def _by_length(self) -> list[int]:
        reactions = self.sides["train"].reactions
        return sorted(range(len(reactions)), key=lambda row: len(tokenize(reactions[row].smiles)))

    @property
    def _longest(self) -> int:
        limit = getattr(getattr(self.denoiser, "config", None), "max_length", None)
        return self.data.longest if limit is None else min(self.data.longest, limit - 2)

    def _fits(self, reaction: Reaction) -> bool:
        return len(tokenize(reaction.smiles)) <= self._longest

    def _task(self, reactions: tuple[Reaction, ...]) -> ReactionTask:
        return ReactionTask(reactions, self.denoiser, self.tokenizer, self.data)

    def __call__(self, step: int, count: int) -> Canvas:
        train = self.sides["train"]
        if not len(train):
            raise ValueError(f"{self.data.file} has too few reactions: none is left to train on")
        # Neighbours in length, which need little padding. Other tokens are hidden each time a reaction comes up again.
        batch = int(shuffle_rows(self.data.seed, step, 1, math.ceil(len(train) / count))[0])
        rows = [self._by_length[(batch * count + nth) % len(train)] for nth in range(count)]
        return replace(train, data=replace(self.data, seed=self.data.seed + 1 + step)).canvas(rows)

    def judge(self, target: Int[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Right is the target, or another way to write the same molecules."""
        ways = [
            self.sides["all"].same_reaction(theirs, ours)
            for theirs, ours in zip(target.tolist(), tokens.tolist(), strict=True)
        ]
        return torch.tensor(ways, dtype=torch.bool, device=tokens.device)

    def held_out(self, count: int, which: str | None = None) -> ReactionTask:
        """The first ``count`` reactions of a side, by default of the validation side."""
        side = which or "validation"
        if side not in SIDES:
            raise ValueError(f"validation of reactions must be one of {', '.join(SIDES)}, got {which!r}")
        task = self.sides[side]
        return replace(task, reactions=task.reactions[:count])

    def fixed(self) -> Canvas:
        return self.sides["train"].canvas(range(len(self.sides["train"])))


@dataclass(frozen=True, eq=False)
class ReactionTask:
    """Reactions with hidden tokens."""

    reactions: tuple[Reaction, ...]
    denoiser: Denoiser
    tokenizer: Tokenizer
    data: ReactionData = ReactionData()

    @property
    def name(self) -> str:
        return "reaction"

    @property
    def source(self) -> str:
        share = f"{self.data.hide:.0%} of the product" if self.data.part in ("random", "span") else "hidden"
        return f"{Path(self.data.file).name}, {share}, {self.data.part}"

    def __len__(self) -> int:
        return len(self.reactions)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        tokens = [tokenize(self.reactions[row].smiles) for row in rows]
        hidden = [
            choose_hidden(one, self.data.part, self.data.hide, self.data.seed, row)
            for one, row in zip(tokens, rows, strict=True)
        ]
        return make_canvas(self.denoiser, self.tokenizer, tokens, hidden)

    def text(self, ids: Sequence[int]) -> str:
        """The SMILES of a row; a token that writes nothing (a mask, padding) ends in no molecule."""
        kept = [token for token in ids if token not in (self.denoiser.pad_id, *self.denoiser.end_ids)]
        return "".join(self.tokenizer.decode([token], skip_special_tokens=True) for token in kept)

    def same_reaction(self, target: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether both rows write the same reactants and the same product."""
        if list(target) == list(tokens):
            return True
        theirs, ours = self.text(target).split(ARROW), self.text(tokens).split(ARROW)
        return len(theirs) == len(ours) == 2 and all(map(same_molecule, theirs, ours))

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: the reaction itself, however its molecules are written. Share: hidden tokens that are the target's.

        Rows that were cut out of a longer batch have more padding than those alone.
        """
        canvas = self.canvas(rows)
        assert canvas.region is not None
        tokens = tokens[:, : canvas.truth.shape[1]]
        verdict = Verdict.of(tokens, canvas.truth, canvas.region)
        same = [
            self.same_reaction(theirs, ours)
            for theirs, ours in zip(canvas.truth.tolist(), tokens.tolist(), strict=True)
        ]
        return replace(verdict, exact=torch.tensor(same, dtype=torch.bool))

    def assess(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> list[dict[str, bool]]:
        """More about each answer: the same tokens, the same molecule, a valid molecule, atoms that the reactants have."""
        canvas, found = self.canvas(rows), []
        for target, ours in zip(canvas.truth.tolist(), tokens.tolist(), strict=True):
            reactants, _, product = self.text(ours).partition(ARROW)
            found.append(
                {
                    "identical": target == ours,
                    "equivalent": self.same_reaction(target, ours),
                    "valid": canonicalize(product) is not None and canonicalize(reactants) is not None,
                    "conserved": conserves_atoms(reactants, product),
                }
            )
        return found

    def stratum(self, row: int) -> str:
        length = len(tokenize(self.reactions[row].product))
        return "product up to 25 tokens" if length <= 25 else "26 to 35 tokens" if length <= 35 else "36 tokens or more"

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        return self.text(tokens.tolist())


def make_canvas(
    denoiser: Denoiser, tokenizer: Tokenizer, reactions: Sequence[Sequence[str]], hidden: Sequence[Sequence[int]]
) -> Canvas:
    """Reactions as token lists, and the places that are hidden in each, as one batch padded on the right."""
    with silence_transformers():  # its warning about long inputs comes before our error
        encoded = [_encode(tokenizer, tokens, places) for tokens, places in zip(reactions, hidden, strict=True)]
    width = max(len(ids) for ids, _ in encoded)
    limit = getattr(getattr(denoiser, "config", None), "max_length", width)
    if width > limit:
        raise ValueError(
            f"the reaction is too long for the model: {width} tokens with its ends, expected at most {limit}"
        )
    target = torch.full((len(encoded), width), denoiser.pad_id or 0)
    attention, region = (torch.zeros(len(encoded), width, dtype=torch.bool) for _ in range(2))
    for number, ((ids, start), places) in enumerate(zip(encoded, hidden, strict=True)):
        target[number, : len(ids)] = torch.tensor(ids)
        attention[number, : len(ids)] = True
        region[number, [start + place for place in places]] = True
    tokens = target.masked_fill(region, denoiser.mask_id)
    return Canvas(tokens=tokens, target=target, region=region, attention=attention)


def label_tokens(tokenizer: Tokenizer) -> Callable[[int], str]:
    """The SMILES of a token id; nothing for special tokens."""
    return lambda token: tokenizer.decode([token], skip_special_tokens=True)


def _encode(tokenizer: Tokenizer, tokens: Sequence[str], hidden: Sequence[int]) -> tuple[list[int], int]:
    """Ids with special tokens, and the place of the reaction's first token among them. Errors show what is ``hidden`` as open."""
    shown = "".join(OPEN if place in hidden else token for place, token in enumerate(tokens))[:60]
    text = "".join(tokens)
    inner = tokenizer.encode(text, add_special_tokens=False)
    if len(inner) != len(tokens):
        raise ValueError(
            f"the tokenizer makes {len(inner)} tokens of the {len(tokens)} of {shown!r}: expected one for each; "
            "name a model of reactions, such as one that unmask models rxnmapper writes"
        )
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in inner:
        raise ValueError(f"the model does not know the token {tokens[inner.index(unknown)]!r} of {shown!r}")
    ids = tokenizer.encode(text)
    start = next(n for n in range(len(ids)) if ids[n : n + len(inner)] == inner)
    return ids, start


def open_canvas(denoiser: Denoiser, tokenizer: Tokenizer, text: str) -> Canvas:
    """One reaction as a user types it, ``?`` or ``?7`` for what is open."""
    tokens = expand_open(tokenize(text.strip()))
    if tokens.count(">") == 2:
        raise ValueError(
            f"the model knows no place between two arrows: write reagents among the reactants, reactants.reagents{ARROW}product, "
            f"got {text[:80]!r}"
        )
    places = [place for place, token in enumerate(tokens) if token == OPEN]
    if ARROW not in tokens or not places:
        raise ValueError(f"expected reactants{ARROW}product with {OPEN} for what is open, got {text[:80]!r}")
    for side in text.strip().split(ARROW):
        if OPEN not in side:
            require_molecule(side)
    filled = ["C" if token == OPEN else token for token in tokens]  # any token the model knows: it is hidden anyway
    return make_canvas(denoiser, tokenizer, [filled], [places]).without_target()
