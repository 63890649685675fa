"""Masked language models of transformers as denoisers: the head apart from the trunk, padding, special tokens, files."""

from __future__ import annotations

import builtins
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers import masked_lm
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.masked_lm import MaskedLM
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.policy import build_policy

transformers = pytest.importorskip("transformers", reason="masked language models come from transformers")

MASK, PAD, ROWS = 32, 1, 40
SIZE: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 30,
    "pad_token_id": PAD,
}
IDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
DISTIL = {"vocab_size": ROWS, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 48, "pad_token_id": PAD}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {**SIZE}),
    "roberta": ("RobertaConfig", {**SIZE}),
    "modernbert": ("ModernBertConfig", {**SIZE, **IDS, "local_attention": 6, "global_attn_every_n_layers": 2}),
    "esm2": ("EsmConfig", {**SIZE, "mask_token_id": MASK, "position_embedding_type": "rotary", "token_dropout": True}),
    "esm1": ("EsmConfig", {**SIZE, "mask_token_id": MASK, "position_embedding_type": "absolute"}),
    "distilbert": ("DistilBertConfig", {**DISTIL, "max_position_embeddings": 30}),
    "electra": ("ElectraConfig", {**SIZE, "embedding_size": 32}),
    "albert": ("AlbertConfig", {**SIZE, "embedding_size": 32}),
    "mpnet": ("MPNetConfig", {**SIZE}),
    "esmc": ("EsmcConfig", {**SIZE, **IDS, "mask_token_id": MASK}),
}
MAIN = ("bert", "roberta", "modernbert", "esm2", "esm1", "esmc")
ROW = torch.tensor([[0, 7, MASK, 9, 11, MASK, MASK, 30, 2]])


def model(name: str) -> Any:
    """Random weights far enough from 0 that position and neighbours matter."""
    kind, settings = MODELS[name]
    made = transformers.AutoModelForMaskedLM.from_config(getattr(transformers, kind)(**settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    return made.eval()


def denoiser(name: str) -> MaskedLM:
    return MaskedLM(model(name), mask_id=MASK)


def padded(rows: list[Tensor], lefts: list[int], length: int, filler: int) -> tuple[Tensor, Tensor]:
    tokens, attention = torch.full((len(rows), length), filler), torch.zeros(len(rows), length, dtype=torch.bool)
    for r, (row, left) in enumerate(zip(rows, lefts, strict=True)):
        tokens[r, left : left + len(row)] = row
        attention[r, left : left + len(row)] = True
    return tokens, attention


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_the_complete_model(name: str) -> None:
    ours, theirs = denoiser(name), model(name)
    assert isinstance(ours, Denoiser)
    with torch.no_grad():
        wanted = theirs(input_ids=ROW, attention_mask=torch.ones_like(ROW)).logits[0]
        states = ours.hidden(ROW)
    hidden = (ROW[0] == MASK).nonzero()[:, 0]
    torch.testing.assert_close(ours.logits(states[0, hidden]), wanted[hidden], atol=1e-5, rtol=1e-5)
    assert ours.config.width == states.shape[2] and ours.config.vocab_size == wanted.shape[1]
    assert not ours.training and not any(p.requires_grad for p in ours.parameters())


def test_only_eligible_positions_get_logits() -> None:
    ours, seen = denoiser("bert"), []
    ours.head.register_forward_hook(lambda module, given, out: seen.append(given[0].shape[:-1].numel()))
    unmask(ours, confidence, ROW, Decoding(block=4))
    # The region is the five positions from the first mask to the last: a block with two masks, and one with one.
    assert seen == [2, 1, 1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("left", [0, 3])
def test_padding_changes_nothing(name: str, left: int) -> None:
    """On either side, whatever stands in it: the mask, whose share ESM counts, or any token."""
    ours = denoiser(name)
    alone = ours.logits(ours.hidden(ROW))[0]
    for filler in (PAD, MASK, 8):
        tokens, attention = padded([ROW[0], ROW[0, :4]], [left, 5], 14, filler)
        together = ours.logits(ours.hidden(tokens, attention))[0, left : left + 9]
        torch.testing.assert_close(together, alone, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", MAIN)
def test_a_batch_decodes_as_its_rows_do(name: str) -> None:
    ours = denoiser(name)
    rows = [ROW[0], torch.tensor([0, MASK, 5, MASK, 2]), torch.tensor([0, 3, MASK, MASK, 6, 2])]
    alone = [unmask(ours, confidence, row[None]) for row in rows]
    for lefts in ([2, 6, 5], [0, 0, 0]):
        tokens, attention = padded(rows, lefts, 11, MASK)
        together = unmask(ours, confidence, Canvas(tokens, attention=attention))
        for r, (row, left, single) in enumerate(zip(rows, lefts, alone, strict=True)):
            assert torch.equal(together.tokens[r, left : left + len(row)], single.tokens[0])
            assert torch.equal(together.rank[r, left : left + len(row)], single.rank[0])


@pytest.mark.parametrize("name", MAIN)
def test_special_tokens_are_never_revealed(name: str) -> None:
    ours = denoiser(name)
    ends = {"roberta": {0, 2}, "modernbert": {0, 2}, "esmc": {0, 2}, "esm1": {2}, "esm2": {2}}
    special = {MASK, PAD} | ends.get(name, set())
    assert set(ours.forbidden_ids) == special
    with torch.no_grad():
        ours.head.weight[list(special)] *= 30  # now they would be the likeliest of all
    revealed = unmask(ours, confidence, ROW).tokens[ROW == MASK]
    assert not set(revealed.tolist()) & special


def test_canvases_longer_than_the_position_table_are_refused() -> None:
    assert denoiser("bert").config.max_length == 30
    assert denoiser("roberta").config.max_length == 28  # its table starts at the padding id, plus one
    longest = torch.full((1, 28), 7)
    assert denoiser("roberta").hidden(longest).isfinite().all()
    with pytest.raises(ValueError, match="canvas of 29 positions exceeds the denoiser's 28"):
        denoiser("roberta").hidden(torch.full((1, 29), 7))


@pytest.mark.parametrize("kind", ["transformer", "hidden"])
def test_an_order_policy_reads_a_masked_language_model(kind: str) -> None:
    ours = denoiser("roberta")
    policy = build_policy(PolicyConfig(kind=kind, width=8, n_layers=1, n_heads=2), ours, "roberta").check(ours)
    path = unmask(ours, policy.eval(), ROW)
    assert int(path.reveals[0]) == 3 and ours.forwarded == 3


def test_a_model_that_padding_changes_refuses_padding() -> None:
    """FNet mixes positions without looking at a mask."""
    settings = {key: SIZE[key] for key in SIZE if key != "num_attention_heads"}
    ours = MaskedLM(transformers.AutoModelForMaskedLM.from_config(transformers.FNetConfig(**settings)), mask_id=MASK)
    assert ours.hidden(ROW).isfinite().all()
    tokens, attention = padded([ROW[0]], [2], 11, PAD)
    with pytest.raises(ValueError, match="the rows of FNetForMaskedLM change when they are padded"):
        ours.hidden(tokens, attention)


def test_heads_that_are_not_found_and_masks_that_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="of BertForMaskedLM names a mask token: pass mask_id="):
        MaskedLM(model("bert"))
    assert MaskedLM(model("esm2")).mask_id == MASK
    monkeypatch.setattr(masked_lm, "HEADS", (("cls",), ("decoder",)))
    with pytest.raises(
        ValueError, match=r"cannot tell the head of RobertaForMaskedLM .* its parts are roberta, lm_head"
    ):
        denoiser("roberta")


def saved(folder: Path, name: str, words: int = 38) -> Path:
    """A folder as the hub has it, with a tokenizer of ``words`` tokens."""
    model(name).save_pretrained(folder)
    named = {0: "[CLS]", PAD: "[PAD]", 2: "[SEP]", 3: "[UNK]", MASK: "[MASK]"}
    vocabulary = {named.get(i, f"w{i}"): i for i in range(words)}
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    special = {f"{key}_token": f"[{key.upper()}]" for key in ("cls", "pad", "sep", "unk", "mask")}
    raw = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=20, **special).save_pretrained(folder)
    return folder


def test_a_folder_is_loaded_quietly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "bert", "bert")
    capfd.readouterr()
    ours = load_denoiser(folder)
    assert isinstance(ours, MaskedLM)
    assert capfd.readouterr() == ("", "")
    torch.testing.assert_close(ours.hidden(ROW), denoiser("bert").hidden(ROW))
    assert (ours.mask_id, ours.pad_id, ours.end_ids, ours.config.max_length) == (MASK, PAD, (), 20)
    assert ours.forbidden_ids == (0, 1, 2, 3, MASK, 38, 39)  # and two rows that the tokenizer has no word for
    half = load_denoiser(folder, torch.bfloat16, "cpu")
    assert half.logits(half.hidden(ROW)).dtype == torch.bfloat16
    assert load_denoiser(folder, device_map={"": "cpu"}).device.type == "cpu"
    with pytest.raises(ValueError, match="give one of them"):
        load_denoiser(folder, device="cpu", device_map="auto")


def test_dplm_is_esm_under_another_name(tmp_path: Path) -> None:
    """Its remote code subclasses transformers' ESM modules: the same tensors, so the same logits."""
    made = model("esm2")
    made.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    remote = {
        "architectures": ["DPLMForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "modeling_dplm.DPLMForMaskedLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps({**stored, **remote, "model_type": "dplm"}))
    denoiser = load_denoiser(tmp_path)
    with torch.no_grad():
        wanted = made(ROW).logits
    torch.testing.assert_close(denoiser.logits(denoiser.hidden(ROW)), wanted, atol=1e-5, rtol=1e-5)


def test_folders_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trunk = transformers.BertModel(transformers.BertConfig(**SIZE))
    trunk.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"does not fit BertForMaskedLM: cls\.predictions"):
        load_denoiser(tmp_path / "headless")

    folder = saved(tmp_path / "remote", "bert")
    config = json.loads((folder / "config.json").read_text())
    code = {"auto_map": {"AutoConfig": "made.MadeConfig", "AutoModelForMaskedLM": "made.Made"}}
    (folder / "config.json").write_text(json.dumps({**config, **code, "model_type": "made", "architectures": ["Made"]}))
    (folder / "made.py").write_text("import pathlib; pathlib.Path('sprung').touch()")
    with pytest.raises(ValueError, match="is not a masked language model that transformers knows"):
        load_denoiser(folder)
    assert not (tmp_path / "sprung").exists()

    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "kept")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=r"with config\.json and model\.safetensors"):
        load_denoiser(folder)


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path, "bert")
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(ValueError, match=r"expected transformers 5 or later, got 4\.57\.1: pip install unmask\[lm\]"):
        load_denoiser(folder)
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r"load without transformers: pip install unmask\[lm\]"):
        load_denoiser(folder)
