"""Reaction SMILES: tokens round-trip, bad input is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask_studies.reactions.smiles import (
    Reaction,
    expand_open,
    molecule_spans,
    read_reactions,
    tokenize,
)

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "chemistry"
ESTER = "CC(=O)O.OCc1ccccc1>>CC(=O)OCc1ccccc1"


@pytest.mark.parametrize(
    ("smiles", "count"),
    [("CCO", 3), ("[nH]1cccc1", 7), ("C[C@@H](Cl)Br", 6), ("C%12CC%12", 5), ("[Na+].[Cl-]", 3), (ESTER, 35)],
)
def test_tokens_join_to_the_string(smiles: str, count: int) -> None:
    tokens = tokenize(smiles)
    assert "".join(tokens) == smiles
    assert len(tokens) == count


@pytest.mark.skipif(not DATA.exists(), reason="the published reactions are not on this machine")
@pytest.mark.parametrize("name", ["uspto50k_train.csv", "uspto50k_test.csv"])
def test_published_reactions_round_trip(name: str) -> None:
    reactions = read_reactions(DATA / name)
    assert len(reactions) > 2000
    assert all("".join(tokenize(reaction.smiles)) == reaction.smiles for reaction in reactions)


def test_an_unknown_character_is_named_with_its_position() -> None:
    with pytest.raises(ValueError, match=r"'x' at position 3"):
        tokenize("CCxC")


def test_open_tokens_expand() -> None:
    assert expand_open(tokenize("C?2>>C?")) == ["C", "?", "?", ">>", "C", "?"]
    with pytest.raises(ValueError, match="1 to 500"):
        expand_open(["?501"])


@pytest.mark.parametrize("text", ["CCO", "CC>>", ">>CC", "C>>C>>C"])
def test_a_reaction_has_two_sides(text: str) -> None:
    with pytest.raises(ValueError, match="reactants>>product"):
        Reaction.parse(text)


def test_spans_of_molecules() -> None:
    tokens = tokenize("CC.O>>CO")
    assert [tokens[begin:end] for begin, end in molecule_spans(tokens)] == [["C", "C"], ["O"], ["C", "O"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "no column reactants"),
        ("reactants,product\n", "no reactions"),
        ("reactants,product\nCC,\n", "line 2: expected reactants and a product"),
        ("reactants,product\nCC,C!\n", "line 2: not a SMILES"),
        ("reactants,product\nC?,CC\n", "line 2: expected molecules without"),
    ],
)
def test_bad_files_are_one_clear_line(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "reactions.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_reactions(file)
