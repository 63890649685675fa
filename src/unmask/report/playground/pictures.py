"""Pictures that the page draws by itself: the shapes of an SVG as data, so that no markup from elsewhere gets into the page.

Only the elements and attributes listed here pass. Styles become attributes, since the page's policy allows no style in markup.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from unmask.tasks.kinds import Drawing

SHAPES = ("path", "ellipse", "circle", "rect", "line", "polygon", "polyline")
GEOMETRY = ("d", "cx", "cy", "r", "rx", "ry", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "points")
PAINT = ("fill", "fill-rule", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin")
SAFE = re.compile(r"[\w#., ()+-]*")
BLACK = re.compile(r"#000(000)?", re.IGNORECASE)


def describe_picture(drawing: Drawing | None) -> dict[str, Any] | None:
    """``{"box", "shapes": [[element, attributes, atoms]], "parts": [[position, atom]]}``; black is the page's own ink."""
    if drawing is None:
        return None
    root = ElementTree.fromstring(drawing.svg)
    shapes = [
        [tag, _attributes(element), _atoms(element)]
        for element in root.iter()
        if isinstance(element.tag, str) and (tag := element.tag.rpartition("}")[2]) in SHAPES
    ]
    box = [float(number) for number in root.attrib["viewBox"].split()]
    return {"box": box, "shapes": shapes, "parts": [list(part) for part in drawing.parts]}


def _attributes(element: ElementTree.Element) -> dict[str, str]:
    styles = (rule.partition(":") for rule in element.attrib.get("style", "").split(";"))
    given = {**element.attrib, **{name.strip(): value.strip() for name, _, value in styles}}
    kept = {name: " ".join(value.split()) for name, value in given.items() if name in (*GEOMETRY, *PAINT)}
    return {name: BLACK.sub("currentColor", value) for name, value in kept.items() if SAFE.fullmatch(value)}


def _atoms(element: ElementTree.Element) -> list[int]:
    return [int(number) for number in re.findall(r"\batom-(\d+)\b", element.attrib.get("class", ""))]
