"""The task ``reaction``: what is hidden, what counts as right, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reactions import chemistry
from unmask_studies.reactions.hiding import choose_hidden
from unmask_studies.reactions.smiles import ARROW, tokenize
from unmask_studies.reactions.task import ReactionData, open_canvas

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")
ESTER = "CC(=O)O.OCc1ccccc1>>CC(=O)OCc1ccccc1"


@pytest.mark.parametrize("part", ["random", "span", "fragment", "product", "reactant"])
def test_what_is_hidden_depends_on_seed_and_row_alone(part: str) -> None:
    tokens = tokenize(ESTER)
    arrow = tokens.index(ARROW)
    places = choose_hidden(tokens, part, 0.5, 3, 7)  # pyright: ignore[reportArgumentType]
    assert places == choose_hidden(tokens, part, 0.5, 3, 7) == sorted(set(places))  # pyright: ignore[reportArgumentType]
    assert all((place < arrow) == (part == "reactant") for place in places)
    if part in ("random", "span"):
        assert len(places) == round(0.5 * (len(tokens) - arrow - 1))
    if part == "span":
        assert places == list(range(places[0], places[0] + len(places)))


def test_fragments_are_rings_and_substituents() -> None:
    ring, *others = chemistry.find_fragments("CC(=O)OCc1ccccc1")
    assert ring == frozenset(range(5, 11))
    assert frozenset(range(5)) in others


def test_another_way_to_write_the_molecule_is_right(model: Path, file: str) -> None:
    denoiser = load_denoiser(model)
    problems = ReactionData(file=file, hide=1.0).problems(denoiser, str(model))
    task = problems.held_out(1, "all")
    canvas = task.canvas([0])
    assert task.draw(0, canvas.truth[0]) == "CO.CC(=O)O>>COC(C)=O"
    turned = task.tokenizer.encode("CO.CC(=O)O>>O=C(C)OC")
    assert len(turned) == canvas.tokens.shape[1]
    verdict = task.verify([0], torch.tensor([turned]))
    assert bool(verdict.exact[0]) and verdict.share[0] < 1
    wrong = task.tokenizer.encode("CO.CC(=O)O>>CCC(C)=O")
    assert not task.verify([0], torch.tensor([wrong])).exact[0]
    assert task.assess([0], torch.tensor([wrong])) == [
        {"identical": False, "equivalent": False, "valid": True, "conserved": False}
    ]
    assert problems.judge(canvas.truth, torch.tensor([turned])).tolist() == [True]
    # A row of a longer batch, as the validation of a training has them.
    padded = torch.nn.functional.pad(torch.tensor([turned]), (0, 3), value=denoiser.pad_id or 0)
    assert torch.equal(task.verify([0], padded).share, verdict.share) and bool(task.verify([0], padded).exact[0])


def test_decoding_reveals_only_what_was_hidden(model: Path, file: str) -> None:
    denoiser = load_denoiser(model)
    task = ReactionData(file=file).problems(denoiser, str(model)).held_out(4, "all")
    canvas = task.canvas(range(4))
    tokens = unmask(denoiser, load_scheduler("confidence"), canvas, record=False).tokens
    assert canvas.region is not None
    assert torch.equal(tokens[~canvas.region], canvas.truth[~canvas.region])
    assert not (tokens == denoiser.mask_id).any()


def test_sides_share_no_product(model: Path, file: str) -> None:
    problems = ReactionData(file=file, validation=0.4).problems(load_denoiser(model), str(model))
    sides = {side: {r.product for r in task.reactions} for side, task in problems.sides.items()}
    assert sides["train"] and sides["validation"] and not sides["train"] & sides["validation"]
    assert not torch.equal(problems(0, 4).tokens, problems(1, 4).tokens)


def test_what_a_user_leaves_open(model: Path) -> None:
    denoiser = load_denoiser(model)
    from unmask.generation.text_canvas import load_tokenizer

    tokenizer = load_tokenizer(model)
    canvas = open_canvas(denoiser, tokenizer, "CO.CC(=O)O>>COC?3=O")
    assert int((canvas.tokens == denoiser.mask_id).sum()) == 3 and canvas.target is None
    for text, message in (("CO>>CO", "for what is open"), ("CO?", "for what is open"), ("CF>>C?", "does not know")):
        with pytest.raises(ValueError, match=message):
            open_canvas(denoiser, tokenizer, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hide": 0.0}, "hide must be"),
        ({"longest": 2}, "longest"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReactionData(**options)  # pyright: ignore[reportArgumentType]


def test_a_drawing_has_coloured_atoms() -> None:
    svg = chemistry.draw_molecule("CCO", {0: (1.0, 0.0, 0.0)})
    assert svg.startswith("<?xml") and "#FF" in svg.upper()
