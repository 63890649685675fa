"""Which tokens of a reaction are hidden. Each choice is a function of (seed, row), so a row is the same in every batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch

from unmask.decoding.draws import counter_uniform
from unmask_studies.reactions.chemistry import atom_places, find_fragments
from unmask_studies.reactions.smiles import ARROW, molecule_spans

Part = Literal["random", "span", "fragment", "product", "reactant"]
SHARE_NOISE, PLACE_NOISE = 101, 102
"""Purposes of the draws: which tokens of a share, where a span begins or which fragment."""


def choose_hidden(tokens: Sequence[str], part: Part, share: float, seed: int, row: int) -> list[int]:
    """The places of the hidden tokens of ``reactants>>product``, in rising order; at least one.

    ``random``: a ``share`` of the product's tokens, anywhere. ``span``: the same number, next to each other. ``fragment``: the
    tokens that write a ring system or a substituent of the product. ``product``: all of it. ``reactant``: one molecule of the
    reactants.
    """
    begin = list(tokens).index(ARROW) + 1
    product = list(range(begin, len(tokens)))
    count = min(len(product), max(1, round(share * len(product))))
    if part == "product":
        return product
    if part == "random":
        keys = counter_uniform(seed, row, SHARE_NOISE, torch.arange(len(product)))
        return sorted(product[place] for place in keys.argsort(stable=True)[:count].tolist())
    draw = float(counter_uniform(seed, row, PLACE_NOISE))
    if part == "span":
        first = int(draw * (len(product) - count + 1))
        return product[first : first + count]
    if part == "reactant":
        spans = molecule_spans(tokens[: begin - 1])
        first, last = spans[int(draw * len(spans))]
        return list(range(first, last))
    return _fragment(tokens, begin, draw)


def _fragment(tokens: Sequence[str], begin: int, draw: float) -> list[int]:
    """The tokens of one fragment: its atoms, and what stands between two of them if that writes no other atom."""
    product = tokens[begin:]
    fragments = find_fragments("".join(product))
    atoms = atom_places(product)
    if not fragments:
        return [begin + place for place, atom in enumerate(atoms) if atom is not None]
    chosen = fragments[int(draw * len(fragments))]
    inside = [place for place, atom in enumerate(atoms) if atom in chosen]
    hidden = set(inside)
    for first, last in itertools.pairwise(inside):
        between = range(first + 1, last)
        if all(atoms[place] is None for place in between):
            hidden.update(between)
    return [begin + place for place in sorted(hidden)]
