"""``UnmaskScheduler``: an order in diffusers' ``LLaDA2Pipeline``, in the place of ``BlockRefinementScheduler``.

``B`` rows, ``S`` positions of a block, ``V`` vocabulary. The pipeline shows its scheduler a block and its logits. An order that
needs to know where the block stands, or what is before it, also needs ``watch``.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler, BlockRefinementSchedulerOutput
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.paces import load_pace
from unmask.generation.engines import Shown, choose, load_order, missing_for


class UnmaskScheduler(BlockRefinementScheduler):
    """``LLaDA2Pipeline(model, UnmaskScheduler("runs/policy"), tokenizer)``.

    ``order``: a scheduler or a policy's folder, ``pace``: how many per step. Tokens are drawn as diffusers draws them. The
    thresholds of the pipeline's call have no say; editing is refused, since an order reveals a position once.
    """

    @register_to_config
    def __init__(
        self, order: str = "confidence", pace: str = "top", block_length: int = 32, num_inference_steps: int = 32
    ) -> None:
        super().__init__(block_length=block_length, num_inference_steps=num_inference_steps)
        self.order, self.rule = load_order(order, "diffusers"), load_pace(pace)
        self.needs_canvas = bool(missing_for(self.order, "sglang"))  # which shows a block alone
        self.length: int | None = None
        self.start: int | None = None
        self.window: Tensor | None = None
        self.real: Tensor | None = None

    def watch(self, model: nn.Module, length: int) -> UnmaskScheduler:
        """See the tokens that ``model`` gets: the prompt, and the blocks before. ``length``: the pipeline's ``gen_length``."""
        model.register_forward_pre_hook(self._see, with_kwargs=True)
        self.length = length
        return self

    def set_timesteps(self, *args: Any, **options: Any) -> None:
        super().set_timesteps(*args, **options)
        self.start, self.memory, self.taken = None, {}, 0  # a decoding begins

    def step(
        self, model_output: Float[Tensor, "B S V"], timestep: int | Tensor, sample: Int[Tensor, "B S"], **given: Any
    ) -> Any:
        mask_id = given.get("mask_token_id")
        if mask_id is None or (given.get("editing_threshold") or 0.0) > 0.0:
            raise ValueError(
                "UnmaskScheduler reveals masks, each once: call the pipeline with a mask_token_id and editing_threshold=None"
            )
        never = model_output.index_fill(-1, torch.tensor([mask_id], device=sample.device), -torch.inf)
        method, temperature = given.get("sampling_method", "auto"), given.get("temperature", 0.0)
        tokens, p = self._sample_from_logits(
            never,
            temperature=temperature,
            top_k=given.get("top_k"),
            top_p=given.get("top_p"),
            generator=given.get("generator"),
            use_multinomial=method == "multinomial" or (method == "auto" and temperature != 0.0),
        )
        revealed = self._choose(model_output, int(timestep), sample, mask_id)
        parts = {
            "prev_sample": torch.where(revealed, tokens, sample),
            "transfer_index": revealed,
            "editing_transfer_index": torch.zeros_like(revealed),
            "sampled_tokens": tokens,
            "sampled_probs": p,
            "pred_logits": model_output,
        }
        return BlockRefinementSchedulerOutput(**parts) if given.get("return_dict", True) else tuple(parts.values())

    def _choose(self, logits: Tensor, step: int, block: Int[Tensor, "B S"], mask_id: int) -> Tensor:
        schedule = self._transfer_schedule
        count = 1 if schedule is None else int(schedule[min(step, len(schedule) - 1)])
        quota = torch.full((len(block),), max(1, count), device=block.device)
        size, length = block.shape[1], self.length
        if self.window is None or length is None:
            if self.needs_canvas:
                raise ValueError(
                    "this order needs to know where a block stands: UnmaskScheduler(…).watch(pipe.model, gen_length)"
                )
            return choose(self.order, self.rule, Shown(step=step).view(mask_id, block, logits), quota)
        window = self.window
        if self.start is None:
            self.start = int((window == mask_id).int().argmax(1).min())
        end, first = self.start + length, window.shape[1] - size
        canvas = F.pad(window, (0, max(0, end - window.shape[1])), value=mask_id)[:, :end]
        real = (
            None if self.real is None else F.pad(self.real, (0, max(0, end - window.shape[1])), value=1)[:, :end].bool()
        )
        inside = min(size, end - first)
        shown = Shown(first, self.start, size, length, real, self.taken, self.memory)
        chosen = choose(self.order, self.rule, shown.view(mask_id, canvas, logits[:, :inside]), quota)
        self.taken += 1
        # The pipeline fills the tail of its last block too, and cuts it off: it goes at once.
        return torch.cat([chosen[:, first : first + inside], block[:, inside:] == mask_id], dim=1)

    def _see(self, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.window = args[0] if args else options["input_ids"]
        self.real = options.get("attention_mask")
