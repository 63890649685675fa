"""The viewer: traces in one HTML file that opens anywhere, without a server, a network or a font of its own.

The page is put together from ``viewer.html`` (what it shows) and the files beside it: style, decoding, elements, pane, script.
The traces lie in it as JSON in which nothing can end the script element, and the page writes text as text only: a token may hold
any markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from unmask.report.traces.format import Trace, TracedPath, as_json

HERE = Path(__file__).parent
TITLE = "The order of thought"


def page(traces: Sequence[Trace], title: str = TITLE, start: int = 0) -> str:
    """The whole page. It opens with the trace number ``start``."""
    if not traces:
        raise ValueError("there is nothing to view: expected at least one trace")
    together = merged(traces)
    start = next(nth for nth, trace in enumerate(together) if trace.prompt == traces[start].prompt)
    return page_of([as_json(trace) for trace in together], title, start)


def merged(traces: Sequence[Trace]) -> list[Trace]:
    """Traces of the same problem become one: its orders are seen side by side, also those of two denoisers or step budgets."""
    problems: dict[tuple, list[Trace]] = {}
    for trace in traces:
        problems.setdefault((trace.kind, trace.prompt, trace.target, trace.mask_id, trace.block), []).append(trace)
    return [_together(same) if len(same) > 1 else same[0] for same in problems.values()]


def _together(traces: list[Trace]) -> Trace:
    apart = [field for field in ("denoiser", "decoding") if len({getattr(trace, field) for trace in traces}) > 1]
    paths: dict[str, TracedPath] = {}
    for trace in traces:
        names = {
            path.scheduler: ", ".join([path.scheduler, *(getattr(trace, field) for field in apart)])
            for path in trace.paths
        }
        for path in trace.paths:
            # The same order of the same denoiser twice: it is the same path, and once is enough.
            others = {names.get(name, name): choice for name, choice in path.others.items()}
            paths.setdefault(names[path.scheduler], replace(path, scheduler=names[path.scheduler], others=others))
    denoisers, decodings = (
        ", ".join(dict.fromkeys(getattr(trace, field) for trace in traces)) for field in ("denoiser", "decoding")
    )
    labels = {token: text for trace in traces for token, text in trace.labels.items()}
    return replace(traces[0], denoiser=denoisers, decoding=decodings, labels=labels, paths=tuple(paths.values()))


def page_of(traces: Any, title: str = TITLE, start: int = 0) -> str:
    """The page around JSON that is a list of traces already."""
    parts = {
        "<!--title-->": escape(title),
        "<!--style-->": part("viewer_style.html"),
        "<!--traces-->": embedded({"traces": traces, "start": start}),
        "<!--script-->": "".join(part(f"viewer_{name}.html") for name in ("decode", "elements", "pane", "script")),
    }
    return assembled(part("viewer.html"), parts)


def assembled(template: str, parts: Mapping[str, str]) -> str:
    """The template with each mark, in the order of ``parts``, replaced."""
    # Split rather than replaced in turn: what is put in may hold another mark.
    out, rest = [], template
    for mark, content in parts.items():
        before, found, rest = rest.partition(mark)
        assert found, f"the template has no {mark}"
        out += [before, content]
    return "".join([*out, rest])


def embedded(value: Any) -> str:
    """JSON for a script element: no ``</script>``, ``<!--`` or entity can be in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def part(name: str) -> str:
    """A file beside this one."""
    return (HERE / name).read_text(encoding="utf-8")
