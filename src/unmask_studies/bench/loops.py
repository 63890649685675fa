"""Published decoding loops, to be timed on the same weights as ours: LLaDA's, Dream's and Fast-dLLM's with its dual cache.

Where ``UNMASK_LLADA_DECODER`` (LLaDA's ``generate.py``), ``UNMASK_DREAM_DECODER`` (Dream's ``generation_utils.py``) or
``UNMASK_FAST_DLLM_DECODER`` (``llada/generate.py`` of Fast-dLLM) name a file, or a checkout that has it, that file runs. Otherwise
plain loops written here do, which compute what theirs compute: the head over every position that goes through the model. One
canvas, temperature 0.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.kv_store import KVStore
from unmask.denoisers.transformer import Transformer

PUBLISHED = {
    "UNMASK_LLADA_DECODER": (("generate.py",), "generate"),
    "UNMASK_DREAM_DECODER": (("generation_utils.py", "dream/model/generation_utils.py"), "DreamGenerationMixin"),
    "UNMASK_FAST_DLLM_DECODER": (("llada/generate.py", "generate.py"), "generate_with_dual_cache"),
}
"""Variable → where a checkout has the file, and the name that is used of it."""
MODELS = {"model.modeling_llada": "LLaDAModelLM"}
"""Module → class of the published models that the files import for their own ``main``. The loops run on our weights, so stand-ins
do: the models themselves need packages that the loops do not."""


class AsPublished:
    """A transformer behind the interface that the published loops call."""

    device = torch.device("cpu")

    def __init__(self, denoiser: Transformer) -> None:
        self.denoiser = denoiser
        self.canvas = torch.zeros(0, dtype=torch.long)

    def __call__(
        self,
        tokens: Int[Tensor, "B A"],
        *_: Any,
        past_key_values: KVStore | None = None,
        use_cache: bool = False,
        replace_position: Tensor | None = None,
        **_rest: Any,
    ) -> SimpleNamespace:
        if past_key_values is None or replace_position is None:
            store = self.denoiser.new_store() if use_cache else None
            self.canvas = tokens.clone()
            return SimpleNamespace(
                logits=self.denoiser.logits(self.denoiser.hidden(tokens, None, store)), past_key_values=store
            )
        start = int(replace_position[0].int().argmax())
        block = slice(start, start + tokens.shape[1])
        self.canvas[:, block] = tokens
        states = self.denoiser.hidden(self.canvas, None, past_key_values, block)[:, block]
        return SimpleNamespace(logits=self.denoiser.logits(states), past_key_values=past_key_values)


def require_published() -> None:
    """Import every file that an environment variable names: one that is missing or lacks its neighbours fails now, not later."""
    for variable in PUBLISHED:
        load_published(variable)


def load_published(variable: str) -> ModuleType | None:
    """The module that an environment variable names, by its file or by the checkout that holds it; None without one."""
    where = os.environ.get(variable)
    return _import(variable, where) if where else None


@cache
def _import(variable: str, where: str) -> ModuleType:
    places, name = PUBLISHED[variable]
    found = [Path(where)] if Path(where).is_file() else [Path(where) / place for place in places]
    path = next((place for place in found if place.is_file()), None)
    if path is None:
        raise ValueError(f"{variable} must name a Python file, or a checkout with {' or '.join(places)}, got {where}")
    spec = importlib.util.spec_from_file_location(f"published_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{variable} must name a Python file, got {where}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        with _models_left_out():
            spec.loader.exec_module(module)
    except ImportError as error:
        raise ValueError(f"{variable} names {where}, which cannot be imported: {error}; name its checkout") from error
    finally:
        sys.path.remove(str(path.parent))
    if not hasattr(module, name):
        raise ValueError(f"{variable} names {path}, which has no {name}: expected the published file")
    return module


@contextmanager
def _models_left_out() -> Iterator[None]:
    """Stand-ins for the published models while a file is imported."""
    stand_ins: dict[str, ModuleType] = {}
    for name, model in MODELS.items():
        stand_ins[name.partition(".")[0]] = ModuleType(name.partition(".")[0])
        stand_ins[name] = ModuleType(name)
        setattr(stand_ins[name], model, object)
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def shares(count: int, steps: int) -> list[int]:
    return [count // steps + (i < count % steps) for i in range(steps)]


@torch.no_grad()
def llada(model: AsPublished, prompt: Int[Tensor, "1 P"], length: int, block: int, steps: int) -> Int[Tensor, "1 L"]:
    if theirs := load_published("UNMASK_LLADA_DECODER"):
        mask = model.denoiser.mask_id
        return theirs.generate(model, prompt, steps=steps, gen_length=length, block_length=block, mask_id=mask)
    x = _canvas(model, prompt, length)
    for number in range(length // block):
        stop = prompt.shape[1] + (number + 1) * block
        for count in shares(block, steps * block // length):
            hidden = x == model.denoiser.mask_id
            _reveal(x, model(x).logits, hidden & (torch.arange(x.shape[1]) < stop), count)
    return x


@torch.no_grad()
def fast_dllm(
    model: AsPublished, prompt: Int[Tensor, "1 P"], length: int, block: int, steps: int
) -> Int[Tensor, "1 L"]:
    """``generate_with_dual_cache``: the whole canvas where a block begins, then the block alone; probabilities in float64."""
    if theirs := load_published("UNMASK_FAST_DLLM_DECODER"):
        options = {"steps": steps, "gen_length": length, "block_length": block, "mask_id": model.denoiser.mask_id}
        return theirs.generate_with_dual_cache(model, prompt, **options)[0]
    x = _canvas(model, prompt, length)
    place = torch.arange(x.shape[1])
    for number in range(length // block):
        start = prompt.shape[1] + number * block
        inside = ((place >= start) & (place < start + block))[None]
        first, *later = shares(block, steps * block // length)
        output = model(x, use_cache=True)
        _reveal(x, output.logits.double(), (x == model.denoiser.mask_id) & inside, first)
        for count in later:
            part = x[:, start : start + block]
            again = model(part, past_key_values=output.past_key_values, use_cache=True, replace_position=inside)
            _reveal(part, again.logits.double(), part == model.denoiser.mask_id, count)
    return x


def dream_counts(length: int, steps: int) -> list[int]:
    """How many tokens each of Dream's steps reveals: ⌊n·(1 − s/t)⌋ of n, t from 1 to 0.001, and in the last step the rest."""
    time = torch.linspace(1, 1e-3, steps + 1)
    counts, left = [], torch.tensor(float(length))
    for i in range(steps):
        counts.append(int(left * (1 - time[i + 1] / time[i])) if i < steps - 1 else int(left))
        left = left - counts[-1]
    return counts


@torch.no_grad()
def dream(model: AsPublished, prompt: Int[Tensor, "1 P"], length: int, block: int, steps: int) -> Int[Tensor, "1 L"]:
    """``_sample`` with ``alg="maskgit_plus"``: one block; the logits of a position come from its left neighbour."""
    if theirs := load_published("UNMASK_DREAM_DECODER"):
        sampler = type("Sampler", (AsPublished, theirs.DreamGenerationMixin), {})(model.denoiser)
        config = SimpleNamespace(
            output_history=False, return_dict_in_generate=False, return_dict=False, max_length=prompt.shape[1] + length,
            mask_token_id=model.denoiser.mask_id, steps=steps, eps=1e-3, alg="maskgit_plus", alg_temp=None, temperature=0.0,
            top_p=None, top_k=None,
        )  # fmt: skip
        return sampler._sample(
            prompt, attention_mask=None, generation_config=config,
            generation_tokens_hook_func=lambda step, x, logits: x,
            generation_logits_hook_func=lambda step, x, logits: logits,
        )  # fmt: skip
    x = _canvas(model, prompt, length)
    for count in dream_counts(length, steps):
        logits = model(x).logits
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        _reveal(x, logits, x == model.denoiser.mask_id, count)
    return x


def _canvas(model: AsPublished, prompt: Int[Tensor, "1 P"], length: int) -> Int[Tensor, "1 L"]:
    return torch.nn.functional.pad(prompt, (0, length), value=model.denoiser.mask_id)


def _reveal(x: Tensor, logits: Tensor, hidden: Tensor, count: int) -> None:
    """The likeliest tokens of the ``count`` surest hidden positions, in place."""
    p, best = logits.softmax(-1).max(-1)
    chosen = p.masked_fill(~hidden, -torch.inf)[0].topk(count).indices
    x[0, chosen] = best[0, chosen]
