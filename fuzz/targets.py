"""Readers of untrusted files and requests, as functions of bytes: each returns or raises one of ``REFUSALS``, nothing else.

``seeds`` are good inputs to begin from. ``tests/test_fuzz.py`` calls the targets with inputs that hypothesis makes, ``fuzz/run.py``
with those of a coverage-guided fuzzer.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import torch
from safetensors.torch import save, save_file

from unmask.assets import MODELS, POLICIES, PRESETS
from unmask.denoisers import loading
from unmask.denoisers.checkpoint import load_folder, read_config
from unmask.denoisers.hub import parse_hub_id
from unmask.denoisers.lora import base_of, load_adapter
from unmask.denoisers.transformer import Transformer
from unmask.evaluation.lm_eval.documents import ROWS, check_row
from unmask.generation.text_canvas import load_tokenizer
from unmask.report.figures import Point, intervals
from unmask.report.gather import report_from_json
from unmask.report.page import table_html
from unmask.report.playground.boards import BoardRequest
from unmask.report.playground.limits import names_server
from unmask.report.playground.options import read_decoding
from unmask.report.playground.puzzles import read_puzzle, read_rows
from unmask.report.playground.text import TextRequest
from unmask.report.stored import parse, validate
from unmask.report.study_sections import read_study
from unmask.report.svg import inline_svg
from unmask.report.terminal.console import SafeConsole
from unmask.report.terminal.tables import comparison
from unmask.report.traces.reading import from_json
from unmask.runs.jsonable import parse_json_lines
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.answers import extract_code, extract_expression, extract_number, math_equal
from unmask.tasks.code import Code
from unmask.tasks.countdown import Countdown, read_problems
from unmask.tasks.sandbox import inside
from unmask.tasks.sudoku.files import read_csv
from unmask.training.denoiser.pretrain import Pretrain
from unmask.training.denoiser.second_stage import SecondStage
from unmask.training.policy.run import PolicyRun

REFUSALS = ValueError
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "d_model": 8,
    "n_heads": 2,
    "n_layers": 1,
    "mlp_hidden_size": 12,
    "vocab_size": 10,
    "embedding_size": 12,
    "mask_token_id": 9,
    "max_sequence_length": 32,
    "weight_tying": False,
}


@cache
def place() -> Path:
    """A folder of this process, with a good denoiser, a good policy and a good run to replace files of."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    shutil.copytree(MODELS / "sudoku-4x4", folder / "denoiser")
    shutil.copytree(MODELS / "sudoku-4x4", folder / "weights")
    shutil.copytree(POLICIES / "sas-sudoku-4x4", folder / "policy")
    shutil.copytree(POLICIES / "sas-sudoku-4x4", folder / "policy_weights")
    family = folder / "family"
    family.mkdir()
    save_file({"model.transformer.wte.weight": torch.zeros(12, 8)}, family / "model.safetensors")
    for name in ("study", "words", "adapter", "run"):
        (folder / name).mkdir()
    save_file(
        {"blocks.0.attention.q.lora_A.default.weight": torch.zeros(2, 24)},
        folder / "adapter" / "adapter_model.safetensors",
    )
    Run(folder / "run").save(3, {"x": torch.zeros(2)}, {"a": 1})
    return folder


def write(name: str, content: bytes) -> Path:
    path = place() / name
    path.write_bytes(content)
    return path


def puzzles(content: bytes) -> None:
    read_csv(write("puzzles.csv", content), limit=20)


def preset(content: bytes) -> None:
    path = write("preset.toml", content)
    for kind in (PolicyRun, Pretrain, SecondStage):
        load_preset(path, kind)


def denoiser_config(content: bytes) -> None:
    load_folder(write("denoiser/config.json", content).parent)


def family_config(content: bytes) -> None:
    """Published families only: what transformers does with its own configurations is not ours."""
    path = write("family/config.json", content)
    original = loading.load_masked_lm

    def refuse(*_: object) -> None:
        raise ValueError("a masked language model of transformers")

    loading.load_masked_lm = refuse  # type: ignore[assignment]
    try:
        loading.load_checkpoint(path.parent)
    finally:
        loading.load_masked_lm = original


def tokenizer(content: bytes) -> None:
    loading.added_tokens(write("family/tokenizer.json", content).parent)
    loading.added_tokens(write("family/tokenizer_config.json", content).parent)


def safetensors(content: bytes) -> None:
    load_folder(write("weights/model.safetensors", content).parent)


def policy_config(content: bytes) -> None:
    load_scheduler(str(write("policy/config.json", content).parent))


def policy_weights(content: bytes) -> None:
    load_scheduler(str(write("policy_weights/model.safetensors", content).parent))


def trace(content: bytes) -> None:
    from_json(parse(content))


def request(content: bytes) -> None:
    """The first line is the Host, the rest the body."""
    host, _, body = content.partition(b"\n")
    names_server(host.decode("latin-1"), "127.0.0.1", 8000)
    value = parse(body)
    if isinstance(value, dict) and "puzzle" in value:
        validate(BoardRequest, value)
    else:
        for entry in validate(TextRequest, value).entries:
            read_decoding(entry.options, "decoding")


def json_lines(content: bytes) -> None:
    """Metrics are written by us and torn by kills: nothing in them is an error."""
    write("run/metrics.jsonl", content)
    run = Run(place() / "run")
    before = run.metrics()
    run.rewind(3)
    after = run.metrics()
    assert after == before[: len(after)]
    assert all(isinstance(record, dict) for record in after)


def checkpoint(content: bytes) -> None:
    path = place() / "run" / "checkpoints" / "step-00000003" / "state.json"
    whole = path.read_bytes()
    path.write_bytes(content)
    try:
        Run(place() / "run").load_latest()
    finally:
        path.write_bytes(whole)


def typed(content: bytes) -> None:
    """What is typed or dropped into the playground."""
    read_rows(content)
    read_puzzle(content.decode("utf-8", "replace"))


def countdown(content: bytes) -> None:
    read_problems(write("countdown.jsonl", content), limit=20)


def report(content: bytes) -> None:
    """An evaluation's file, up to the tables of the page and of the terminal; whatever its names hold, they are text there."""
    found = report_from_json(parse(content))
    assert "<script" not in table_html(found).replace("&lt;script", "")
    out = io.StringIO()
    SafeConsole(file=out, width=100, color_system=None).print(comparison(found))
    assert not [letter for letter in out.getvalue() if not letter.isprintable() and letter not in "\n\t"]


def label(content: bytes) -> None:
    """A name in a figure: the SVG is well-formed, and the name is in it as text alone."""
    name = content.decode("utf-8", "replace")[:200]
    svg = inline_svg(intervals({name: [Point(name, 1.0, 0.5, 1.5)]}, name, theme="page"), "it", name)
    tags = {element.tag for element in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "defs", "style", "g", "path", "use", "text", "tspan", "clipPath", "rect"}, tags


def study(content: bytes) -> None:
    read_study(write("study/study.json", content).parent)


def benchmark_row(content: bytes) -> None:
    """The first byte chooses the benchmark."""
    tasks = sorted(ROWS)
    for place, row in parse_json_lines([content[1:]], "rows"):
        check_row(row, tasks[content[0] % len(tasks)], place)


def whole_tokenizer(content: bytes) -> None:
    load_tokenizer(write("words/tokenizer.json", content).parent)


def adapter_config(content: bytes) -> None:
    path = write("adapter/adapter_config.json", content)
    base_of(path.parent)
    load_adapter(Transformer(read_config(MODELS / "sudoku-4x4")), path.parent)


def answer(content: bytes) -> None:
    """Every reader of answers: none of them refuses anything."""
    text = content.decode("utf-8", "replace")
    for extract in (extract_number, extract_expression, extract_code):
        extract(text)
    assert math_equal(text, "3") in (True, False)
    for kind in (Countdown(), Code()):
        kind.grade(kind.problem(0), text)


def crossing(content: bytes) -> None:
    """What a program under test sends to its tests."""
    # Errors are the program's, in its tests.
    with contextlib.suppress(KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        value = inside.decode(json.loads(content), lambda number: number)
        assert not hasattr(type(value), "__module__") or type(value).__module__ in ("builtins", "decimal", "fractions")


def hub_id(content: bytes) -> None:
    parsed = parse_hub_id(content.decode("utf-8", "replace"))
    assert parsed is None or (parsed[0].count("/") == 1 and ".." not in parsed[0].split("/"))


def _read(folder: Path, *parts: str) -> bytes:
    return folder.joinpath(*parts).read_bytes()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        puzzles,
        preset,
        denoiser_config,
        family_config,
        tokenizer,
        safetensors,
        policy_config,
        policy_weights,
        trace,
        request,
        typed,
        json_lines,
        countdown,
        checkpoint,
        report,
        label,
        study,
        benchmark_row,
        whole_tokenizer,
        adapter_config,
        answer,
        crossing,
        hub_id,
    )
}
TINY_TRACE = {
    "format": "unmask-trace",
    "version": 1,
    "kind": "text",
    "task": "t",
    "problem": "p",
    "denoiser": "d",
    "decoding": "r",
    "grid": None,
    "prompt": [1, 0],
    "target": [1, 2],
    "mask_id": 0,
    "end_ids": [],
    "block": [-1, 0],
    "labels": {"0": "_", "1": "a", "2": "b"},
    "trajectories": [],
}
EVALUATION = {
    "task": "sudoku", "source": "s", "denoiser": "d", "n": 2, "seed": 0,
    "rows": [
        {
            "scheduler": "a", "decoding": "any order", "n": 2, "exact": 0.5, "exact_low": 0.1, "exact_high": 0.9, "cell": 0.9,
            "cell_low": 0.8, "cell_high": 1.0, "nll": None, "nll_low": None, "nll_high": None, "steps": 4.0, "denoiser_calls": 4.0,
            "seconds": 1.0, "versus": None, "strata": {"x": {"n": 2, "exact": 0.5, "exact_low": 0.1, "exact_high": 0.9}},
            "solved": "10",
        }
    ],
}  # fmt: skip
TABLE = {"title": "t", "columns": ["a", "b"], "rows": [["1", {"text": "2", "strong": True}]], "note": ""}
STUDY = {"format": "unmask study 1", "study": "s", "command": "c", "tables": [TABLE], "figures": []}
DOCUMENTS: list[dict[str, object]] = [
    {"question": "q", "answer": "#### 3"},
    {"task_id": "0", "prompt": "def f(x):\n  1", "entry_point": "f", "test": "def check(c): 1"},
    {"key": 1, "prompt": "p", "instruction_id_list": ["a:b"], "kwargs": [{}]},
    {"problem": "p", "solution": "s", "answer": "1"},
    {"task_id": 11, "text": "t", "code": "def f(): 1", "test_list": ["assert f()"]},
]
"""A row of each benchmark, in the order of their names."""
WORDS = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
    "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
}  # fmt: skip


CORPORA = Path(__file__).with_name("corpora.zip")


@cache
def read_corpora() -> dict[str, list[bytes]]:
    """Inputs that earlier runs of the fuzzer found worth keeping, by target."""
    found: dict[str, list[bytes]] = {name: [] for name in TARGETS}
    with zipfile.ZipFile(CORPORA) as archive:
        for entry in archive.namelist():
            found[entry.partition("/")[0]].append(archive.read(entry))
    return found


@cache
def seeds() -> dict[str, list[bytes]]:
    """Good inputs of each target, or nearly."""
    return {
        "puzzles": [b"puzzle,solution\n1..............4,\n", b"..3.3...........\n"],
        "preset": [path.read_bytes() for path in sorted(PRESETS.glob("*/*.toml"))[:6]],
        "denoiser_config": [_read(MODELS, "sudoku-4x4", "config.json")],
        "family_config": [json.dumps(LLADA).encode(), b'{"model_type": "Dream", "rope_scaling": {"type": "linear"}}'],
        "tokenizer": [
            b'{"added_tokens": [{"content": "a", "id": 1}]}',
            b'{"added_tokens_decoder": {"5": {"content": "b"}}}',
        ],
        "safetensors": [
            save({"embedding.weight": torch.zeros(2, 2)}),
            _read(MODELS, "sudoku-4x4", "model.safetensors"),
        ],
        "policy_config": [_read(POLICIES, "sas-sudoku-4x4", "config.json")],
        "policy_weights": [save({"x": torch.zeros(2)}), _read(POLICIES, "sas-sudoku-4x4", "model.safetensors")],
        "trace": [json.dumps(TINY_TRACE).encode()],
        "request": [
            b'127.0.0.1:8000\n{"puzzle": "1", "denoiser": "d", "schedulers": ["a"]}',
            b'[::1]:8000\n{"denoiser": "d", "mode": "holes", "text": "<mask>", "length": 8, "seed": 0, '
            b'"entries": [{"scheduler": "a", "options": {"block": 4, "pace": "threshold:p=0.9"}}]}',
        ],
        "typed": [b"1..............4", b"puzzle,solution\n1..............4,\n"],
        "countdown": [b'{"numbers": [3, 5, 7], "target": 15}\n', b'{"input": "3,5,7", "output": "15"}\n'],
        "json_lines": [b'{"step": 1}\n{"step": 2, "loss": 0.5}\n{"note": 1}\n{"step": 4}\n{"st'],
        "report": [json.dumps(EVALUATION).encode()],
        "label": [b"confidence", rb"$\frac{1}{$", b"</text><script>", b"a\x1b[31m", rb"\1\g<0>"],
        "study": [json.dumps(STUDY).encode()],
        "benchmark_row": [bytes([n]) + json.dumps(row).encode() for n, row in enumerate(DOCUMENTS)],
        "whole_tokenizer": [json.dumps(WORDS).encode()],
        "adapter_config": [
            b'{"r": 2, "lora_alpha": 4, "target_modules": ["q"], "base_model_name_or_path": "sudoku-4x4", "peft_type": "LORA"}'
        ],
        "answer": [
            rb"\boxed{\frac{1}{2}}",
            b"#### 1,234.5",
            b"<answer>3</answer>",
            b"```python\ndef f(a):\n return 1\n```",
        ],
        "crossing": [
            b'{"tuple": [1, {"set": [2]}, {"dict": [["a", null]]}, {"int": "0x10"}, {"Fraction": "1/3"}, {"object": 3}]}'
        ],
        "hub_id": [b"owner/name@refs/pr/1", b"owner/name@main/a/b.safetensors"],
        "checkpoint": [(place() / "run" / "checkpoints" / "step-00000003" / "state.json").read_bytes()],
    }
