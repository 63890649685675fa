"""Sentences with an end and padding behind it, and the study of what a policy should be shown there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.decoding.loop import unmask
from unmask.schedulers.heuristics import left_to_right
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.policy.config import PolicyTraining
from unmask_studies.reports import get_denoiser
from unmask_studies.study import conclude, run_study
from unmask_studies.text.passages import MASK, OTHER
from unmask_studies.text.sentence_pads import SentencePads
from unmask_studies.text.sentences import END, Sentences


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    words = ("cat", "dog", "mouse", "bird", "horse")
    text = [f"the {words[n % 5]} sat on {n % 9} mats." + "\n" * (n % 3 == 0) for n in range(200)]
    file.write_text(" ".join(text) + " short. A sentence that is far too long for the region that is there ü.")
    return file


def test_sentences_end_and_are_padded(corpus: Path) -> None:
    source = Sentences(str(corpus), given=4, length=24)
    assert len(source.texts) == 200 and source.texts[0] == "the cat sat on 0 mats."
    canvas = source(0, 3)
    assert torch.equal(source(0, 3).truth, canvas.truth) and not torch.equal(source(1, 3).truth, canvas.truth)
    assert (canvas.tokens[:, 4:] == MASK).all() and torch.equal(canvas.tokens[:, :4], canvas.truth[:, :4])
    lengths = (canvas.truth != END).sum(1)
    for row, length in zip(canvas.truth.tolist(), lengths.tolist(), strict=True):
        assert END not in row[:length] and set(row[length:]) == {END} and OTHER not in row
    place = torch.arange(28)
    answer = (place >= 4) & (place <= lengths[:, None])
    hidden, left_out = (replace(source, pads=pads)(0, 3) for pads in ("hidden", "left_out"))  # pyright: ignore
    assert hidden.candidates is not None and torch.equal(hidden.candidates, answer)
    assert torch.equal(hidden.tokens, canvas.tokens) and canvas.candidates is None
    assert left_out.region is not None and torch.equal(left_out.region, answer)
    train, test = ({tuple(row) for row in source.part(split).tolist()} for split in ("train", "test"))
    assert len(source.part("train")) == 180 and test and train


def test_what_sentences_refuse(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the test part of .* has 10 sentences, not 11"):
        Sentences(str(corpus), given=4, length=24).held_out("test", 11)
    with pytest.raises(ValueError, match="0 sentences that fit, none of them for the train part"):
        Sentences(str(corpus), given=60, length=24).part("train")
    with pytest.raises(ValueError, match="expected a text file"):
        _ = Sentences(str(tmp_path / "absent.txt")).texts
    with pytest.raises(ValueError, match="length > 8"):
        Sentences("text.txt", length=8)


@pytest.mark.usefixtures("unchecked")
def test_small_study_of_pads(corpus: Path, tmp_path: Path) -> None:
    training = PolicyTraining(
        steps=2, prompts=2, group=2, advantage="reward_to_go", select="nll", validate=2, validate_every=1
    )
    study = SentencePads(
        data=(corpus,), given=4, length=24, sentences=6, width=16, layers=1,
        denoiser_training=MaskedTraining(samples=640, batch=32), policy_training=training,
    )  # fmt: skip
    list(run_study(study, tmp_path / "study"))
    (table,) = conclude(study, tmp_path / "study", "sentence-pads", "unmask study sentence-pads").tables
    shown: list[list[Any]] = [[str(getattr(cell, "text", cell)) for cell in row] for row in table.rows]
    assert [row[0] for row in shown] == ["left to right", "confidence", "`hidden`", "`end`", "`left_out`"]
    assert [bool(row[4]) for row in shown] == [False, False, True, True, True]
    # By hand: every hidden position counts, per character of the sentence and its end.
    denoiser, canvas = get_denoiser(str(tmp_path / "study" / "runs" / "denoiser")), study.source.held_out("test", 6)
    logp = unmask(denoiser, left_to_right, canvas, forced=True).total_logp
    characters = (canvas.truth != END).sum(1) + 1 - 4
    assert shown[0][3].startswith(f"{100 * float(((characters - 1) / 24).mean()):.0f} [")
    assert float((-logp / characters / math.log(2)).mean()) == pytest.approx(float(shown[0][1].split()[0]), abs=1e-3)
    with pytest.raises(ValueError, match="name it with --data"):
        list(run_study(replace(study, data=()), tmp_path / "other"))
