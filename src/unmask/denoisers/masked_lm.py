"""Any ``AutoModelForMaskedLM`` of transformers as a denoiser: BERT, RoBERTa, ModernBERT, ESM and their like.

Shapes: ``B`` canvases, ``L`` positions, ``D`` width, ``V`` vocabulary, ``N`` positions that get logits.

transformers computes logits for a whole canvas. Here the trunk (``base_model``) and the head are called apart, so only eligible
positions pay for the vocabulary. Padding is hidden from attention, from the positions and from anything that counts tokens (ESM
rescales embeddings by the share of masks), so a row is the same alone and in a batch. Both facts are tried on a short canvas when
a model is wrapped: a head that is not found is an error, a model that padding changes refuses padding.

transformers is imported only here, always with ``trust_remote_code=False``.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.denoisers.attention import is_padded
from unmask.denoisers.checkpoint import Checkpoint, Shape, SkipInitialisation, read_json, require_plausible_size
from unmask.runs.jsonable import flatten

HEADS = (
    ("cls",),
    ("lm_head",),
    ("head", "decoder"),
    ("predictions",),
    ("generator_predictions", "generator_lm_head"),
    ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
)
"""The children of ``…ForMaskedLM`` classes that follow the trunk, in the order in which they are called."""
REPEATED = re.compile(r"layer|block|group|expert|depth")
"""The keys of configurations that say how often a part of the model is repeated."""
PROBE = 6
SAME_TENSORS = {"dplm": "esm"}
"""``model_type`` of remote code → that of the modules of transformers that it subclasses: DPLM is an ESM-2 trained as diffusion."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "special_tokens_map.json")


@dataclass(frozen=True)
class MaskedLMConfig:
    """What order policies need of a denoiser's configuration."""

    vocab_size: int
    width: int
    mask_id: int
    max_length: int
    pad_id: int | None = None
    end_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...] = ()
    grid: int | None = None


class MaskedLM(nn.Module):
    """A ``Denoiser`` around a masked language model of transformers.

    ``tokenizer`` gives the mask and the special tokens, none of which is ever revealed; without one the model's configuration does,
    and ``mask_id`` where that has none. ``name`` is what it was loaded by.
    """

    name: str = ""

    def __init__(self, model: Any, tokenizer: Any = None, mask_id: int | None = None) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        embeddings = getattr(model.base_model, "embeddings", None)
        table = getattr(embeddings, "position_embeddings", None)
        # RoBERTa and its like count positions from the padding id on.
        self.offset = 0 if getattr(table, "padding_idx", None) is None else int(table.padding_idx) + 1  # pyright: ignore
        self._takes = frozenset(inspect.signature(model.base_model.forward).parameters)
        self.config = _config(model, tokenizer, mask_id, self.offset)
        self.forwarded = 0
        self.pads = True
        self._head: tuple[str, ...] = ()
        self.eval()
        self._probe()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    @property
    def head(self) -> nn.Linear:
        """The last layer of the head, which has a row for each token."""
        return self.model.get_output_embeddings()

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def pad_id(self) -> int | None:
        return self.config.pad_id

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self.config.end_ids

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return self.config.forbidden_ids

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """The trunk's last states. What stands in padding (``attention`` False) changes nothing."""
        if not torch.compiler.is_compiling():  # a compiled graph would be made anew for every count
            self.forwarded += len(tokens)
        if tokens.shape[1] > self.config.max_length:
            raise ValueError(f"a canvas of {tokens.shape[1]} positions exceeds the denoiser's {self.config.max_length}")
        padded = attention is not None and is_padded(attention)
        if padded and not self.pads:
            raise ValueError(
                f"the rows of {type(self.model).__name__} change when they are padded: decode canvases of one length at a time"
            )
        return self._trunk(tokens, attention if padded else None)

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N V"]:
        x = hidden
        for part in self._head:
            x = getattr(self.model, part)(x)
        return x.to(hidden.device)

    def last_blocks(self, count: int) -> MaskedLMBlocks:
        """A copy of the last ``count`` layers, or of all. Where layers share their weights (ALBERT), they do in the copy."""
        stored = self.model.config
        count = min(count, stored.num_hidden_layers)
        copied = MaskedLMBlocks({**copy_shape(stored), "num_hidden_layers": count})
        skipped, theirs = stored.num_hidden_layers - count, self.model.base_model.state_dict()
        stacks = [f"{name}." for name, part in self.model.base_model.named_modules() if _is_stack(part, stored)]

        def source(name: str) -> str:
            for stack in stacks:
                if name.startswith(stack):
                    number, _, rest = name.removeprefix(stack).partition(".")
                    return f"{stack}{int(number) + skipped}.{rest}"
            return name

        copied.trunk.load_state_dict({name: theirs[source(name)] for name in copied.trunk.state_dict()})
        return copied

    def _trunk(self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B L D"]:
        real = torch.ones_like(tokens, dtype=torch.bool) if attention is None else attention
        places = (real.long().cumsum(1) - 1).clamp(min=0)
        filler = self.config.pad_id if self.config.pad_id is not None else self.config.mask_id
        given = {
            "attention_mask": real.long(),
            "position_ids": places + self.offset,
            "token_type_ids": torch.zeros_like(tokens),
        }
        output = self.model.base_model(
            input_ids=tokens.masked_fill(~real, filler), **{k: v for k, v in given.items() if k in self._takes}
        )
        return output[0].to(tokens.device)

    @torch.no_grad()
    def _probe(self) -> None:
        """Find the head that repeats the whole model's logits, and whether padding leaves a row alone."""
        never = set(self.config.forbidden_ids)
        allowed = [i for i in range(self.config.vocab_size) if i not in never]
        canvas = [self.mask_id if n % 3 == 1 else allowed[n % len(allowed)] for n in range(PROBE)]
        tokens = torch.tensor([canvas], device=self.device)
        wanted = self.model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float()
        close = 1e-4 if self.model.dtype in (torch.float32, torch.float64) else 5e-2
        bound = close * (float(wanted.abs().max()) + 1.0)

        def repeats(states: Tensor) -> bool:
            try:
                return bool((self.logits(states).float() - wanted).abs().max() <= bound)
            except (RuntimeError, TypeError):  # these parts take, or give, something else
                return False

        states = self._trunk(tokens, None)
        children = dict(self.model.named_children())
        for self._head in HEADS:
            if all(part in children for part in self._head) and repeats(states):
                break
        else:
            raise ValueError(
                f"cannot tell the head of {type(self.model).__name__} from its trunk: its parts are {', '.join(children)}; "
                f"expected one of {'; '.join(' → '.join(head) for head in HEADS)} after {self.model.base_model_prefix}"
            )
        real = torch.ones(1, PROBE + 2, dtype=torch.bool, device=tokens.device)
        real[:, :2] = False
        self.pads = repeats(self._trunk(nn.functional.pad(tokens, (2, 0), value=allowed[0]), real)[:, 2:])


class MaskedLMBlocks(nn.Module):
    """The layers of a masked language model without embeddings and head, from states to states. ``shape``: its configuration."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.shape: dict[str, Any] = shape
        bare = _build_model({**shape, "vocab_size": PROBE, "pad_token_id": 0})  # the embeddings are dropped
        self.trunk = bare.base_model
        self.trunk.embeddings = _GivenEmbeddings()
        for unused in ("contact_head", "pooler", "embeddings_project"):
            if hasattr(self.trunk, unused):
                delattr(self.trunk, unused)
                setattr(self.trunk, unused, None)
        if hasattr(getattr(self.trunk, "encoder", None), "embedding_hidden_mapping_in"):
            self.trunk.encoder.embedding_hidden_mapping_in = nn.Identity()
        self._takes = frozenset(inspect.signature(self.trunk.forward).parameters)
        self.width = int(bare.config.hidden_size)

    def forward(
        self, x: Float[Tensor, "B L D"], attention: Bool[Tensor, "B L"] | None, at: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "N D"]:
        """The states of the (row, position) pairs ``at``."""
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if attention is None else attention
        given = {"attention_mask": real.long(), "position_ids": (real.long().cumsum(1) - 1).clamp(min=0)}
        return self.trunk(inputs_embeds=x, **{k: v for k, v in given.items() if k in self._takes})[0][at]


class _GivenEmbeddings(nn.Module):
    """In the place of a model's embeddings: the vectors that it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Tensor:
        return inputs_embeds


def copy_shape(config: Any) -> dict[str, Any]:
    """The configuration of a model of transformers as JSON. No dropout: the policy that draws must be the policy that learns."""
    dropout = {name: 0.0 for name, value in vars(config).items() if "dropout" in name and isinstance(value, float)}
    shape = {**config.to_diff_dict(), "model_type": config.model_type, **dropout}
    return json.loads(json.dumps(shape, default=str))


def build_masked_lm(shape: dict[str, Any], mask_id: int) -> MaskedLM:
    """A new model of this shape, without its weights' values."""
    return MaskedLM(_build_model(shape), mask_id=mask_id)


def _build_model(shape: dict[str, Any]) -> Any:
    import transformers

    with silence_transformers():
        return transformers.AutoModelForMaskedLM.from_config(_read_shape(shape), trust_remote_code=False)


def _read_shape(shape: dict[str, Any]) -> Any:
    """The configuration of transformers that :func:`copy_shape` made this of."""
    import transformers

    kind = shape.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"expected a model_type that transformers knows, got {kind!r}")
    return transformers.AutoConfig.for_model(**shape)


def require_plausible_shape(
    shape: dict[str, Any], shapes: Mapping[str, Shape], where: Path, blocks_alone: bool
) -> None:
    """Refuse the shape of a copy, or of its layers alone, that is not one, or that has far more weights than the file."""
    try:
        with silence_transformers():
            config = _read_shape({**shape, "vocab_size": PROBE, "pad_token_id": 0} if blocks_alone else shape)
            _require_plausible(config, shapes, where)
    except Exception as error:  # whatever a damaged configuration makes transformers raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{where} has no copy of a masked language model that transformers knows: {reason}") from error


def _is_stack(part: nn.Module, config: Any) -> bool:
    return isinstance(part, nn.ModuleList) and len(part) == config.num_hidden_layers > 1


def load_masked_lm(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    device_map: Any = None,
) -> MaskedLM:
    """The masked language model in ``folder``, from its safetensors alone."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"{folder} is none of the families that load without transformers: pip install unmask[lm]"
        ) from error
    if int(transformers.__version__.split(".")[0]) < 5:
        raise ValueError(f"expected transformers 5 or later, got {transformers.__version__}: pip install unmask[lm]")
    if device is not None and device_map is not None:
        raise ValueError(f"device is {device} and device_map {device_map!r}: give one of them")
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    shapes = Checkpoint(folder).shapes
    try:
        with silence_transformers():
            config = _model_config(folder, transformers) or transformers.AutoConfig.from_pretrained(folder, **safe)
            _require_plausible(config, shapes, folder)
            model, info = transformers.AutoModelForMaskedLM.from_pretrained(
                folder, config=config, dtype=dtype, device_map=device_map,
                use_safetensors=True, output_loading_info=True, **safe,
            )  # fmt: skip
            named = any((folder / file).exists() for file in TOKENIZER_FILES)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe) if named else None
    except Exception as error:  # whatever a damaged file makes transformers raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{folder} is not a masked language model that transformers knows: {reason}") from error
    if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
        raise ValueError(f"{folder} does not fit {type(model).__name__}: {', '.join(wrong[:4])} missing or misshapen")
    return MaskedLM(model if device is None else model.to(device), tokenizer)


def _model_config(folder: Path, transformers: Any) -> Any:
    """The configuration as one of transformers' own where it says ``SAME_TENSORS``; None leaves it to transformers."""
    stored = read_json(folder / "config.json")
    same = SAME_TENSORS.get(str(stored.pop("model_type", None)))
    return None if same is None else transformers.AutoConfig.for_model(same, **stored)


def _require_plausible(config: Any, shapes: Mapping[str, Shape], folder: Path) -> None:
    """Refuse a configuration of more layers or far more weights than the files hold. The module that counts has no memory."""
    import transformers

    for key, value in flatten(config.to_dict()).items():
        if isinstance(value, int) and REPEATED.search(key) and not key.endswith("_size"):
            require_plausible_size(0, shapes, folder, value)
    with torch.device("meta"), SkipInitialisation():
        bare = transformers.AutoModelForMaskedLM.from_config(config, trust_remote_code=False)
    require_plausible_size(sum(p.numel() for p in bare.parameters()), shapes, folder)


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the progress bars and tables that transformers prints, and what it says of fields that it will rename."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _config(model: Any, tokenizer: Any, mask_id: int | None, offset: int) -> MaskedLMConfig:
    stored = model.config
    vocabulary = len(model.get_output_embeddings().weight)
    for holder in (tokenizer, stored):
        mask_id = getattr(holder, "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise ValueError(
            f"neither the tokenizer nor the configuration of {type(model).__name__} names a mask token: pass mask_id="
        )
    if tokenizer is None:
        names = ("pad", "bos", "eos", "cls", "sep", "unk")
        special: Iterable[int | None] = [getattr(stored, f"{name}_token_id", None) for name in names]
    else:
        special = [*tokenizer.all_special_ids, *range(len(tokenizer), vocabulary)]
    positions = getattr(stored, "max_position_embeddings", None)
    longest = getattr(tokenizer, "model_max_length", None)
    limits = [n for n in (positions - offset if positions else None, longest) if n and n < 10**9]
    pad = getattr(tokenizer, "pad_token_id", None)
    return MaskedLMConfig(
        vocab_size=vocabulary,
        width=int(stored.hidden_size),
        mask_id=int(mask_id),
        max_length=int(min(limits, default=4096)),
        pad_id=getattr(stored, "pad_token_id", None) if pad is None else pad,
        forbidden_ids=tuple(sorted({i for i in (mask_id, *special) if i is not None and 0 <= i < vocabulary})),
    )
