"""Our decoder reveals what the published ones reveal, on the same weights: LLaDA's ``generate.py`` and Dream's sampler.

The loops here are plain re-implementations of the published algorithms, a prompt at a time, with the whole head at every step.
``test_llada_itself`` and ``test_dream_itself`` run the published files where an environment variable names them.

Both loops may reveal their mask token, which trained models never prefer and random weights do: its logit is made hopeless here. At
temperature 0 nothing is drawn.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.families import write
from support.published import load_loop
from support.tokenizers import words
from unmask.decoding import paces as pace
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, View
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.generation.generate import Generation, generate
from unmask.generation.text_canvas import prompt_canvas
from unmask.schedulers.heuristics import confidence

PROMPTS = ["w3 w4 w5 w6 w7", "w8", "w10 w11 w12 w13 w14 w15 w16"]
LBT = [(12, 12, 12), (16, 16, 8), (16, 16, 5), (12, 6, 12), (16, 4, 8), (12, 4, 9), (8, 1, 8), (12, 6, 2)]
END, TURN_END = 27, 3
"""End tokens of the instruction-tuned LLaDA: of a text and, here a token that the tiny one often prefers, of a turn."""


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    folder = write(tmp_path_factory.mktemp("llada"), "llada", max_sequence_length=64)
    return load_denoiser(folder)  # pyright: ignore[reportReturnType]


@pytest.fixture(scope="module")
def dream(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    folder = write(tmp_path_factory.mktemp("dream"), "dream", max_position_embeddings=64)
    return load_denoiser(folder)  # pyright: ignore[reportReturnType]


def unshifted(dream: Transformer) -> Transformer:
    """Dream as its own decoder sees it: the state of a position predicts its right neighbour."""
    raw = Transformer(replace(dream.config, logit_shift=False))
    raw.load_state_dict(dream.state_dict())
    return raw.eval()


@torch.no_grad()
def all_logits(denoiser: Transformer, tokens: Tensor, attention: Tensor | None = None) -> Tensor:
    logits = denoiser.logits(denoiser.hidden(tokens, attention))
    return logits.index_fill(-1, torch.tensor(denoiser.forbidden_ids), -1e9)


def llada_loop(
    denoiser: Transformer, prompt: list[int], length: int, block: int, steps: int, scale: float, ends: str = "allow"
) -> list[int]:
    """ML-GSAI/LLaDA ``generate.py``: blocks from the left; in each, the likeliest of the best tokens, ⌊n/T⌋ or one more."""
    x = torch.tensor([prompt + [denoiser.mask_id] * length])
    given = x != denoiser.mask_id
    blocks = length // block
    steps = steps // blocks
    for number in range(blocks):
        stop = len(prompt) + (number + 1) * block
        counts = [block // steps + (i < block % steps) for i in range(steps)]
        for count in counts:
            hidden = x == denoiser.mask_id
            logits = all_logits(denoiser, x)
            if scale > 0:
                without = all_logits(denoiser, x.masked_fill(given, denoiser.mask_id))
                logits = without + (scale + 1) * (logits - without)
            if ends == "logits_eos_inf":
                logits[..., END] = -torch.inf
            best = logits.argmax(-1)
            if ends == "confidence_eos_eot_inf":
                logits[..., [END, TURN_END]] = -torch.inf
            p = logits.softmax(-1).gather(-1, best[..., None])[..., 0]
            p = p.masked_fill(~hidden, -torch.inf)
            p[:, stop:] = -torch.inf
            chosen = p[0].sort(descending=True, stable=True).indices[:count]
            x[0, chosen] = best[0, chosen]
    return x[0, len(prompt) :].tolist()


def dream_counts(length: int, steps: int, published: bool) -> list[int]:
    """How many tokens each step reveals.

    Published: of n hidden tokens ⌊n·(1 − s/t)⌋ go, with t from 1 to ε = 0.001, and in the last step all that are left. Because
    t ends at ε and not at 0, n·(1 − s/t) stays just below the whole number that was meant, and rounding down takes one away: with a
    step per token the first step reveals nothing (a forward in vain) and the last one two (the second without seeing the first).
    """
    if not published:
        return [length // steps + (i < length % steps) for i in range(steps)]
    time = torch.linspace(1, 1e-3, steps + 1)
    counts, left = [], torch.tensor(float(length))
    for i in range(steps):
        counts.append(int(left * (1 - time[i + 1] / time[i])) if i < steps - 1 else int(left))
        left = left - counts[-1]
    return counts


def dream_loop(raw: Transformer, prompt: list[int], length: int, steps: int, rule: str, published: bool) -> list[int]:
    """Dream's ``generation_utils.py``, ``_sample`` with ``alg`` = ``rule`` and its shift; one block, no temperature."""
    x = torch.tensor([prompt + [raw.mask_id] * length])
    for count in dream_counts(length, steps, published):
        hidden = x == raw.mask_id
        logits = all_logits(raw, x)
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        p = logits.softmax(-1)
        best = p.argmax(-1)
        ordered = p.sort(-1, descending=True).values
        score = {
            "maskgit_plus": ordered[..., 0],
            "topk_margin": ordered[..., 0] - ordered[..., 1],
            "entropy": (p * (p + 1e-10).log()).sum(-1),
        }[rule].masked_fill(~hidden, -torch.inf)
        chosen = score[0].topk(count).indices
        x[0, chosen] = best[0, chosen]
    return x[0, len(prompt) :].tolist()


RULES = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


def ids(prompt: str) -> list[int]:
    return [int(word.removeprefix("w")) for word in prompt.split()]


def revealed(done: Generation) -> list[list[int]]:
    return [row[inside].tolist() for row, inside in zip(done.trajectory.tokens, done.canvas.region, strict=True)]


@pytest.mark.parametrize(
    ("length", "block", "steps", "scale"), [*((*lbt, 0.0) for lbt in LBT), (12, 12, 6, 1.5), (12, 4, 9, 0.5)]
)
def test_llada(llada: Transformer, length: int, block: int, steps: int, scale: float) -> None:
    """All prompts in one padded batch, against the published loop on each alone."""
    decoding = Decoding(block, steps, guidance=scale)
    ours = generate(llada, words(31), PROMPTS, decoding=replace(decoding, stop_at_end=False), length=length)
    theirs = [llada_loop(llada, ids(prompt), length, block, steps, scale) for prompt in PROMPTS]
    assert revealed(ours) == theirs
    assert len({tuple(row) for row in theirs}) == len(PROMPTS)  # the prompts matter
    # Stopping at the end token changes nothing before it.
    stopped = generate(llada, words(31, eos=27), PROMPTS, decoding=decoding, length=length)
    for row, whole in zip(revealed(stopped), theirs, strict=True):
        end = whole.index(27) if 27 in whole else len(whole)
        assert row[:end] == whole[:end]


@pytest.fixture(scope="module", params=range(3))
def instruct(llada: Transformer, request: pytest.FixtureRequest) -> Transformer:
    """LLaDA with two end tokens that it likes, the more the higher the parameter."""
    made = Transformer(replace(llada.config, end_ids=(END, TURN_END)))
    made.load_state_dict(llada.state_dict())
    states = made.hidden(torch.randint(31, (8, 20), generator=torch.Generator().manual_seed(1))).mean((0, 1))
    for token in (END, TURN_END):
        made.head.weight.data[token] += request.param * states / states.norm()
    return made.requires_grad_(False).eval()


END_SETTINGS = [(*lbt, scale) for lbt in ((12, 12, 12), (16, 16, 5), (16, 4, 8), (12, 6, 2)) for scale in (0.0, 1.0)]


@pytest.mark.parametrize("ends", ["logits_eos_inf", "confidence_eos_eot_inf"])
@pytest.mark.parametrize(("length", "block", "steps", "scale"), END_SETTINGS)
def test_lladas_end_settings(
    instruct: Transformer, length: int, block: int, steps: int, scale: float, ends: Any
) -> None:
    decoding = Decoding(block, steps, guidance=scale, ends=ends, stop_at_end=False)
    ours = generate(instruct, words(31), PROMPTS, decoding=decoding, length=length)
    theirs = [llada_loop(instruct, ids(prompt), length, block, steps, scale, ends) for prompt in PROMPTS]
    assert revealed(ours) == theirs
    plain = generate(instruct, words(31), PROMPTS, decoding=replace(decoding, ends="allow"), length=length)
    assert any(END in row or TURN_END in row for row in revealed(plain))  # the setting has something to change


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("length", "steps"), [(10, 10), (16, 8), (12, 5), (9, 2)])
def test_dream(dream: Transformer, length: int, steps: int, rule: str) -> None:
    ours = generate(dream, words(), PROMPTS, RULES[rule], Decoding(steps=steps, stop_at_end=False), length=length)
    raw = unshifted(dream)
    assert revealed(ours) == [dream_loop(raw, ids(prompt), length, steps, rule, published=False) for prompt in PROMPTS]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("length", "steps"), [(10, 10), (16, 8), (12, 5)])
def test_dream_with_its_own_counts(dream: Transformer, length: int, steps: int, rule: str) -> None:
    """As published, the first step too short and the last too long: a pace reproduces it, but for the steps that reveal nothing."""
    counts = [count for count in dream_counts(length, steps, published=True) if count]

    def published(view: View, keys: Tensor, quota: Tensor) -> Tensor:
        return pace.top(view, keys, torch.full_like(quota, counts[view.step]))

    decoding = Decoding(pace=published, stop_at_end=False)
    ours = generate(dream, words(), PROMPTS, RULES[rule], decoding, length=length)
    raw = unshifted(dream)
    assert revealed(ours) == [dream_loop(raw, ids(prompt), length, steps, rule, published=True) for prompt in PROMPTS]


def test_dreams_published_counts_per_step() -> None:
    assert dream_counts(16, 16, published=True) == [0, *[1] * 14, 2]
    assert dream_counts(128, 128, published=True)[0] == 0
    assert dream_counts(128, 128, published=True)[-1] == 2
    assert dream_counts(128, 128, published=False) == [1] * 128
    for length, steps in [(128, 64), (256, 100), (17, 5)]:
        assert sum(dream_counts(length, steps, published=True)) == length


def test_dream_needs_its_shift(dream: Transformer) -> None:
    """Without it the same weights give another text: the test above could have failed."""
    shifted = generate(dream, words(), PROMPTS, length=12)
    plain = generate(unshifted(dream), words(), PROMPTS, length=12)
    assert all(a != b for a, b in zip(revealed(shifted), revealed(plain), strict=True))


class AsPublished:
    """A denoiser behind the interface that the published loops call."""

    device = torch.device("cpu")

    def __init__(self, denoiser: Transformer) -> None:
        self.denoiser = denoiser

    def __call__(self, tokens: Tensor, attention_mask: Any = None, *_: Any) -> SimpleNamespace:
        real = attention_mask.bool() if isinstance(attention_mask, Tensor) else None
        if real is not None and real.dim() == 4:
            real = real[:, 0].any(1)  # Dream's mask says of each pair whether both are real
        return SimpleNamespace(logits=all_logits(self.denoiser, tokens, real))


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2}, {"n_layers": 5}, {"rms_norm_eps": 1e-3}], ids=str)
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5])
@pytest.mark.parametrize(
    ("length", "block", "steps"),
    [(16, 16, 16), (16, 16, 8), (16, 4, 8), (12, 6, 2), (16, 16, 5), (24, 8, 9), (8, 1, 8)],
)
def test_llada_itself(
    length: int, block: int, steps: int, scale: float, changes: dict[str, Any], tmp_path: Path
) -> None:
    """With UNMASK_LLADA_DECODER = LLaDA's generate.py; a padded batch, as that file's own example."""
    theirs = load_loop("UNMASK_LLADA_DECODER")
    llada: Any = load_denoiser(write(tmp_path, "llada", max_sequence_length=64, **changes))
    canvas = prompt_canvas(llada, words(31), PROMPTS, length)
    tokens = theirs.generate(
        AsPublished(llada), canvas.tokens[:, :-length], canvas.attention[:, :-length].long(),
        steps=steps, gen_length=length, block_length=block, cfg_scale=scale, mask_id=llada.mask_id,
    )  # fmt: skip
    decoding = Decoding(block, steps, guidance=scale, stop_at_end=False)
    ours = generate(llada, words(31), PROMPTS, decoding=decoding, length=length)
    assert revealed(ours) == tokens[:, -length:].tolist()


@pytest.mark.parametrize("ends", ["logits_eos_inf", "confidence_eos_eot_inf"])
@pytest.mark.parametrize(("length", "block", "steps", "scale"), END_SETTINGS)
def test_lladas_end_settings_themselves(
    instruct: Transformer, length: int, block: int, steps: int, scale: float, ends: Any
) -> None:
    """With UNMASK_LLADA_DECODER = LLaDA's generate.py, in which the ids of the two end tokens are numbers: here the tiny model's.

    All positions that want an end token have confidence 0: ``topk`` breaks such ties in its own way on each device, here by the
    lowest index.
    """
    changes = {"126081": str(END), "126348": str(TURN_END), "torch.topk(": "stable_topk("}
    theirs = load_loop("UNMASK_LLADA_DECODER", changes)
    theirs.__dict__["stable_topk"] = lambda values, k: tuple(x[:k] for x in values.sort(descending=True, stable=True))
    canvas = prompt_canvas(instruct, words(31), PROMPTS, length)
    tokens = theirs.generate(
        AsPublished(instruct), canvas.tokens[:, :-length], canvas.attention[:, :-length].long(),
        steps=steps, gen_length=length, block_length=block, cfg_scale=scale, mask_id=instruct.mask_id, **{ends: True},
    )  # fmt: skip
    decoding = Decoding(block, steps, guidance=scale, ends=ends, stop_at_end=False)
    ours = generate(instruct, words(31), PROMPTS, decoding=decoding, length=length)
    assert revealed(ours) == tokens[:, -length:].tolist()


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"num_hidden_layers": 5}], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("length", "steps"), [(16, 16), (16, 8), (12, 5), (24, 9), (9, 2)])
def test_dream_itself(length: int, steps: int, rule: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """With UNMASK_DREAM_DECODER = Dream's generation_utils.py; a padded batch, its counts as they are published."""
    theirs = load_loop("UNMASK_DREAM_DECODER")
    dream: Any = load_denoiser(write(tmp_path, "dream", max_position_embeddings=64, **changes))
    canvas = prompt_canvas(dream, words(), PROMPTS, length)

    class Published(AsPublished, theirs.DreamGenerationMixin):
        pass

    config = SimpleNamespace(
        output_history=False, return_dict_in_generate=False, return_dict=False, max_length=canvas.tokens.shape[1],
        mask_token_id=dream.mask_id, steps=steps, eps=1e-3, alg=rule, alg_temp=None, temperature=0.0, top_p=None, top_k=None,
    )  # fmt: skip
    tokens = Published(unshifted(dream))._sample(
        canvas.tokens[:, :-length], attention_mask=canvas.attention[:, :-length].long(), generation_config=config,
        generation_tokens_hook_func=lambda step, x, logits: x, generation_logits_hook_func=lambda step, x, logits: logits,
    )  # fmt: skip
    raw = unshifted(dream)
    assert tokens[:, -length:].tolist() == [
        dream_loop(raw, ids(prompt), length, steps, rule, published=True) for prompt in PROMPTS
    ]


def test_the_loop_without_text_agrees(llada: Transformer) -> None:
    """``generate`` adds canvases and words, nothing else: the bare loop reveals the same."""
    canvas = prompt_canvas(llada, words(31), PROMPTS, 12)
    decoding = Decoding(block=4, steps=6, stop_at_end=False)
    trajectory = unmask(
        llada, confidence, Canvas(canvas.tokens, region=canvas.region, attention=canvas.attention), decoding
    )
    done = generate(llada, words(31), PROMPTS, decoding=decoding, length=12)
    assert torch.equal(trajectory.tokens, done.trajectory.tokens)
    assert torch.equal(trajectory.order, done.trajectory.order)
