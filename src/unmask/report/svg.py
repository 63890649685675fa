"""Figures of matplotlib as files, and as elements of a page. Names from files are text in them whatever they hold."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from unmask.report.boards import FONT
from unmask.report.terminal.console import printable

PAGE_INK, PAGE_LINE = "#010101", "#020202"
"""The colours of a figure for a page: stand-ins, which :func:`inline_svg` replaces."""


def clean(text: str) -> str:
    """As a figure shows it: without characters that XML cannot hold or that a reader cannot see."""
    return printable(text).replace("\t", " ")


def save(figure: Figure, form: str, **options: Any) -> bytes:
    """The figure as a file, without a date: the same numbers give the same bytes. Text stays text in SVG and PDF."""
    out = io.BytesIO()
    kinds: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "unmask", "pdf.fonttype": 42}
    with matplotlib.rc_context(kinds), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name may hold characters that no font has
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # or be wider than the figure
        figure.savefig(out, format=form, **options)
    return out.getvalue() if form != "svg" else clean(out.getvalue().decode()).encode()


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """A figure of the theme ``page`` as an element of the page: its colours and font, its own ids (``name``), scaled to fit.

    The tree is changed and written anew, never its text: names from files are text in it whatever they hold.
    """
    saved = save(figure, "svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(saved)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # inside a page, names have no prefix
        element.attrib = {key.rpartition("}")[2]: _adopt(key, value, name) for key, value in element.attrib.items()}
        if element.tag == "style":
            element.text = f"#{name} {(element.text or '').strip()}"
    wide = figure.get_size_inches()[0] * 96
    root.attrib = {
        "id": name,
        "role": "img",
        "aria-label": clean(label),
        "style": f"width:100%;max-width:{wide:.0f}px;height:auto",
        "viewBox": root.attrib["viewBox"],
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adopt(key: str, value: str, name: str) -> str:
    """An attribute of matplotlib's SVG in a page: ids begin with ``name``, colours and font are the page's."""
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href") and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = re.sub(r"'DejaVu Sans'[^;]*", FONT, value.replace("url(#", f"url(#{name}-"))
    return value.replace(PAGE_INK, "currentColor").replace(PAGE_LINE, "var(--line, #d0d4da)")
