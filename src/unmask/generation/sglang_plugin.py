"""``UnmaskOrder``: an order as a decoding algorithm of SGLang, registered through its entry points ``sglang.srt.plugins``.

``B`` rows, ``S`` positions of a block, ``V`` vocabulary. SGLang shows an algorithm a block's tokens and logits, nothing else.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from unmask.decoding.paces import load_pace
from unmask.generation.engines import Shown, choose, load_order

logger = logging.getLogger(__name__)


def register() -> None:
    """Make ``--dllm-algorithm UnmaskOrder`` known. SGLang calls it before it reads its arguments, in each of its processes."""
    from sglang.srt.dllm.algorithm import algo_name_to_cls  # pyright: ignore[reportMissingImports]
    from sglang.srt.dllm.algorithm.base import DllmAlgorithm  # pyright: ignore[reportMissingImports]

    class UnmaskOrder(DllmAlgorithm):
        """``order`` and ``pace`` come from the YAML of ``--dllm-algorithm-config``."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            options = config.algorithm_config or {}
            try:
                self.order = load_order(options.get("order", "confidence"), "sglang")
                self.pace = load_pace(options.get("pace", "top"))
            except ValueError as error:
                logger.error("%s", error)  # SGLang reports an unknown algorithm whatever goes wrong here
                raise

        @torch.no_grad()
        def step(self, forward_batch: Any, logits_output: Any, states: list[Any]) -> list[bool]:
            """Reveal some positions in place. True for rows that had no mask: the forward before has stored their keys."""
            tokens = forward_batch.input_ids.view(-1, self.block_size)
            logits = getattr(logits_output, "full_logits", logits_output).view(*tokens.shape, -1)
            done = (tokens != self.mask_id).all(1).tolist()
            view = Shown().view(self.mask_id, tokens, logits)
            revealed = choose(self.order, self.pace, view)
            forward_batch.input_ids.copy_(torch.where(revealed, view.best, tokens).flatten())
            return done

    algo_name_to_cls["UnmaskOrder"] = UnmaskOrder
