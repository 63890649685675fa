"""Untrusted files and requests, made by hypothesis: bytes, good files cut and spliced, good JSON with a value that does not fit.

The targets are those of fuzz/, which a coverage-guided fuzzer runs for longer. Each may refuse in one way, and do nothing else.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def _targets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("targets", Path(__file__).parents[1] / "fuzz" / "targets.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


targets = _targets()
ODD: list[Any] = [
    *(None, True, "", "\ud800", "x" * 5000, [], {}, [[]], {"a": 1}, "é", "-1", "1e999"),
    *(0, -1, 1, 3, 2**31, 2**63, 10**40, -(10**40), 0.5, -0.0, 1e308, float("nan"), float("inf")),
]
JSON = (
    *("denoiser_config", "family_config", "tokenizer", "policy_config", "trace", "request", "countdown", "checkpoint"),
    *("report", "study", "whole_tokenizer", "adapter_config", "crossing"),
)
FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)


EXAMPLES = {"label": 8}
"""Fewer examples of what takes a fraction of a second for each: a figure is drawn."""


def try_examples(name: str, check: Callable[[st.DataObject], None]) -> None:
    settings(FEW, max_examples=EXAMPLES.get(name, FEW.max_examples))(given(st.data())(check))()


def meets(name: str, content: bytes) -> None:
    """The target's answer: nothing, or a refusal of reasonable length."""
    try:
        targets.TARGETS[name](content)
    except targets.REFUSALS as error:
        assert len(str(error)) < 10_000, "a refusal must not be as long as the input"


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for key, item in inside for place in places(item, (*above, key)))]


def changed(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], odd)
    return copy


@pytest.mark.parametrize("name", targets.TARGETS)
def test_what_the_fuzzer_found_is_taken_or_refused(name: str, unchecked: None) -> None:
    """The inputs by which coverage-guided runs reached new branches."""
    for content in targets.read_corpora()[name]:
        meets(name, content)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_good_input_is_taken_or_refused(name: str) -> None:
    for content in targets.seeds()[name]:
        meets(name, content)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_any_bytes(name: str) -> None:
    anything = st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))

    def check(data: st.DataObject) -> None:
        meets(name, data.draw(anything))

    try_examples(name, check)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_good_files_cut_and_spliced(name: str) -> None:
    def check(data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(targets.seeds()[name]))
        at = data.draw(st.integers(0, len(content)))
        width = data.draw(st.integers(0, 8))
        put = data.draw(st.binary(max_size=8) | st.sampled_from([b"[" * 3000, b"9" * 5000, b"\n", b'"', b"\0"]))
        meets(name, content[:at] + put + content[at + width :])

    try_examples(name, check)


@pytest.mark.parametrize("name", JSON)
@FEW
@given(st.data())
def test_good_json_with_a_value_that_does_not_fit(name: str, data: st.DataObject) -> None:
    first, _, body = data.draw(st.sampled_from(targets.seeds()[name])).rpartition(b"\n" if name == "request" else b"\0")
    good = json.loads(body)
    wrong = changed(good, data.draw(st.sampled_from(places(good))), data.draw(st.sampled_from(ODD)))
    meets(name, (first + b"\n" if first else b"") + json.dumps(wrong).encode())


@FEW
@given(st.data())
def test_good_presets_with_a_value_that_does_not_fit(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(targets.seeds()["preset"])).decode().splitlines()
    at = data.draw(st.sampled_from([n for n, line in enumerate(lines) if "=" in line]))
    key = lines[at].partition("=")[0]
    odd = data.draw(
        st.sampled_from(["nan", "-inf", "0", "-1", "1" * 30, '"x"', "[]", "{}", "true", "1979-05-27", "0.5", "'''"])
    )
    lines[at] = f"{key} = {odd}"
    meets("preset", "\n".join(lines).encode())


@FEW
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_headers_of_safetensors(header: bytes, length: int) -> None:
    for size in (length, len(header)):
        meets("safetensors", size.to_bytes(8, "little") + header)
        meets("policy_weights", size.to_bytes(8, "little") + header)


def test_a_line_that_is_whole_survives_what_surrounds_it() -> None:
    """Of metrics that were torn, all whole records up to the step stay, whatever lies between them."""
    run = targets.Run(targets.place() / "run")
    between = [b"", b"\xff\xfe\n", b"[" * 50_000 + b"\n", b"null\n", b'{"step":\n', b"\n\n"]
    content = b"".join(noise + json.dumps({"step": n}).encode() + b"\n" for n, noise in enumerate(between))
    (run.folder / "metrics.jsonl").write_bytes(content)
    run.rewind(3)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]
