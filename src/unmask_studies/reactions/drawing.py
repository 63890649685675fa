"""Reactions drawn by RDKit, each atom in the colour of the step that revealed it, as on a board or in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from unmask.report.terminal.tables import heat
from unmask.tasks.kinds import Drawing
from unmask_studies.reactions.chemistry import atom_places, draw_molecule
from unmask_studies.reactions.smiles import ARROW


def draw_reaction(tokens: Sequence[str], when: Mapping[int, float], hidden: Collection[int] = ()) -> Drawing | None:
    """The side of a reaction that was open, the product if both were. ``when`` is 0 (first) to 1 (last) for each revealed place.

    ``hidden`` are the places that were open at the start, if some of them are not revealed yet. None where that side cannot be read
    as molecules.
    """
    arrow = list(tokens).index(ARROW) if ARROW in tokens else len(tokens)
    inside = range(arrow + 1, len(tokens)) if any(place > arrow for place in (*hidden, *when)) else range(arrow)
    side = [tokens[place] for place in inside]
    if not side or not all(side):
        return None
    atoms = dict(zip(inside, atom_places(side), strict=True))
    colours = {
        atom: _parse_colour(heat(when[place])) for place, atom in atoms.items() if atom is not None and place in when
    }
    try:
        svg = draw_molecule("".join(side), colours)
    except ValueError:
        return None
    # Corners where bonds meet are paths of no atom: they would stand there before their bonds.
    plain = re.sub(r"<path (?![^>]*class=)[^>]*/>\n?", "", svg[svg.index("<svg") :])
    return Drawing(plain, tuple((place, atom) for place, atom in atoms.items() if atom is not None))


def draw_tokens(label: Callable[[int], str]) -> Callable[..., Drawing | None]:
    """:func:`draw_reaction` for token ids; special tokens write nothing."""

    def draw(ids: Sequence[int], when: Mapping[int, float], hidden: Collection[int] = ()) -> Drawing | None:
        texts = [label(token) for token in ids]
        places = [place for place, text in enumerate(texts) if text]
        inner = {place: nth for nth, place in enumerate(places)}
        if any(place not in inner for place in (*when, *hidden)):
            return None  # something revealed, or still hidden, writes no SMILES
        times = {inner[place]: t for place, t in when.items()}
        drawing = draw_reaction([texts[place] for place in places], times, [inner[place] for place in hidden])
        return drawing and Drawing(drawing.svg, tuple((places[nth], part) for nth, part in drawing.parts))

    return draw


def _parse_colour(rgb: str) -> tuple[float, float, float]:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", rgb))
    return red, green, blue
