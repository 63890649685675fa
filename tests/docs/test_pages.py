"""The README and the documentation: Python blocks run, shell lines parse, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from support import families
from support.text import tiny_bert
from support.tokenizers import words
from unmask.cli.main import COMMANDS
from unmask.cli.shell import parse
from unmask.training.policy import run as policy_run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of the languages, without their indentation."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, language, text in found if language in languages
    ]


ELSEWHERE = {"engines.md": "its models run in other engines: tests/generation/test_engines.py"}
"""Pages whose Python blocks are tested elsewhere."""


def with_blocks(language: str) -> list[Any]:
    return [pytest.param(page, id=page.name) for page in PAGES if page.name not in ELSEWHERE and blocks(page, language)]


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny checkpoints in the layout of the models that the pages name, in place of the hub."""
    changes = {"max_sequence_length": 1024, "max_position_embeddings": 1024}
    for family in ("llada", "dream", "smdm"):
        folder = tmp_path / family
        families.write(folder, family)
        words(eos=27, chat=True).save_pretrained(folder)
        config = folder / "config.json"
        if config.exists():
            config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    tiny_bert(tmp_path / "bert")

    def find(name: str, *_: Any, **__: Any) -> str:
        kinds = {"LLaDA": "llada", "Dream": "dream", "BERT": "bert"}
        return str(tmp_path / next(kind for part, kind in kinds.items() if part in name))

    smdm = next((tmp_path / "smdm").glob("*.safetensors"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", find)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(smdm))
    load = policy_run.load_preset

    def shrink(*arguments: Any) -> Any:
        config = load(*arguments)
        training = replace(config.training, steps=1, prompts=2, group=2, validate=2, validate_every=1)
        return replace(config, training=training, data=replace(config.data, length=8))

    monkeypatch.setattr(policy_run, "load_preset", shrink)
    examples = [{"prompt": f"w{n} w{m}", "completion": "w4 w5"} for n in range(2, 12) for m in range(2, 12)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, examples)))
    folder = tmp_path / "benchmarks" / "gsm8k"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(8)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace, on the CPU, with short answers."""
    found = blocks(page, "python")
    if any("lm_eval import" in block for block in found):
        from lm_eval import evaluator, tasks

        # Without lm-eval's own tasks, thousands of files that no page names.
        monkeypatch.setattr(evaluator, "TaskManager", partial(tasks.TaskManager, include_defaults=False))
    names: dict[str, Any] = {}
    for number, block in enumerate(found):
        text = block.replace('device="cuda"', 'device="cpu"').replace("length=256", "length=64")
        exec(compile(text, f"{page.name}, Python block {number + 1}", "exec"), names)


def shell_lines(page: Path) -> list[str]:
    text = "\n".join(blocks(page, "", "bash", "sh")).replace("\\\n", " ")
    found = re.findall(r"^\s*(?:\w+=\S+ )*(?:\.venv/bin/)?unmask (.+)$", text, re.MULTILINE)
    inline = re.findall(r"`unmask (study [^`]+|[^`]+ --preset [^`]+)`", page.read_text(encoding="utf-8"))
    return [line for line in (*found, *inline) if "NAME" not in line]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES if shell_lines(page)])
def test_shell_lines_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real command line: every option and every name of a preset exists."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    wrong = []
    for line in shell_lines(page):
        try:
            parse(COMMANDS, "unmask", shlex.split(line, comments=True))
        except (ValueError, OSError) as error:
            wrong.append(f"unmask {line}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_of_pages_outside_the_site(page: Path) -> None:
    """``mkdocs build --strict`` checks the site's own."""
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing
