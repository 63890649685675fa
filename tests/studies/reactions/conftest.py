"""A tiny masked language model of SMILES, and a file of reactions that it knows the tokens of."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.reactions import tiny_reactions


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reactions(tmp_path_factory.mktemp("model"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "reactions.csv"
    rows = [f"{'C' * n}O.CC(=O)O,{'C' * n}OC(C)=O" for n in range(1, 13)]
    path.write_text("reactants,product\n" + "\n".join(rows) + "\n")
    return str(path)
