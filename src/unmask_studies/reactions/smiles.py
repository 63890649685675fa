"""Reaction SMILES as tokens: ``reactants>>product``, one token per atom, bond, bracket or ring digit (Schwaller et al., 2018)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ARROW = ">>"
OPEN = "?"
"""Stands for one open token in a reaction that a user types; ``?7`` for seven, ``?5..9`` for five to nine."""
RANGE = re.compile(r"\?([0-9]+)\.\.([0-9]+)")
MOST_LENGTHS = 30
TOKEN = re.compile(
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?[0-9]*|>>|>|\*|\$|%[0-9]{2}|[0-9]"
)


@dataclass(frozen=True)
class Reaction:
    """Reactants (molecules joined by dots) and a product, as SMILES."""

    reactants: str
    product: str

    @property
    def smiles(self) -> str:
        return f"{self.reactants}{ARROW}{self.product}"

    @classmethod
    def parse(cls, text: str) -> Reaction:
        reactants, arrow, product = text.strip().partition(ARROW)
        if not arrow or not reactants or not product or ARROW in product:
            raise ValueError(f"expected a reaction as reactants{ARROW}product, got {text[:80]!r}")
        return cls(reactants, product)


def tokenize(smiles: str) -> list[str]:
    """The tokens of a SMILES string; joined, they give the string again."""
    tokens = TOKEN.findall(smiles)
    if "".join(tokens) == smiles:
        return tokens
    place = 0
    for token in tokens:
        if not smiles.startswith(token, place):
            break
        place += len(token)
    raise ValueError(
        f"not a SMILES string: unknown character {smiles[place]!r} at position {place + 1} of {smiles[:80]!r}"
    )


def expand_range(text: str) -> list[str]:
    """A reaction for each length of its ``?5..9``; itself alone if it has none."""
    found = RANGE.findall(text)
    if not found:
        return [text]
    least, most = map(int, found[0])
    if len(found) > 1 or not 1 <= least <= most < least + MOST_LENGTHS:
        raise ValueError(f"expected one range of at most {MOST_LENGTHS} lengths, such as {OPEN}5..9, got {text[:80]!r}")
    return [RANGE.sub(f"{OPEN}{count}", text) for count in range(least, most + 1)]


def expand_open(tokens: Iterable[str]) -> list[str]:
    """``?7`` as seven open tokens."""
    expanded: list[str] = []
    for token in tokens:
        if not token.startswith(OPEN):
            expanded.append(token)
            continue
        count = int(token[1:] or 1)
        if not 1 <= count <= 500:
            raise ValueError(f"{token} stands for {count} open tokens: expected 1 to 500")
        expanded += [OPEN] * count
    return expanded


def read_reactions(file: str | Path) -> list[Reaction]:
    """The reactions of a CSV file with columns ``reactants`` and ``product``."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            rows = csv.DictReader(opened)
            columns = rows.fieldnames or ()
            if missing := [name for name in ("reactants", "product") if name not in columns]:
                raise ValueError(f"{file} has no column {' and no column '.join(missing)}: expected reactants, product")
            entries = [(rows.line_num, row["reactants"] or "", row["product"] or "") for row in rows]
    except OSError as error:
        raise ValueError(f"cannot read the reactions {file}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV file in UTF-8: {error}") from error
    if not entries:
        raise ValueError(f"{file} has no reactions: expected rows of reactants, product")
    return [_read_row(file, *entry) for entry in entries]


def _read_row(file: str | Path, line: int, reactants: str, product: str) -> Reaction:
    if not reactants or not product:
        raise ValueError(f"{file}, line {line}: expected reactants and a product, one of them is empty")
    reaction = Reaction(reactants.strip(), product.strip())
    try:
        tokens = tokenize(reaction.smiles)
    except ValueError as error:
        raise ValueError(f"{file}, line {line}: {error}") from None
    if tokens.count(ARROW) != 1 or any(token.startswith(OPEN) for token in tokens):
        raise ValueError(
            f"{file}, line {line}: expected molecules without {ARROW} and {OPEN}, got {reaction.smiles[:80]!r}"
        )
    return reaction


def molecule_spans(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """(begin, end) of the tokens of each molecule, end excluded."""
    spans, begin = [], 0
    for place, token in enumerate([*tokens, "."]):
        if token in (".", ARROW):
            if place > begin:
                spans.append((begin, place))
            begin = place + 1
    return spans
