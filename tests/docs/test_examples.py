"""The notebooks of ``examples/`` run from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.reactions import tiny_reactions
from support.text import tiny_llada

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tiny stand-ins for LLaDA and rxnmapper, in a folder of its own."""
    stand_in = tiny_llada(tmp_path / "llada")
    config = stand_in / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_sequence_length": 512}))
    monkeypatch.setenv("UNMASK_EXAMPLE_MODEL", str(stand_in))
    monkeypatch.setenv("UNMASK_EXAMPLE_REACTIONS", str(tiny_reactions(tmp_path / "reactions")))
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "outputs are stripped before a notebook is committed"
    )
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
