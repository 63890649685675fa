"""The notebooks of ``examples/`` run from the first cell to the last."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from support.reactions import tiny_reactions
from support.text import tiny_llada

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny checkpoints in place of LLaDA and rxnmapper, in a folder of the test's own."""
    stand_in = tiny_llada(tmp_path / "llada")
    config = stand_in / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_sequence_length": 512}))
    monkeypatch.setenv("UNMASK_EXAMPLE_MODEL", str(stand_in))
    monkeypatch.setenv("UNMASK_EXAMPLE_REACTIONS", str(tiny_reactions(tmp_path / "reactions")))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_cells_run(file: Path) -> None:
    """In IPython, the results of cells shown as HTML where they can be. A kernel would have to import everything again."""
    from IPython.core.interactiveshell import InteractiveShell

    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "outputs are stripped before a notebook is committed"
    )
    shell = InteractiveShell()
    setattr(shell.display_formatter, "active_types", ["text/plain", "text/html"])  # noqa: B010 (a trait, unknown to pyright)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source, store_history=False).raise_error()


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_notebook_runs(file: Path, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
