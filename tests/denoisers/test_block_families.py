"""Families with blocks or experts: equal to public code, decoded as their own loops decode, with caches, trained on, planned.

The loops are plain re-implementations (``support/block_loops.py``) of SDAR's ``generate.py`` (and
LLaDA 2's and Stable-DiffCoder's, which are the same), Fast-dLLM v2's ``generate`` and Nemotron's. They run on the public layers,
ours on ours. With ``UNMASK_DLLM_CODE`` and ``UNMASK_SDAR_CODE`` (checkouts of ZHZisZZ/dllm and JetAstra/SDAR) the published loops
themselves are run.
"""

from __future__ import annotations

import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.block_families import BLOCK, CONFIGS, MASK, STOCK, public_logits, public_model, shapes, weights, write
from support.block_loops import block_loop, fast_dllm_loop, full_loop, hopeless, nemotron_loop
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Focus
from unmask.denoisers.checkpoint import load_folder, save_denoiser
from unmask.denoisers.families import DENOISERS, Published
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.heuristics import confidence

FAMILIES = list(CONFIGS)
BLOCKED = ["sdar", "diffcoder", "llada2"]
STORED = json.loads((Path(__file__).parent / "family_logits.json").read_text())


@cache
def ours(family: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """With weights in memory of their own, as the public model's: those in a mapped file stand at other addresses, by which a CPU's
    product with a single row, such as an expert's, may round its last bit."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        denoiser = load_denoiser(write(Path(folder) / family, family), dtype=dtype)
    assert isinstance(denoiser, Transformer)
    for parameter in denoiser.parameters():
        parameter.data = parameter.data.clone()
    return denoiser


def seen(denoiser: Transformer, length: int) -> tuple[Tensor | None, Focus | None]:
    """The mask that the family's code builds, and the focus that says the same to ours: the last block but one position."""
    place, size = torch.arange(length), denoiser.config.attention_block or 1
    if denoiser.config.attention == "block_causal":
        return ((place // size)[None, :] <= (place // size)[:, None])[None, None], None
    if denoiser.config.attention == "causal_prefix":
        active = (place >= length - size - 1) & (place < length - 1)
        mask = (place[None, :] <= place[:, None]) | (active[None, :] & active[:, None])
        return mask[None, None], Focus(torch.arange(3), torch.zeros(3, dtype=torch.long), active.expand(3, length), 0)
    return torch.ones(1, 1, length, length, dtype=torch.bool), None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_public_code(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a bit differs."""
    if family == "sdar":
        _round_norms_once(monkeypatch)
    theirs, denoiser = public_logits(family, dtype), ours(family, dtype)
    for length in (7, 24, 40):
        tokens = torch.randint(32, (3, length), generator=torch.Generator().manual_seed(length))
        mask, focus = seen(denoiser, length)
        mask = (
            None if family == "llada_moe" or mask is None else mask.expand(3, -1, -1, -1)
        )  # its own mask is of two dimensions
        wanted = theirs(tokens, mask)
        if denoiser.config.logit_shift:
            wanted = torch.cat([wanted[:, :1], wanted[:, :-1]], dim=1)
        elif focus is not None:
            first = int(focus.active[0].int().argmax())
            wanted[:, first] = theirs(tokens, mask)[:, first - 1]
        assert torch.equal(denoiser.logits(denoiser.hidden(tokens, focus=focus)), wanted)


def _round_norms_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDAR's norms are flash-attn's ``rms_norm_fn``: everything in float32, rounded at the end."""
    modelling = pytest.importorskip(
        "transformers.models.qwen3.modeling_qwen3", reason="the public layers are transformers'"
    )

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)

    monkeypatch.setattr(modelling.Qwen3RMSNorm, "forward", forward)


@pytest.mark.parametrize("family", ["llada_moe", "llada2"])
def test_the_numbers_of_the_public_code(family: str) -> None:
    """What dllm's copies of ``modeling_lladamoe.py`` and ``modeling_llada2_moe.py`` gave, in float32."""
    denoiser = ours(family)
    tokens = torch.tensor([STORED[family]["tokens"]])
    logits = denoiser.logits(denoiser.hidden(tokens))[0]
    torch.testing.assert_close(logits, torch.tensor(STORED[family]["logits"]), atol=2e-5, rtol=1e-5)


PROMPTS = [[3, 4, 5, 6, 7], [8], [10, 11, 12, 13, 14, 15, 16, 17]]


@pytest.mark.parametrize("threshold", [1.0, 0.3])
@pytest.mark.parametrize("family", BLOCKED)
def test_blocks_are_decoded_as_the_published_loop_decodes_them(family: str, threshold: float) -> None:
    theirs, denoiser = public_logits(family), ours(family)
    decoding = Decoding(pace=f"threshold:p={threshold}", stop_at_end=False)
    for prompt in PROMPTS:
        for length in (8, 11, 16):
            canvas = torch.tensor([prompt + [MASK] * length])
            found = unmask(denoiser, confidence, Canvas(canvas), decoding).tokens[0].tolist()
            assert found == block_loop(theirs, prompt, length, BLOCK, threshold)


@pytest.mark.parametrize("family", ["a2d", "a2d-qwen2", "llada_moe"])
def test_full_attention_is_decoded_as_by_llada(family: str) -> None:
    logits, denoiser = public_logits(family), ours(family)

    def theirs(x: Tensor, _: Any) -> Tensor:
        return logits(x, None if family == "llada_moe" else torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool))

    for prompt in PROMPTS:
        for size, steps in ((12, 12), (6, 6), (4, 3), (12, 5)):
            canvas = torch.tensor([prompt + [MASK] * 12])
            decoding = Decoding(block=size, steps=steps * 12 // size, stop_at_end=False)
            found = unmask(denoiser, confidence, Canvas(canvas), decoding).tokens[0].tolist()
            assert found == full_loop(theirs, prompt, 12, size, steps)


@pytest.mark.parametrize("small", [8, 4])
@pytest.mark.parametrize("threshold", [1.0, 0.3])
def test_fast_dllm_decodes_as_its_loop_does(small: int, threshold: float) -> None:
    theirs, denoiser = public_logits("fast_dllm"), ours("fast_dllm")
    decoding = Decoding(block=small, pace=f"threshold:p={threshold}", stop_at_end=False)
    for prompt in [*PROMPTS, [*PROMPTS[2], 5, 6]]:
        wanted = fast_dllm_loop(theirs, prompt, 2, 8, small, threshold)
        canvas = torch.tensor([prompt + [MASK] * (len(wanted) - len(prompt))])
        assert unmask(denoiser, confidence, Canvas(canvas), decoding).tokens[0].tolist() == wanted


@pytest.mark.parametrize("threshold", [1.0, 0.3])
@torch.no_grad()
def test_nemotron_decodes_as_its_loop_does(threshold: float) -> None:
    model, denoiser = public_model("nemotron"), ours("nemotron")
    for size in (BLOCK, 6):
        decoding = Decoding(block=size, pace=f"threshold:p={threshold}", stop_at_end=False)
        for prompt in PROMPTS:
            canvas = torch.tensor([prompt + [MASK] * 12])
            found = unmask(denoiser, confidence, Canvas(canvas), decoding).tokens[0].tolist()
            assert found == nemotron_loop(model, prompt, 12, size, threshold)


def test_sdar_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDAR's ``generate.py``. It draws tokens; here it takes the likeliest. Its cache is the tokens, forwarded again."""
    checkout = os.environ.get("UNMASK_SDAR_CODE")
    if not checkout:
        pytest.skip("UNMASK_SDAR_CODE names no checkout of JetAstra/SDAR")
    spec = importlib.util.spec_from_file_location("sdar_generate", Path(checkout) / "generate.py")
    assert spec and spec.loader
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)

    def greedy(logits: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        p, token = hopeless(logits).softmax(-1).max(-1)
        return token, p

    monkeypatch.setattr(published, "sample_with_temperature_topk_topp", greedy)
    theirs, denoiser = public_logits("sdar"), ours("sdar")

    class Model:
        device = torch.device("cpu")

        def eval(self) -> None:
            self.before = torch.empty(1, 0, dtype=torch.long)

        def __call__(self, x: Tensor, attention_mask: Tensor, store_kv: bool, **_: Any) -> Any:
            whole = torch.cat([self.before, x], dim=1)
            mask = seen(denoiser, whole.shape[1])[0]
            assert mask is not None and torch.equal(mask[0, :, -x.shape[1] :], attention_mask.bool())
            self.before = whole if store_kv else self.before
            return SimpleNamespace(logits=theirs(whole, mask)[:, -x.shape[1] :])

    for strategy, pace in (("low_confidence_static", "top"), ("low_confidence_dynamic", "threshold:p=0.3")):
        for prompt in PROMPTS:
            options = {
                "gen_length": 12,
                "block_length": BLOCK,
                "denoising_steps": BLOCK,
                "remasking_strategy": strategy,
            }
            given = {"input_ids": torch.tensor([prompt])}
            wanted = published.block_diffusion_generate(Model(), given, MASK, confidence_threshold=0.3, **options)
            canvas = torch.tensor([prompt + [MASK] * (wanted.shape[1] - len(prompt))])
            decoding = Decoding(pace=pace, stop_at_end=False)
            assert torch.equal(unmask(denoiser, confidence, Canvas(canvas), decoding).tokens, wanted)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", [*BLOCKED, "fast_dllm"])
def test_caches_are_exact_where_nothing_sees_what_comes_later(family: str, cache: str) -> None:
    denoiser = ours(family)
    canvas = Canvas(torch.tensor([prompt[:1] * (8 - len(prompt)) + prompt + [MASK] * 12 for prompt in PROMPTS]))
    plain = unmask(denoiser, confidence, canvas, Decoding(stop_at_end=False))
    cached = unmask(denoiser, confidence, canvas, Decoding(stop_at_end=False, cache=cache))  # pyright: ignore[reportArgumentType]
    assert torch.equal(plain.tokens, cached.tokens) and torch.equal(plain.order, cached.order)
    torch.testing.assert_close(plain.logp, cached.logp, atol=1e-5, rtol=1e-5)
    assert cached.positions < plain.positions


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_decodes_as_its_rows_do(family: str) -> None:
    denoiser, decoding = ours(family), Decoding(stop_at_end=False)
    tokens, attention = torch.full((3, 22), 5), torch.zeros(3, 22, dtype=torch.bool)
    for r, (prompt, left) in enumerate(zip(PROMPTS, (3, 6, 0), strict=True)):
        row = [*prompt, *[MASK] * 13]
        tokens[r, left : left + len(row)], attention[r, left : left + len(row)] = torch.tensor(row), True
    together = unmask(denoiser, confidence, Canvas(tokens, attention=attention), decoding)
    for r in range(3):
        alone = unmask(denoiser, confidence, Canvas(tokens[r : r + 1, attention[r]]), decoding)
        assert torch.equal(together.tokens[r, attention[r]], alone.tokens[0])
        assert torch.equal(together.rank[r, attention[r]], alone.rank[0])


def test_what_comes_later_changes_nothing() -> None:
    denoiser = ours("sdar")
    tokens = torch.randint(28, (1, 12), generator=torch.Generator().manual_seed(0))
    other = torch.cat([tokens[:, :8], tokens[:, 8:] * 0], dim=1)
    before, after = (denoiser.hidden(x) for x in (tokens, other))
    assert torch.equal(before[:, :8], after[:, :8]) and not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize(
    ("family", "decoding", "message"),
    [
        ("sdar", Decoding(block=3), "blocks of 4: block must divide that, got 3"),
        ("nemotron", Decoding(cache="dual"), "use cache='none'"),
    ],
)
def test_decodings_that_do_not_fit_the_blocks(family: str, decoding: Decoding, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unmask(ours(family), confidence, torch.tensor([[3, MASK, MASK, MASK]]), decoding)


def test_nemotron_needs_to_know_its_block() -> None:
    target = torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError, match="depends on the block that is being decoded"):
        trajectory_logp(ours("nemotron"), target, torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("sdar", {"mask_token_id": None}, None),
        ("a2d", {"mask_token_id": ...}, "names the mask"),
        ("diffcoder", {"mask_token_id": ...}, "without a mask token is an autoregressive model"),
        ("llada2", {"expert_capacity": 32}, r"LLaDA 2\.2"),
        ("llada2", {"use_qkv_bias": True}, "use_qkv_bias"),
        ("llada_moe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("nemotron", {"dlm_paradigm": "autoregressive"}, "denoises nothing"),
        ("nemotron", {"sliding_window": 128}, "sliding_window"),
        ("sdar", {"architectures": ["SDARMoeForCausalLM"]}, "SDARMoeForCausalLM is a mixture of Qwen3 experts"),
        ("sdar", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "scales the rotary positions"),
    ],
)
def test_what_is_refused(family: str, changes: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    folder = write(tmp_path, family)
    stored = {**CONFIGS[family], **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in stored.items() if v is not ...}))
    with pytest.raises(ValueError, match=message or "mask"):
        load_denoiser(folder)


LLADA2_MINI = {
    "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 5120, "vocab_size": 157_184, "num_experts": 256, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "moe_intermediate_size": 512, "mask_token_id": 156_895, "eos_token_id": 156_892,
}  # fmt: skip
SDAR_4B = {
    "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 9728, "vocab_size": 151_936, "mask_token_id": 151_669,
}  # fmt: skip


@pytest.mark.parametrize(("family", "sizes", "billions"), [("llada2", LLADA2_MINI, 16.3), ("sdar", SDAR_4B, 4.4)])
def test_the_published_sizes(family: str, sizes: dict[str, int], billions: float) -> None:
    """LLaDA2.0-mini is "16B-A1.4B"; SDAR-4B is Qwen3-4B with a head of its own."""
    from unmask.training.cost.flops import linear_flops, parameters

    config = {**CONFIGS[family], **sizes}
    shape = DENOISERS[config["architectures"][0]].configure(Published(config, {}, {}))
    assert parameters(shape) / 1e9 == pytest.approx(billions, abs=0.06)
    if family == "llada2":
        assert linear_flops(shape) / 2e9 == pytest.approx(0.81, abs=0.05)  # 1.4B with its embedding and head


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_counted(family: str) -> None:
    from unmask.training.cost.flops import parameters

    denoiser = ours(family)
    assert parameters(denoiser.config) == sum(p.numel() for p in denoiser.parameters())
    assert sum(p.numel() for p in denoiser.parameters()) == sum(x.numel() for x in weights(family).values())
    assert shapes(family).keys() == {
        DENOISERS[CONFIGS[family]["architectures"][0]].theirs(name) for name, _ in denoiser.named_parameters()
    }


@pytest.mark.parametrize("family", ["llada2", "nemotron"])
def test_our_own_folders_hold_them(family: str, tmp_path: Path) -> None:
    """Experts and YaRN are tables in ``config.json``."""
    denoiser = ours(family)
    again = load_folder(save_denoiser(denoiser, tmp_path / family))
    assert again.config == denoiser.config
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), denoiser.parameters(), strict=True))


@pytest.mark.parametrize("family", ["llada_moe", "llada2"])
def test_experts_take_states_of_any_shape(family: str) -> None:
    """A policy that copies the last blocks gives them single positions."""
    experts: Any = ours(family).blocks[-1].ffn
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(experts(x).flatten(0, 1), experts(x.flatten(0, 1)))


def test_stock_layers_are_those_of_the_files() -> None:
    for family in STOCK:
        assert len(public_model(family).state_dict()) == len(shapes(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_order_is_learned_and_planned(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.text import examples
    from support.tokenizers import words
    from unmask.cli.plan import Plan
    from unmask.schedulers.config import PolicyConfig
    from unmask.schedulers.loading import load_scheduler
    from unmask.tasks.jsonl import TextData
    from unmask.training.policy.config import PolicyTraining
    from unmask.training.policy.run import PolicyRun, run_policy_training

    folder = write(tmp_path / family, family)
    words(eos=26).save_pretrained(folder)
    data = TextData(file=examples(tmp_path / "text.jsonl", family), length=6, held_out=0.3)
    policy = PolicyConfig(kind="transformer", width=8, n_layers=1, n_heads=2, tokens=False)
    training = PolicyTraining(steps=2, prompts=2, group=2, states=8, validate=2, validate_every=2)
    records = list(
        run_policy_training(
            PolicyRun(denoiser=str(folder), policy=policy, data=data, training=training), tmp_path / "run"
        )
    )
    assert records and load_scheduler(str(tmp_path / "run"), load_denoiser(folder))
    Plan(model=str(folder), length=24).run()
    assert "forwards" in capsys.readouterr().out.lower()
