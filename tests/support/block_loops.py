"""The decoding loops of families with blocks, re-implemented: a prompt at a time, the whole head at every step, greedy tokens.

``theirs(tokens, mask)`` are the logits of the public layers. Trained models never prefer their mask; random ones do: its logit is
made hopeless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.block_families import MASK

Logits = Callable[[Tensor, Tensor | None], Tensor]


def hopeless(logits: Tensor) -> Tensor:
    return logits.index_fill(-1, torch.tensor([MASK]), -1e9)


def block_loop(theirs: Logits, prompt: list[int], length: int, size: int, threshold: float) -> list[int]:
    """SDAR's ``low_confidence_dynamic``, a position a step: blocks count from the prompt's first token."""
    x = torch.tensor([prompt + [MASK] * length])
    for stop in range(len(prompt) // size * size + size, x.shape[1] + size, size):
        block = slice(stop - size, min(stop, x.shape[1]))
        while (x[:, block] == MASK).any():
            place = torch.arange(block.stop)
            mask = ((place // size)[None, :] <= (place // size)[:, None])[None, None]
            p = hopeless(theirs(x[:, : block.stop], mask))[:, block].softmax(-1)
            best, token = p.max(-1)
            best = best.masked_fill(x[:, block] != MASK, -torch.inf)
            chosen = best > threshold if (best > threshold).any() else best == best.max()
            x[:, block] = torch.where(chosen, token, x[:, block])
    return x[0].tolist()


def full_loop(theirs: Logits, prompt: list[int], length: int, size: int, steps: int) -> list[int]:
    """LLaDA's, which dllm's sampler for Tiny-A2D repeats: blocks count from the answer on, ⌊n/T⌋ positions a step or one more."""
    x = torch.tensor([prompt + [MASK] * length])
    for start in range(len(prompt), x.shape[1], size):
        for step in range(steps):
            p = hopeless(theirs(x, None)).softmax(-1)
            best, token = p.max(-1)
            inside = (x == MASK) & (torch.arange(x.shape[1]) >= start) & (torch.arange(x.shape[1]) < start + size)
            chosen = best.masked_fill(~inside, -torch.inf)[0].topk(size // steps + (step < size % steps)).indices
            x[0, chosen] = token[0, chosen]
    return x[0].tolist()


def fast_dllm_loop(
    theirs: Logits, prompt: list[int], blocks: int, size: int, small: int, threshold: float
) -> list[int]:
    """Fast-dLLM v2: a block's first token is what its left neighbour predicts, then small blocks by confidence."""
    place = lambda x: torch.arange(x.shape[1])  # noqa: E731
    mask = lambda x: ((place(x) // size)[None, :] <= (place(x) // size)[:, None])[None, None]  # noqa: E731
    x = torch.tensor([prompt])
    for _ in range(blocks):
        if x.shape[1] % size == 0:
            x = torch.cat([x, hopeless(theirs(x, mask(x)))[:, -1:].argmax(-1)], dim=1)
        x = torch.cat([x, torch.full((1, -x.shape[1] % size), MASK)], dim=1)
        for start in range(x.shape[1] - size, x.shape[1], small):
            part = slice(start, start + small)
            while (x[:, part] == MASK).any():
                logits = hopeless(theirs(x, mask(x)))
                p = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[:, part].softmax(-1)
                best, token = p.max(-1)
                best = best.masked_fill(x[:, part] != MASK, -torch.inf)
                chosen = (best > threshold) | (best == best.max())
                x[:, part] = torch.where(chosen, token, x[:, part])
    return x[0].tolist()


def nemotron_loop(model: Any, prompt: list[int], length: int, size: int, threshold: float) -> list[int]:
    """Nemotron's ``generate`` with its cache: a causal prefill, a seed, a bidirectional block, a causal pass over it."""
    from transformers import DynamicCache

    def forward(tokens: Tensor, cache: Any, causal: bool) -> Tensor:
        past = cache.get_seq_length()
        at = torch.arange(past, past + tokens.shape[1])
        mask = torch.arange(past + tokens.shape[1])[None, :] <= (at[:, None] if causal else at.max())
        mask = mask.expand(tokens.shape[1], -1)[None, None]
        output = model(tokens, attention_mask=mask, position_ids=at[None], past_key_values=cache, use_cache=True)
        if not causal:
            cache.crop(-tokens.shape[1])
        return hopeless(output.logits)

    x, cache = torch.tensor([prompt]), DynamicCache()
    logits = forward(x, cache, causal=True)
    for _ in range(length // size):
        block = torch.cat([logits[:, -1:].argmax(-1), torch.full((1, size - 1), MASK)], dim=1)
        while (block == MASK).any():
            best, token = forward(block, cache, causal=False).softmax(-1).max(-1)
            best = best.masked_fill(block != MASK, -torch.inf)
            chosen = (best >= threshold) | (best == best.max())
            block = torch.where(chosen, token, block)
        x = torch.cat([x, block], dim=1)
        logits = forward(block, cache, causal=True)
    return x[0].tolist()
