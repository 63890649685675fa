"""Rules that the source keeps, and documents that agree with it: the paper's labels, the commands. Read, not run."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest

from unmask.cli import main as cli
from unmask.cli.shell import find_option, list_options, resolve
from unmask.decoding.options import Decoding
from unmask.evaluation.lm_eval.settings import LmEval
from unmask.runs.presets import Preset, list_presets, load_preset
from unmask.training.denoiser.pretrain import Pretrain
from unmask.training.denoiser.second_stage import SecondStage
from unmask.training.policy.run import PolicyRun
from unmask_studies.catalogue import load_study

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "unmask"
LABEL = re.compile(r"\b((?:Eq|Thm|Cor|Rem|Alg)\. [a-z]\w+)")
PAPER = ROOT / "docs" / "paper.md"
KINDS = {"pretrain": Pretrain, "train": PolicyRun, "finetune": SecondStage, "lm_eval": LmEval}
shared = ROOT.parent / "shared"


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def modules() -> dict[str, Path]:
    """``decode`` → its file; a package's own name → its ``__init__.py``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def walk(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


@functools.cache
def functions(package: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a package, with its place: ``src/unmask/decoding/loop.py:40 unmask``."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
        for path in sorted((ROOT / "src" / package).rglob("*.py"))
        for node in walk(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in named if argument.arg not in ("self", "cls")]


BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.comprehension, ast.match_case)


def complexity(node: ast.AST) -> int:
    """The branches below a node, those of nested functions excluded."""
    total = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        total += isinstance(child, BRANCHES)
        total += len(child.ifs) if isinstance(child, ast.comprehension) else 0
        total += len(child.values) - 1 if isinstance(child, ast.BoolOp) else 0
        total += complexity(child)
    return total


def test_no_function_has_more_than_eight_parameters() -> None:
    assert [place for place, function in functions("unmask") if len(parameters(function)) > 8] == []


def test_no_function_is_more_complex_than_fifteen() -> None:
    found = [*functions("unmask"), *functions("unmask_studies")]
    assert [place for place, function in found if 1 + complexity(function) > 15] == []


OWN_MEANING = {
    "PolicyTraining": {"block"},  # rollouts are decoded by blocks, with a budget of steps of their own
    "SecondStage": {"refresh"},  # after how many steps the orders are decoded again
    "PathMasks": {"refresh"},
    "Evaluate": {"pace", "revision"},  # several of them: a row of the table for each
    "DecodingBench": {"block"},  # sizes of the canvases that are timed
    "PolicyCost": {"block"},
    "Training": {"ends"},  # how many of the last steps a curve averages
}
"""Configurations with a field that has the name of a decoding option and another meaning."""


def test_a_decoding_option_is_declared_once() -> None:
    """Fields with a default are options; those without are records. The steps of a training are not those of a decoding."""
    options = {field.name for field in dataclasses.fields(Decoding)} - {"steps", "share"}
    repeated = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in walk(path):
            if isinstance(node, ast.ClassDef) and node.name != "Decoding":
                declared = [line for line in node.body if isinstance(line, ast.AnnAssign) and line.value is not None]
                found = {ast.unparse(line.target) for line in declared} & options - OWN_MEANING.get(node.name, set())
                repeated += [f"{path.relative_to(ROOT)}: {node.name}.{name}" for name in sorted(found)]
    assert repeated == []


def test_functions_take_decoding_options_as_one_argument() -> None:
    """One or two, such as those of a cache, may be parameters; more of them should be a Decoding."""
    options = {field.name for field in dataclasses.fields(Decoding)} - {"share"}
    repeated = [place for place, function in functions("unmask") if len(options & set(parameters(function))) > 2]
    assert repeated == []


VAGUE = re.compile(
    r"\b(who" r"ever|some" r"body|no" r"body|any" r"body|to" r"ld|as" r"ked|sa" r"id)\b|in pa" r"irs|leaves? out" r" 0",
    re.IGNORECASE,
)
"""Words that plain technical English does without; spelled in halves, so that this file has none of them."""


@pytest.mark.parametrize("folder", ["src", "tests", "docs", "fuzz", "README.md", "Makefile", "pyproject.toml"])
def test_the_language_is_plain(folder: str) -> None:
    top = ROOT / folder
    kinds = {".py", ".md", ".toml", ".html", ".js", ".css"}
    paths = [top] if top.is_file() else [path for path in top.rglob("*") if path.suffix in kinds]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in sorted(paths)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := VAGUE.search(line))
    ]
    assert found == []


def test_only_the_command_prints() -> None:
    for name, path in modules().items():
        calls = [node.func for node in walk(path) if isinstance(node, ast.Call)]
        prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
        assert not prints, f"{name} prints"


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: f"{preset.kind}/{preset.name}")
def test_every_preset_parses(preset: Preset) -> None:
    assert preset.description
    if preset.kind == "study":
        assert load_study(preset.name) != load_study(preset.name, quick=True)
    else:
        assert isinstance(load_preset(preset.name, KINDS[preset.kind], preset.kind), KINDS[preset.kind])


def source_labels() -> dict[str, set[str]]:
    """Label → the files whose docstrings name it."""
    named: dict[str, set[str]] = {}
    for path in modules().values():
        for node in walk(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for label in LABEL.findall(ast.get_docstring(node) or ""):
                    named.setdefault(label, set()).add(str(path.relative_to(SOURCE)))
    return named


def test_the_papers_labels_both_ways() -> None:
    mapped = set(LABEL.findall("\n".join(line for line in PAPER.read_text().splitlines() if line.startswith("| `"))))
    named = source_labels()
    assert {label: files for label, files in named.items() if label not in mapped} == {}
    assert mapped - named.keys() == set()


def test_the_labels_are_the_papers() -> None:
    tex = shared / "paper" / "scheduling_thoughts.tex"
    if not tex.exists():
        pytest.skip("the paper's source is not here")
    known = set(re.findall(r"\\label\{(\w+:\w+)\}", tex.read_text()))
    for label in source_labels():
        kind, name = label.split(". ")
        assert f"{kind.lower()}:{name}" in known, label


def test_every_function_and_test_of_the_paper_map_exists() -> None:
    text = PAPER.read_text()
    functions, tests = re.findall(r"`(unmask\.[\w.]+)`", text), re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(functions) > 20
    assert len(tests) > 15
    for dotted in functions:
        parts = dotted.split(".")
        depth = max(n for n in range(1, len(parts)) if ".".join(parts[1:n]) in modules())
        thing = importlib.import_module(".".join(parts[:depth]))
        for part in parts[depth:]:
            assert hasattr(thing, part), f"docs/paper.md names {dotted}, which does not exist"
            thing = getattr(thing, part)
    for file, test in tests:
        defined = {node.name for node in parse(ROOT / file).body if isinstance(node, ast.FunctionDef)}
        assert test in defined, f"docs/paper.md names {file}::{test}, which does not exist"


def test_every_row_of_the_map_has_a_function_and_a_test() -> None:
    rows = [line for line in PAPER.read_text().splitlines() if line.startswith("|") and "unmask." in line]
    assert len(rows) > 12
    assert all("`tests/" in row for row in rows)


def commands_in(text: str) -> list[list[str]]:
    """Every ``unmask …`` in code, in fences or in the text, with its comment cut off."""
    code = re.findall(r"^(?:\$ |\S*/)?unmask (.+)$", text, re.MULTILINE) + re.findall(r"`unmask ([^`]+)`", text)
    return [shlex.split(words.replace("\\|", "|"), comments=True) for words in code]


DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@functools.cache
def known_options(name: str, choice: tuple[str, ...]) -> set[str]:
    """The options of a command; ``choice`` are the words that choose its preset."""
    try:
        kind = resolve(cli.COMMANDS[name], choice)
    except ValueError:  # a preset or a study that the reader has yet to write
        kind = resolve(cli.COMMANDS[name], [])
    return {"--help", *list_options(kind)}


def unknown_options(words: list[str]) -> list[str]:
    """The options of a documented command that the command does not have."""
    name, *rest = words
    if name in ("-h", "--help") or name == "COMMAND":
        return []
    choice = [word for word in rest[:1] if not word.startswith("-")] + [word for word in rest if word == "--quick"]
    for option in ("--preset", "--task"):
        choice += [option, value] if (value := find_option(rest, option)) else []
    known = known_options(name, tuple(choice))
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_commands_exist(name: str) -> None:
    for words in commands_in((ROOT / name).read_text()):
        assert unknown_options(words) == [], words


def test_examples_in_the_help_exist() -> None:
    for name, command in cli.COMMANDS.items():
        examples = commands_in(re.sub(r"^ +", "", command.__doc__ or "", flags=re.MULTILINE))
        assert [unknown_options(words) for words in examples] == [[]] * len(examples)
        assert name in [words[0] for words in examples] or name in ("presets", "demo")


def test_documented_files_exist() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for path in re.findall(r"`((?:tests|docs)/[\w/]+\.(?:py|md))", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for link in {*re.findall(r"\]\(((?!http)[^)#]+)", text)} - {"commands.md"}:  # which the site generates
            assert ((ROOT / name).parent / link).exists(), f"{name} links to {link}"
