"""From files to denoisers: what is read from where, onto which device, and the errors for files that do not fit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.denoisers import text_denoiser
from support.families import CONFIGS, MASK, weights, write
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import device_of, dispatch
from unmask.denoisers.transformer import Transformer, make_attend

TOKENS = torch.tensor([[7, MASK, 3, MASK, 12, 19]])


def loaded(path: Path, *args: Any, **options: Any) -> Transformer:
    denoiser = load_denoiser(path, *args, **options)
    assert isinstance(denoiser, Transformer)
    return denoiser


def stored(folder: Path, **changes: Any) -> Path:
    """The folder's configuration with some fields changed; None removes one."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder


def test_shards_load_as_one_model(tmp_path: Path) -> None:
    one, three = (loaded(write(tmp_path / str(n), "llada", shards=n)) for n in (1, 3))
    for name, weight in one.named_parameters():
        assert torch.equal(weight, three.get_parameter(name))
        assert not weight.requires_grad
    assert not one.training
    assert one.config == three.config


def test_types_are_converted(tmp_path: Path) -> None:
    half = loaded(write(tmp_path, "dream", dtype=torch.bfloat16))
    assert half.head.weight.dtype == torch.float32
    assert torch.equal(half.head.weight, weights("dream")["lm_head.weight"].bfloat16().float())
    again = loaded(tmp_path, torch.bfloat16)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert again.logits(again.hidden(TOKENS)).dtype == torch.bfloat16
    assert loaded(tmp_path, torch.bfloat16, "meta").device.type == "meta"


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    """In the type they are stored in they stay in the file; the fused tensors of SMDM alone are copied."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux lists its mappings")
    own = save_denoiser(loaded(write(tmp_path / "first", "llada")), tmp_path / "ours")
    cases = (
        (own, ()),
        (write(tmp_path / "llada", "llada"), ()),
        (write(tmp_path / "smdm", "smdm"), (".q.", ".k.", ".v.")),
    )
    for place, copied in cases:
        denoiser = loaded(place)
        ranges = [
            tuple(int(end, 16) for end in line.split()[0].split("-"))
            for line in maps.read_text().splitlines()
            if line.endswith(".safetensors") and str(tmp_path) in line
        ]
        for ours, p in denoiser.named_parameters():
            mapped = any(low <= p.data_ptr() < high for low, high in ranges)
            assert mapped != any(part in ours for part in copied), ours


def test_ids_come_from_the_files(tmp_path: Path) -> None:
    llada = loaded(write(tmp_path / "llada", "llada"))
    assert (llada.mask_id, llada.pad_id, llada.end_ids) == (MASK, 27, (27,))
    assert set(llada.forbidden_ids) == {MASK, 31}  # a row of padding beyond the vocabulary
    added = {"26": {"content": "<|eot_id|>"}, "9": {"content": "<|im_end|>"}}
    (tmp_path / "llada" / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert loaded(tmp_path / "llada").end_ids == (27, 26)

    illada = loaded(write(tmp_path / "illada", "illada"))
    assert (illada.mask_id, illada.pad_id, illada.end_ids) == (5, 1, (2,))
    tokens = [{"id": 6, "content": "<[MASK]>"}, {"id": 3, "content": "<|im_end|>"}]
    (tmp_path / "illada" / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert (loaded(tmp_path / "illada").mask_id, loaded(tmp_path / "illada").end_ids) == (6, (2, 3))
    assert loaded(stored(tmp_path / "illada", mask_token_id=7)).mask_id == 7

    dream = loaded(stored(write(tmp_path / "dream", "dream"), eos_token_id=[26, 25], pad_token_id=None))
    assert (dream.pad_id, dream.end_ids) == (26, (26, 25))
    smdm = loaded(write(tmp_path / "smdm", "smdm"))
    assert (smdm.mask_id, smdm.pad_id, smdm.end_ids, smdm.forbidden_ids) == (31, 2, (2,), ())


def test_rotary_fields(tmp_path: Path) -> None:
    dream = stored(write(tmp_path, "dream"), rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 50})
    assert loaded(dream).config.rope_theta == 50
    with pytest.raises(ValueError, match=r"scales the rotary positions \(yarn\)"):
        loaded(stored(dream, rope_scaling={"type": "yarn", "factor": 4.0}, rope_parameters=...))


def test_a_tied_head_with_a_tensor_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path, "illada")
    tied = loaded(folder)
    assert tied.head.weight is tied.embedding.weight
    assert loaded(stored(folder, tie_word_embeddings=...)).config == tied.config
    assert not loaded(stored(write(folder / "dream", "dream"), tie_word_embeddings=...)).config.tied_head
    stored(folder, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    assert torch.equal(loaded(folder).head.weight, tied.head.weight)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"ties the head to the embedding, but lm_head\.weight is another tensor"):
        loaded(folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_tensors_that_do_not_fit(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    file = path / "model.safetensors" if path.is_dir() else path
    tensors = load_file(file)
    chosen = next(key for key in tensors if (".1." in key and key.endswith("norm.weight")) or ".1.norm_2" in key)
    for changed, message in (
        ({key: t for key, t in tensors.items() if key != chosen}, f"{chosen} is missing"),
        ({**tensors, "spare.weight": torch.zeros(1)}, "spare.weight is not in the model"),
        ({**tensors, chosen: torch.zeros(3)}, f"{chosen} has shape (3,), expected ({len(tensors[chosen])},)"),
        ({**tensors, chosen: tensors[chosen].to(torch.int8)}, f"{chosen} is stored as torch.int8"),
    ):
        save_file(changed, file)
        with pytest.raises(ValueError) as error:
            load_denoiser(path)
        assert message in str(error.value)
    save_file({f"other.{key}": t for key, t in tensors.items()}, file)
    with pytest.raises(ValueError, match=r"is missing"):
        load_denoiser(path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llada", {"activation_type": "swiglu"}, "activation_type = 'swiglu': this transformer has only 'silu'"),
        ("llada", {"block_type": ...}, "block_type = 'sequential'"),
        ("llada", {"layer_norm_type": "gemma_rms"}, "layer_norm_type"),
        ("llada", {"attention_layer_norm": True}, "attention_layer_norm"),
        ("llada", {"scale_logits": True}, "scale_logits"),
        ("llada", {"include_bias": True}, "include_bias"),
        ("llada", {"bias_for_layer_norm": True}, "norms have none"),
        ("llada", {"mask_token_id": ...}, "a whole number for 'mask_token_id', got None"),
        ("llada", {"mask_token_id": 40}, "the mask token is 40, but the embedding has 32 rows"),
        ("llada", {"n_kv_heads": 2}, r"k_proj\.weight has shape \(16, 16\), expected \(8, 16\)"),
        ("llada", {"n_layers": 3}, r"blocks\.2\.attn_norm\.weight is missing; .*; and 5 more"),
        (
            "llada",
            {"architectures": ["LLaDA3ModelLM"]},
            "LLaDA3ModelLM is a diffusion language model that is not supported",
        ),
        ("llada", {"architectures": ["LLaDAMoEModel"]}, "whole number for 'num_experts'"),
        ("llada", {"architectures": ..., "model_type": ...}, "is not a denoiser's"),
        ("dream", {"architectures": ["DreamForCausalLM"]}, "block-causal"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window"),
        ("dream", {"hidden_act": "gelu"}, "hidden_act"),
        ("illada", {"attention_bias": True}, "attention_bias"),
        ("illada", {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ("illada", {"rope_theta": ...}, "must give rope_theta"),
    ],
)
def test_unsupported_switches_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_denoiser(stored(write(tmp_path, name), **changes))


def test_a_family_is_found_by_its_model_type(tmp_path: Path) -> None:
    assert loaded(stored(write(tmp_path, "dream"), architectures=...)).config.logit_shift


def test_smdm_in_a_folder_and_its_autoregressive_models(tmp_path: Path) -> None:
    file = write(tmp_path, "smdm")
    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder" / "model.safetensors")
    assert loaded(tmp_path / "folder").config.n_heads == 2
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"n_embd": 128, "n_head": 4, "block_size": 64}))
    assert (loaded(tmp_path / "folder").config.n_heads, loaded(tmp_path / "folder").config.max_length) == (4, 64)
    tensors = {**weights("smdm"), "transformer.wte.weight": torch.zeros(31, 128)}
    save_file(tensors, tmp_path / "folder" / "model.safetensors")
    with pytest.raises(ValueError, match=r"got 31 and 31: this is one of SMDM's autoregressive models"):
        load_denoiser(tmp_path / "folder")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "expected files beside it"),
        ('{"weight_map": {"a": "model-00009-of-00009.safetensors"}}', "the download is not complete"),
    ],
)
def test_indices_that_do_not_fit(index: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, "llada", shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=message):
        load_denoiser(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, "llada", shards=2)
    twice = load_file(tmp_path / "model-00001-of-00002.safetensors")
    save_file(
        {**load_file(tmp_path / "model-00002-of-00002.safetensors"), **twice},
        tmp_path / "model-00002-of-00002.safetensors",
    )
    with pytest.raises(ValueError, match="two of its files hold"):
        load_denoiser(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"cannot read the weights .*00001"):
        load_denoiser(tmp_path)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("name", ["llada", "dream", "illada"])
def test_no_code_of_a_checkpoint_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "model", name)
    for module in ("modeling_llada", "modeling_dream", "modeling_illada", "configuration_llada", "configuration_dream"):
        (folder / f"{module}.py").write_text("import pathlib; pathlib.Path('sprung').touch()")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    loaded(folder)
    assert not (tmp_path / "sprung").exists()


def test_a_device_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "llada", "llada")
    wanted = loaded(folder).hidden(TOKENS)
    everywhere = {"embedding": "cpu", "blocks": "cpu", "norm": "cpu", "head": "cpu"}
    for device_map in ("auto", {"": "cpu"}, everywhere):
        assert torch.equal(loaded(folder, device_map=device_map).hidden(TOKENS), wanted)
    own = save_denoiser(text_denoiser(), tmp_path / "own")
    assert torch.equal(loaded(own, device_map="auto").head.weight, text_denoiser().head.weight)
    for options, message in (
        ({"device_map": "balanced"}, "device_map must be 'auto' or a dictionary"),
        ({"device_map": "auto", "device": "cpu"}, "give one of them"),
        ({"device_map": {"embedding": "cpu"}}, "blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded(folder, **options)
    assert device_of("blocks.1.ffn.up.weight", {"": 0, "blocks.1": 1, "blocks.11": 2, "blocks.1.ffn": 3}) == 3
    assert device_of("blocks.11.ffn.up.weight", {"": 0, "blocks.1": 1, "blocks.11": 2}) == 2
    monkeypatch.setattr("accelerate.infer_auto_device_map", lambda *a, **k: {"embedding": "cpu", "blocks": "disk"})
    with pytest.raises(ValueError, match=r"the weights need 0\.0 GiB as torch\.float32, more than"):
        load_denoiser(folder, device_map="auto")


def test_weights_offloaded_to_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate's hooks fetch the weights of a part when it is called; the angles and the mask follow the states by themselves."""
    from accelerate import cpu_offload

    given: dict[str, Any] = {}
    monkeypatch.setattr("accelerate.dispatch_model", lambda model, device_map: given.update(device_map))
    denoiser = loaded(write(tmp_path, "dream"))
    assert dispatch(denoiser, {"": "cpu"}) is denoiser and not given
    dispatch(denoiser, {"embedding": 0, "blocks": 1})
    assert given == {"embedding": 0, "blocks": 1}
    real = torch.ones_like(TOKENS, dtype=torch.bool)
    real[:, :2] = False
    wanted = denoiser.hidden(TOKENS, real)
    logits = denoiser.logits(wanted)
    places = torch.arange(6)[None]
    attend = make_attend(denoiser.config, None, places, places, real, torch.float32)
    q, k = torch.zeros(1, 6, 4, 4, device="meta"), torch.zeros(1, 6, 2, 4, device="meta")
    assert attend(q, k, k).device.type == "meta"
    cpu_offload(denoiser, execution_device=torch.device("cpu"))
    assert denoiser.embedding.weight.device.type == "meta" and denoiser.device.type == "cpu"
    assert torch.equal(denoiser.hidden(TOKENS, real), wanted)
    assert torch.equal(denoiser.logits(wanted), logits)


def test_the_files_requested_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = write(tmp_path / "llada", "llada"), write(tmp_path / "smdm", "smdm")
    requested: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        requested.update(name=name, **options)
        return str(folder if name == "GSAI-ML/LLaDA-8B-Instruct" else tmp_path)

    def download(name: str, inside: str) -> str:
        requested.update(name=name, inside=inside)
        return str(file)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert load_denoiser("GSAI-ML/LLaDA-8B-Instruct").mask_id == MASK
    assert requested["ignore_patterns"] == ["*/*"]  # a repository may hold other models below its top
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in requested["allow_patterns"])
    assert load_denoiser("nieshen/SMDM/mdm_safetensors/mdm-170M-100e18.safetensors").mask_id == 31
    assert (requested["name"], requested["inside"]) == ("nieshen/SMDM", "mdm_safetensors/mdm-170M-100e18.safetensors")
    with pytest.raises(ValueError, match=r"nieshen/SMDM on the hub has no model\.safetensors at its top"):
        load_denoiser("nieshen/SMDM")
    with pytest.raises(ValueError, match="no denoiser 'a/b/c'"):
        load_denoiser("a/b/c")
