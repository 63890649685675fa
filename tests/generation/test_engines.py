"""Orders in other decoding loops reveal the tokens that ours reveals: diffusers, transformers, SGLang's interface, Dream's hook."""

from __future__ import annotations

import sys
import types
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.block_families import BLOCK, MASK, public_model, write
from support.families import write as write_dense
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, View, scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.generation.engines import DenoiserModel, Shown, check_servable, choose, custom_generate, dream_hook
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.policy import OrderPolicy, build_policy

PROMPTS = [[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]]


@cache
def denoiser(family: str) -> Transformer:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        loaded = load_denoiser(write(Path(folder), family))
    assert isinstance(loaded, Transformer)
    return loaded


def policy(**options: Any) -> OrderPolicy:
    """A policy whose readout is not zero: its order is its own."""
    torch.manual_seed(1)
    settings = {"kind": "mlp", "features": ("confidence", "entropy", "margin"), "tokens": False, "residual": False}
    config = PolicyConfig(**{**settings, "width": 8, "n_layers": 1, "n_heads": 2, "mask_id": MASK, **options})
    made = build_policy(config, denoiser("a2d"), "a2d") if config.kind == "general" else OrderPolicy(config)
    return made.requires_grad_(False).eval()


def saved(folder: Path, made: OrderPolicy) -> str:
    made.save_pretrained(folder)
    return str(folder)


WHOLE = {
    "kind": "transformer",
    "features": ("confidence", "entropy", "position", "progress", "left"),
    "blockwise": True,
}


@pytest.mark.parametrize("length", [8, 13])
@pytest.mark.parametrize("options", [{}, WHOLE])
def test_diffusers_reveals_what_we_reveal(options: dict[str, Any], length: int, tmp_path: Path) -> None:
    """``LLaDA2Pipeline`` on a tiny LLaDA 2 with a learned order, a batch of two, a prompt that ends inside a block."""
    pytest.importorskip("diffusers", reason="pip install unmask[diffusers]")
    from diffusers.pipelines.llada2.pipeline_llada2 import LLaDA2Pipeline

    from unmask.generation.diffusers_scheduler import UnmaskScheduler

    made, llada2 = policy(**options), denoiser("llada2")
    model = DenoiserModel(llada2)
    order = UnmaskScheduler(saved(tmp_path, made), block_length=BLOCK, num_inference_steps=BLOCK)
    if options:
        with pytest.raises(ValueError, match=r"\.watch\(pipe\.model, gen_length\)"):
            order.step(torch.zeros(1, BLOCK, 32), 0, torch.full((1, BLOCK), MASK), mask_token_id=MASK)
        order.watch(model, length)
    pipe = LLaDA2Pipeline(model, order, tokenizer=None)
    pipe.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {
        "gen_length": length,
        "num_inference_steps": BLOCK,
        "mask_token_id": MASK,
        "output_type": "seq",
    }
    prompt = torch.tensor(PROMPTS)
    call["input_ids"] = prompt
    found: Any = pipe(**call, editing_threshold=None, eos_early_stop=False)
    canvas = torch.cat([prompt, torch.full((2, length), MASK)], dim=1)
    decoding = Decoding(stop_at_end=False)
    wanted = unmask(llada2, made, Canvas(canvas), decoding).tokens[:, -length:]
    assert torch.equal(found.sequences, wanted)
    by_confidence = unmask(llada2, confidence, Canvas(canvas), decoding).tokens[:, -length:]
    assert not torch.equal(wanted, by_confidence)  # the learned order matters here
    with pytest.raises(ValueError, match="editing_threshold=None"):
        pipe(**call)


class WithoutMask(DenoiserModel):
    """Logits in which the mask is never the likeliest token: diffusers would reveal it."""

    def forward(self, *args: Any, **options: Any) -> Any:
        output = super().forward(*args, **options)
        output.logits[..., MASK] = -torch.inf
        return output


@pytest.mark.parametrize("length", [8, 13])
def test_editing_is_that_of_diffusers(length: int) -> None:
    """LLaDA 2.1's: ``BlockRefinementScheduler`` itself with a threshold and an ``editing_threshold``, against pace and revision."""
    pytest.importorskip("diffusers", reason="pip install unmask[diffusers]")
    from diffusers.pipelines.llada2.pipeline_llada2 import LLaDA2Pipeline
    from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler

    llada2, prompt = denoiser("llada2"), torch.tensor([*PROMPTS, [5, 3, 12, 9, 4]])
    pipe: Any = LLaDA2Pipeline(WithoutMask(llada2), BlockRefinementScheduler(block_length=BLOCK), tokenizer=None)
    pipe.set_progress_bar_config(disable=True)
    edited: list[int] = []

    def watch(_pipe: Any, _step: int, _of_block: int, seen: dict[str, Any]) -> dict[str, Any]:
        edited.append(int(seen["editing_transfer_index"].sum()))
        return {}

    found: Any = pipe(
        input_ids=prompt, gen_length=length, num_inference_steps=BLOCK, mask_token_id=MASK, output_type="seq",
        threshold=0.3, editing_threshold=0.7, eos_early_stop=False,
        callback_on_step_end=watch, callback_on_step_end_tensor_inputs=["editing_transfer_index"],
    )  # fmt: skip
    canvas = Canvas(torch.cat([prompt, torch.full((len(prompt), length), MASK)], dim=1))
    options: dict[str, Any] = {"pace": "threshold:p=0.3", "stop_at_end": False}
    ours = unmask(llada2, confidence, canvas, Decoding(revision="t2t:p=0.7", **options))
    assert torch.equal(found.sequences, ours.tokens[:, -length:])
    assert int(ours.revised.sum()) == sum(edited) > 0
    plain = unmask(llada2, confidence, canvas, Decoding(**options))
    assert not torch.equal(plain.tokens, ours.tokens)


class Algorithm:
    """sglang.srt.dllm.algorithm.base.DllmAlgorithm: what ``run`` without ``--dllm-fdfo`` does around ``step``."""

    def __init__(self, config: Any) -> None:
        self.block_size, self.mask_id = config.block_size, config.mask_id

    def run(self, forward: Any, batch: Any) -> list[Tensor]:
        for _ in range(self.block_size + 1):
            output = SimpleNamespace(full_logits=forward(batch))
            if all(self.step(batch, output, [None] * len(batch.input_ids))):  # pyright: ignore
                break
        return list(batch.input_ids.view(-1, self.block_size))


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """SGLang's registry of algorithms with ours in it."""
    known: dict[str, Any] = {}
    for name in (
        "sglang",
        "sglang.srt",
        "sglang.srt.dllm",
        "sglang.srt.dllm.algorithm",
        "sglang.srt.dllm.algorithm.base",
    ):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["sglang.srt.dllm.algorithm"].algo_name_to_cls = known  # pyright: ignore
    sys.modules["sglang.srt.dllm.algorithm.base"].DllmAlgorithm = Algorithm  # pyright: ignore
    from importlib.metadata import entry_points

    (point,) = (p for p in entry_points(group="sglang.srt.plugins") if p.name == "unmask")
    point.load()()
    return known


@pytest.mark.parametrize("pace", ["top", "threshold:p=0.3"])
def test_sglang_reveals_what_we_reveal(pace: str, sglang: dict[str, Any], tmp_path: Path) -> None:
    made, sdar = policy(), denoiser("sdar")
    options = {"order": saved(tmp_path, made), "pace": pace}
    config = SimpleNamespace(block_size=BLOCK, mask_id=MASK, algorithm_config=options)
    algorithm = sglang["UnmaskOrder"](config)
    canvas = torch.tensor([[*prompt[:4], *[MASK] * 8] for prompt in PROMPTS])
    done = canvas[:, :4]
    for start in (4, 8):
        tokens = canvas[:, start : start + BLOCK].flatten()
        tokens[0] = 5 if start == 4 else tokens[0]  # a prompt may end inside a block

        def forward(batch: Any, before: Tensor = done) -> Tensor:
            whole = torch.cat([before, batch.input_ids.view(2, BLOCK)], dim=1)
            return sdar.logits(sdar.hidden(whole))[:, -BLOCK:].flatten(0, 1)

        batch = SimpleNamespace(input_ids=tokens.clone(), batch_size=2)
        kept = batch.input_ids
        done = torch.cat([done, torch.stack(algorithm.run(forward, batch))], dim=1)
        assert batch.input_ids is kept  # CUDA graphs read this tensor
    canvas[0, 4] = 5
    assert torch.equal(done, unmask(sdar, made, Canvas(canvas), Decoding(pace=pace, stop_at_end=False)).tokens)


def test_sglang_says_what_it_cannot_serve(
    sglang: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = SimpleNamespace(
        block_size=BLOCK, mask_id=MASK, algorithm_config={"order": saved(tmp_path, policy(**WHOLE))}
    )
    with pytest.raises(ValueError, match="sglang cannot serve this order: it needs the whole canvas; diffusers, dream"):
        sglang["UnmaskOrder"](config)
    assert "cannot serve" in caplog.text


@pytest.mark.parametrize("kind", ["mlp", "transformer", "hidden", "general"])
def test_transformers_generates_what_we_generate(kind: str) -> None:
    ours, model = denoiser("a2d"), public_model("a2d")
    made = policy(kind=kind, vocab_size=32, hidden_width=16)
    ids = torch.tensor(PROMPTS)
    decoding = Decoding(block=4, stop_at_end=False)
    found = model.generate(
        ids, custom_generate=custom_generate, order=made, decoding=decoding, mask_id=MASK, max_new_tokens=8
    )
    canvas = torch.cat([ids, torch.full((2, 8), MASK)], dim=1)
    assert torch.equal(found, unmask(ours, made, Canvas(canvas), decoding).tokens)


def test_transformers_generates_in_blocks() -> None:
    ours, model, ids = denoiser("sdar"), public_model("sdar"), torch.tensor(PROMPTS)
    options = {"custom_generate": custom_generate, "mask_id": MASK, "attention_block": BLOCK, "max_new_tokens": 8}
    found = model.generate(ids, decoding=Decoding(stop_at_end=False), **options)
    canvas = torch.cat([ids, torch.full((2, 8), MASK)], dim=1)
    assert torch.equal(found, unmask(ours, confidence, Canvas(canvas), Decoding(stop_at_end=False)).tokens)
    with pytest.raises(ValueError, match="no mask_token_id: pass mask_id"):
        model.config.mask_token_id = None
        model.generate(ids, custom_generate=custom_generate, max_new_tokens=8)


def test_dream_reveals_in_our_order(tmp_path: Path) -> None:
    """Dream's ``maskgit_plus``: of the positions that are hidden, those whose likeliest token is likeliest, n of them."""
    dream = load_denoiser(write_dense(tmp_path, "dream"))
    made = policy(kind="transformer", features=("confidence", "position", "left"))
    hook = dream_hook(made, MASK)
    x = torch.tensor([[3, 4, 5, *[MASK] * 9]])
    for step in range(9):
        logits = hook(step, x, dream.logits(dream.hidden(x)).index_fill(-1, torch.tensor([MASK]), -1e9))
        best, token = logits.softmax(-1).max(-1)
        at = best.masked_fill(x != MASK, -torch.inf).argmax(1)
        x = x.index_put((torch.arange(1), at), token[0, at])
    canvas = torch.tensor([[3, 4, 5, *[MASK] * 9]])
    assert torch.equal(x, unmask(dream, made, Canvas(canvas), Decoding(stop_at_end=False)).tokens)


@pytest.mark.parametrize(
    ("options", "served"),
    [
        ({}, {"sglang", "diffusers", "dream", "transformers"}),
        ({"features": ("confidence", "position")}, {"diffusers", "dream", "transformers"}),
        (WHOLE, {"diffusers", "dream", "transformers"}),
        ({"kind": "transformer"}, {"dream", "transformers"}),
        ({"kind": "hidden", "hidden_width": 16}, {"transformers"}),
        ({"kind": "general"}, {"transformers"}),
        ({"kind": "general", "states": False}, {"dream", "transformers"}),
        ({"kind": "general", "states": False, "blockwise": True}, {"diffusers", "dream", "transformers"}),
        ({"kind": "grid", "size": 4, "width": 4}, set()),
    ],
)
def test_which_policies_are_served_where(options: dict[str, Any], served: set[str]) -> None:
    made = policy(**options)
    for engine in ("sglang", "diffusers", "dream", "transformers"):
        if engine in served:
            assert check_servable(made, engine) is made
        else:
            with pytest.raises(ValueError, match=f"{engine} cannot serve this order"):
                check_servable(made, engine)


def test_oracles_and_unknown_engines_are_refused() -> None:
    @scheduler(needs_truth=True)
    def oracle(view: View) -> Tensor:
        return view.confidence

    with pytest.raises(ValueError, match="needs the truth"):
        check_servable(oracle, "diffusers")
    with pytest.raises(ValueError, match=r"no engine 'sglan': .*did you mean 'sglang'"):
        check_servable(confidence, "sglan")


def test_rows_without_masks_reveal_nothing() -> None:
    from unmask.decoding.paces import top

    tokens, logits = torch.tensor([[3, 4], [MASK, 5]]), torch.randn(2, 2, 32)
    assert choose(confidence, top, Shown().view(MASK, tokens, logits)).tolist() == [[False, False], [True, False]]
    assert not choose(confidence, top, Shown().view(MASK, tokens[:1], logits[:1])).any()
