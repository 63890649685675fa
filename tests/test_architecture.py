"""The documents say what is: layers, files, the paper's labels, the README's commands. Read from the source, not run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from unmask.cli import main as cli
from unmask.cli.shell import refuse_unknown
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


def block(name: str) -> list[str]:
    """The lines of a fenced block of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(rf"```{name}\n(.*?)```", text, re.DOTALL)
    assert found, f"docs/architecture.md has no block {name}"
    return found.group(1).splitlines()


def modules() -> dict[str, Path]:
    """``decode`` → its file; a package's own name → its ``__init__.py``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports() -> dict[str, set[str]]:
    """Module → the modules of this package that it imports anywhere, also inside functions and for types."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative imports hide where they lead"
                named = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for full in named:
                if full == "unmask" or full.startswith("unmask."):
                    inside = full.removeprefix("unmask").removeprefix(".")
                    graph[name].add(inside if inside in known else inside.rpartition(".")[0])
    return graph


def test_imports_point_down() -> None:
    level = {name: depth for depth, line in enumerate(block("layers")) for name in line.split()}
    top = {name.partition(".")[0] for name in modules()} - {""}
    assert top == set(level), "docs/architecture.md: the layer list and the modules differ"
    for name, imported in imports().items():
        if name == "":
            continue  # the package's face
        assert "" not in imported, f"{name} imports the package's face"
        here = name.partition(".")[0]
        for other in imported:
            there = other.partition(".")[0]
            assert here == there or level[here] < level[there], f"{name} imports {other}, which is not below it"


def test_no_import_leads_back() -> None:
    graph, done = imports(), set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a circle of imports: {' → '.join((*trail, name))}"
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_file_map_names_every_file_once() -> None:
    mapped = [line.split()[0] for line in block("files")]
    assert sorted(mapped) == sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    assert all(len(line.split()) > 1 for line in block("files"))


def test_only_the_command_prints() -> None:
    for name, path in modules().items():
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
        assert not prints, f"{name} prints"


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: f"{preset.kind}/{preset.name}")
def test_every_preset_parses(preset: Preset) -> None:
    assert preset.description
    if preset.kind == "study":
        assert load_study(preset.name) != load_study(preset.name, quick=True)
    else:
        assert isinstance(load_preset(preset.path, KINDS[preset.kind]), KINDS[preset.kind])


def source_labels() -> dict[str, set[str]]:
    """Label → the files whose docstrings name it."""
    named: dict[str, set[str]] = {}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
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
        defined = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_commands_exist(name: str) -> None:
    for words in commands_in((ROOT / name).read_text()):
        refuse_unknown(cli.COMMANDS, "unmask", words)


def test_examples_in_the_help_exist() -> None:
    for name, command in cli.COMMANDS.items():
        examples = commands_in(re.sub(r"^ +", "", command.__doc__ or "", flags=re.MULTILINE))
        for words in examples:
            refuse_unknown(cli.COMMANDS, "unmask", words)
        assert name in [words[0] for words in examples] or name in ("presets", "demo")


def test_documented_files_exist() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for path in re.findall(r"`((?:tests|docs)/[\w/]+\.(?:py|md))", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for link in re.findall(r"\]\(((?!http)[^)#]+)", text):
            assert ((ROOT / name).parent / link).exists(), f"{name} links to {link}"
