"""What the package computes today, as digests: the yardstick of a refactoring that must not change one bit.

Everything that is imported from the package stands at the top of this file, and everything is called by high-level entry points,
so a refactoring changes a few lines here and not one digest. A digest is made of numbers alone (tokens, orders, log-probabilities,
weights, cells of tables): never of names, keys, paths, versions or timings.

``make golden`` (or ``PYTHONPATH=tests .venv/bin/python tests/golden/golden.py [group …]``) records anew into ``record.json``.
Do that only where a change of behaviour is wanted, and say so in the commit.

Bits depend on the processor, so ``record.json`` holds a record per kind of processor, by what `probe` computes there. An entry that
changes where it is recorded anew is out of date in the records of other processors, and is taken out of them.

A group is computed whole, or only every so many of its entries: ``make test`` compares a part, the slow tests everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from support.families import write
from support.tokenizers import wordpieces
from unmask import Canvas, Decoding, load_denoiser, load_scheduler, trajectory_logp, unmask
from unmask.cli.main import main as command
from unmask.denoisers.transformer import TransformerConfig
from unmask.generation.generate import generate, infill
from unmask.runs.presets import load_preset
from unmask.schedulers.config import PolicyConfig
from unmask.tasks.arithmetic import Arithmetic
from unmask.tasks.jsonl import TextData
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

RECORD = Path(__file__).with_name("record.json")
UNRECORDED = ("greedy_wrong",)
"""Logged since the record was made."""
Entries = dict[str, str]
Records = dict[str, dict[str, Any]]
T = TypeVar("T")


def thin(items: Iterable[T], every: int) -> list[T]:
    return list(items)[::every]


# Digests


def digest(values: Iterable[Any]) -> str:
    """Of arrays and numbers, in their order: whole numbers as int64, others with every bit they have."""
    found = hashlib.sha256()
    for value in values:
        array = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        if array.dtype == torch.bfloat16:
            array = array.float()  # exact
        elif not array.is_floating_point():
            array = array.long()
        found.update(repr(tuple(array.shape)).encode())
        found.update(array.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def unordered(digests: Iterable[str]) -> str:
    """Of things that have names, whose order may change with the names."""
    return hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest()[:16]


def numbers(value: Any) -> Iterator[float | int]:
    """The numbers of JSON data in their order, keys and texts left out, and whatever was timed."""
    if isinstance(value, dict):
        for key, item in value.items():
            if "second" not in str(key) and key not in UNRECORDED:
                yield from numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, bool | int):
        yield int(value)
    elif isinstance(value, float):
        yield value


def digest_json(value: Any) -> str:
    return hashlib.sha256(" ".join(map(repr, numbers(value))).encode()).hexdigest()[:16]


def of_path(path: Any) -> str:
    """Two digests: what was revealed when, and what it was priced and scored."""
    return f"{digest([path.tokens, path.order, path.step])} {digest([path.logp, path.order_logp, path.score])}"


def of_run(folder: Path, records: Iterable[Any]) -> str:
    """Two digests: all tensors that a training left in its folder (weights, optimizer), and all that it logged."""
    logged = digest_json(list(records))
    files = sorted(folder.rglob("*.safetensors"))
    assert files, f"the training in {folder} left no weights"
    return f"{unordered(digest([tensor]) for file in files for tensor in load_file(file).values())} {logged}"


def probe() -> str:
    """Floating-point bits depend on the processor and on torch: each value of this has a record of its own."""
    rng = np.random.RandomState(0)
    made = lambda *shape: torch.from_numpy(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    results: list[Any] = []
    for rows, inner, columns in ((3, 16, 24), (32, 64, 9), (162, 96, 192), (500, 24, 24)):
        product = made(rows, inner) @ made(inner, columns)
        results += [product, product.softmax(1), product.log_softmax(1), product.exp(), product.sigmoid()]
        results += [F.gelu(product), F.silu(product), F.layer_norm(product, (columns,)), product.logsumexp(1)]
        results += [product.cumsum(1), product.sum(), product.square().mean(1).rsqrt(), product.tanh(), product.cos()]
    for length, width in ((16, 8), (81, 24)):
        q, k, v = (made(4, 4, length, width) for _ in range(3))
        results += [F.scaled_dot_product_attention(q, k, v), q @ k.transpose(2, 3)]
    leaf = made(20, 40).requires_grad_()
    optimizer = torch.optim.AdamW([leaf], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(leaf @ made(40, 10), torch.arange(20) % 10).backward()
        optimizer.step()
    results += [
        leaf,
        made(50, 50).double().exp().cumsum(0),
        torch.randn(99, generator=torch.Generator().manual_seed(1)),
    ]
    return digest(results)


# Decodings of boards

SCHEDULERS = (
    "random",
    "left_to_right",
    "right_to_left",
    "confidence",
    "margin",
    "entropy",
    "uncertainty",
    "gumbel_confidence",
    "softmax_confidence",
    "top_k_random",
    "pc_sampler",
    "end_damped",
    "look_ahead",
    "gt_logp",
    "gt_margin",
    "expert",
    "sas",
)
ORACLES = ("best", "worst", "best:exact=2:width=3", "worst:exact=2:width=3")
FEW = tuple(name for name in SCHEDULERS if name != "look_ahead")
OPTIONED = ("pc_sampler:decay=0:cap=10", "look_ahead:among=2")


def decodings(cells: int) -> dict[str, tuple[Decoding, bool]]:
    """Name → how to decode, and whether the truth is forced."""
    third = cells // 3
    free = {
        "any order": Decoding(),
        "block": Decoding(block=third),
        "budget": Decoding(steps=4),
        "block and budget": Decoding(block=third + 1, steps=5),
        "threshold": Decoding(pace="threshold:p=0.7"),
        "factor": Decoding(pace="factor"),
        "entropy bound": Decoding(pace="entropy_bound:gamma=0.5"),
        "kl stable": Decoding(pace="kl_stable:p=0.5:epsilon=0.3:steps=1", steps=6),
        "dilated": Decoding(pace="dilated", block=8),
        "bernoulli": Decoding(pace="bernoulli"),
        "drawn order": Decoding(order_temperature=0.7),
        "drawn order, budget": Decoding(order_temperature=0.7, steps=4),
        "drawn tokens": Decoding(token_temperature=1.3, top_p=0.9),
        "drawn order and tokens, block": Decoding(block=third, order_temperature=0.5, token_temperature=0.8),
    }
    forced = {
        "forced": Decoding(),
        "forced, budget": Decoding(steps=4),
        "forced, block, drawn order": Decoding(block=third, order_temperature=0.7),
    }
    return {name: (decoding, False) for name, decoding in free.items()} | {n: (r, True) for n, r in forced.items()}


def decoded(
    denoiser: str,
    size: int,
    clues: str,
    boards: int,
    schedulers: Iterable[str],
    ways: Iterable[str] | None = None,
    every: int = 1,
) -> Entries:
    model = load_denoiser(denoiser)
    canvas = SudokuTask.generate(boards, size, clues, "test", 0).canvas(range(boards))
    seeds = torch.arange(boards) * 7919 + 2**32
    known = decodings(size * size)
    made = {f"{denoiser} | boards {clues}": digest([canvas.tokens, canvas.target])}
    for name, way in thin(itertools.product(schedulers, ways or known), every):
        decoding, forced = known[way]
        scheduler = load_scheduler(name, model, denoiser)
        path = unmask(model, scheduler, canvas.seeded(seeds), decoding, forced=forced, record=False)
        made[f"{denoiser} | {name} | {way}"] = of_path(path)
        if forced and name == "confidence":
            priced = trajectory_logp(model, canvas.truth, path.order, path.step)
            made[f"{denoiser} | {name} | {way}, priced again"] = digest([priced])
    shared = Decoding(share=True)
    path = unmask(model, load_scheduler("margin"), Canvas(canvas.tokens, canvas.target), shared, record=True)
    states = path.states
    assert states is not None
    kept = [states.row, states.step, states.tokens, states.eligible, states.revealed, states.scores, states.confidence]
    kept += [states.margin, states.entropy, states.best, states.target_logp]
    made[f"{denoiser} | recorded states {clues}"] = digest(kept)
    return made


RULES = ("t2t:p=0.5", "t2m:p=0.5", "remdm_conf", "remdm_cap:eta=0.1", "remdm_rescale:eta=0.1", "p2")


def revised_boards(folder: Path, every: int) -> Entries:
    """Every rule that takes tokens back, alone, in blocks and with a step budget; drafts must not show."""
    name = "sudoku-4x4-imperfect"
    model = load_denoiser(name)
    canvas = SudokuTask.generate(12, 4, "5-7", "test", 0).canvas(range(12))
    ways = {
        "any order": Decoding(),
        "block": Decoding(block=6),
        "budget": Decoding(steps=5),
        "drafts": Decoding(draft=4),
    }
    made: Entries = {}
    for scheduler, rule, way in thin(itertools.product(("confidence", "sas"), RULES, ways), every):
        loaded = load_scheduler(scheduler, model, name)
        decoding = replace(ways[way], revision=rule, revision_budget=1.0)
        path = unmask(model, loaded, canvas, decoding, record=False)
        taken = digest(vars(path.revisions).values())
        made[f"{name} | {scheduler} | {rule} | {way}"] = f"{of_path(path)} {taken}"
    return made


ORACLE_WAYS = ("any order", "block", "budget", "drawn order", "forced, block, drawn order")
SOME_WAYS = ("any order", "block and budget", "threshold", "drawn order and tokens, block", "forced")


def small_boards(folder: Path, every: int) -> Entries:
    return decoded("sudoku-4x4", 4, "9-10", 32, (*SCHEDULERS, *OPTIONED), every=every)


def small_boards_imperfect(folder: Path, every: int) -> Entries:
    return decoded("sudoku-4x4-imperfect", 4, "8-10", 32, SCHEDULERS, list(decodings(16))[::2], every)


def small_boards_oracles(folder: Path, every: int) -> Entries:
    made: Entries = {}
    for denoiser in ("sudoku-4x4", "sudoku-4x4-imperfect"):
        made |= decoded(denoiser, 4, "11-12", 8, ORACLES, ORACLE_WAYS, every)
    return made


def large_boards(folder: Path, every: int) -> Entries:
    made = decoded("sudoku-9x9", 9, "68-70", 3, FEW, SOME_WAYS[1:2], every)
    return made | decoded("sudoku-9x9", 9, "68-70", 3, ("confidence", "sas"), SOME_WAYS, every)


def large_boards_imperfect(folder: Path, every: int) -> Entries:
    given = ("sudoku-9x9-imperfect", 9, "66-70", 8)
    made = decoded(*given, [*FEW, "look_ahead:among=2"], SOME_WAYS[1:4:2], every)
    return made | decoded(*given, ("confidence", "sas"), list(decodings(81))[::2], every)


# Text


def words(size: int = 32, **special: int) -> PreTrainedTokenizerFast:
    """``size`` words w0, w1, …, some of which have other names: ``words(eos=27)`` knows ``<eos>``."""
    names = {i: f"<{name}>" for name, i in special.items()}
    tokenizer = Fast(models.WordLevel({names.get(i, f"w{i}"): i for i in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{name}_token": f"<{name}>" for name in special})
    made.chat_template = "{% for turn in messages %}w1 {{ turn['content'] }} w2 {% endfor %}w3"
    return made


TOKENIZERS: dict[str, dict[str, int]] = {
    "llada": {"size": 31, "eos": 27},
    "dream": {"eos": 26},
    "smdm": {"size": 31, "eos": 2},
}


def bert(folder: Path) -> Path:
    generator = np.random.RandomState(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(generator.standard_normal(parameter.shape) * 0.6))
    with contextlib.redirect_stderr(io.StringIO()):  # a bar
        model.save_pretrained(folder)
    wordpieces().save_pretrained(folder)
    return folder


PROMPTS = ["w3 w4 w5 w6 w7", "w8", "w10 w11 w12 w13 w14 w15 w16"]
GAPS = ["w3 <mask:3> w4 w9 <mask>", "<mask:2> w6", "w7 w8 w9 w10 <mask:4>"]
CACHED: dict[str, dict[str, Any]] = {
    "prefix": {"length": 12, "block": 4, "cache": "prefix"},
    "prefix, refresh 2": {"length": 12, "block": 4, "cache": "prefix", "refresh": 2},
    "dual": {"length": 12, "block": 4, "cache": "dual"},
    "dual, refresh 3": {"length": 12, "block": 6, "cache": "dual", "refresh": 3},
    "dual, 6 steps": {"length": 12, "block": 4, "steps": 6, "cache": "dual", "scheduler": "margin"},
    "dual, guided": {"length": 12, "block": 4, "cache": "dual", "guidance": 1.0},
    "prefix, drawn": {"length": 12, "block": 4, "cache": "prefix", "token_temperature": 1.1, "ends": "suppress"},
}
PLAIN: dict[str, dict[str, Any]] = {
    "8": {"length": 8},
    "8-4": {"length": 8, "block": 4, "scheduler": "margin"},
    "9-5-4": {"length": 9, "block": 5, "steps": 4, "scheduler": "entropy"},
    "12-12-3": {"length": 12, "steps": 3},
    "threshold": {"length": 8, "pace": "threshold:p=0.2"},
    "entropy bound": {"length": 8, "pace": "entropy_bound:gamma=2"},
    "kl stable": {"length": 8, "pace": "kl_stable:p=0.1:epsilon=0.5:steps=1"},
    "drawn": {"length": 8, "token_temperature": 0.9, "order_temperature": 0.5, "top_p": 0.9},
    "suppress": {"length": 8, "ends": "suppress"},
    "suppress, drawn": {"length": 8, "ends": "suppress", "token_temperature": 1.2, "block": 4},
    "damp": {"length": 8, "ends": "damp", "token_temperature": 1.0},
    "damp 0.1": {"length": 8, "ends": "damp", "end_floor": 0.1},
    "least 3": {"length": 8, "min_length": 3, "token_temperature": 1.5},
    "no stop": {"length": 8, "stop_at_end": False},
    "guided": {"length": 8, "guidance": 1.5},
    "guided, damp, least 3": {"length": 8, "guidance": 1.5, "ends": "damp", "min_length": 3},
    "look ahead": {"length": 6, "scheduler": "look_ahead:among=2"},
    "end damped": {"length": 8, "scheduler": "end_damped"},
}
FILLED: dict[str, dict[str, Any]] = {
    "any order": {},
    "guided, 3 steps": {"guidance": 1.0, "steps": 3},
    "drawn, block": {"token_temperature": 1.0, "block": 3},
    "dual": {"block": 3, "cache": "dual"},
}


def generation(made: Any) -> str:
    """Of the path; the texts follow from the tokens, and are digested with them."""
    return f"{of_path(made.trajectory)} {hashlib.sha256(json.dumps(made.texts).encode()).hexdigest()[:8]}"


def split(options: dict[str, Any]) -> tuple[str, Decoding, dict[str, Any]]:
    """The scheduler, the options of the loop, and the others."""
    given = dict(options)
    scheduler = given.pop("scheduler", "confidence")
    others = {name: given.pop(name) for name in ("length",) if name in given}
    return scheduler, Decoding(**given), others


def texts(folder: Path, every: int) -> Entries:
    made: Entries = {}
    seeds = [7, 2**60 + 1, 0]
    for family, given in TOKENIZERS.items():
        # A longer canvas than the fixture's configuration has: caches need several blocks.
        longer = {"llada": {"max_sequence_length": 48}, "smdm": {}}.get(family, {"max_position_embeddings": 48})
        denoiser, tokenizer = load_denoiser(write(folder / family, family, **longer)), words(**given)
        for way, options in thin({**PLAIN, **CACHED}.items(), every):
            scheduler, decoding, others = split(options)
            done = generate(denoiser, tokenizer, PROMPTS, scheduler, decoding, seeds=seeds, **others)
            made[f"{family} | {way}"] = generation(done)
        for way, options in thin(FILLED.items(), every):
            decoding = Decoding(**options)
            made[f"{family} | gaps, {way}"] = generation(
                infill(denoiser, tokenizer, GAPS, decoding=decoding, seeds=seeds)
            )
        turns = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        made[f"{family} | chat"] = generation(generate(denoiser, tokenizer, turns, length=6))
    denoiser, tokenizer = load_denoiser(bert(folder / "bert")), wordpieces()
    for way, options in thin(PLAIN.items(), every):
        scheduler, decoding, others = split(options)
        done = generate(denoiser, tokenizer, ["the cat", "", "the s on"], scheduler, decoding, seeds=seeds, **others)
        made[f"bert | {way}"] = generation(done)
    for way, options in thin(list(FILLED.items())[:3], every):
        gaps = ["the <mask> sat on the mat .", "<mask:2>", "cat <mask:3> on <mask>"]
        made[f"bert | gaps, {way}"] = generation(
            infill(denoiser, tokenizer, gaps, decoding=Decoding(**options), seeds=seeds)
        )
    return made


# Trainings

BOARDS = SudokuData(size=4, puzzles=40, clues="8-10")
SHORT = PolicyTraining(
    steps=3,
    prompts=2,
    group=2,
    states=16,
    advantage="reward_to_go",
    validate=4,
    validate_every=2,
    save_every=3,
)
NARROW = PolicyConfig(width=8, n_layers=1, n_heads=2)
OBJECTIVES: dict[str, dict[str, Any]] = {
    "reward to go": {},
    "trajectory": {"advantage": "trajectory"},
    "all action": {"advantage": "all_action", "group": 1, "correctness": 0.5},
    "all action, groups": {"advantage": "all_action", "future": 0.5},
    "critic": {"advantage": "critic", "decay": 0.5, "group": 1},
    "terminal": {"reward": "terminal", "advantage": "trajectory"},
    "share": {"reward": "share", "normalise": False},
    "hybrid": {"reward": "hybrid", "hybrid": 2.0},
    "budget": {"decoding": Decoding(steps=4)},
    "block": {"decoding": Decoding(block=5)},
    "KL to the start": {"beta": 0.1, "outer": 2},
    "KL to confidence": {"beta": 0.1, "reference": "confidence"},
    "entropy": {"entropy": 0.05},
    "correctness": {"correctness": 0.5},
    "relative": {"relative": True, "correctness": 0.5},
    "warm start": {"warm_start": 1, "teacher": "margin"},
    "imitation": {"objective": "imitation", "teacher": "expert"},
    "two passes in parts": {"mu": 2, "micro": 5, "at_once": 4},
    "likelihood selects": {"select": "nll"},
    "bfloat16": {"mixed_precision": "bf16"},
    "another seed": {"seed": 5},
}
POLICIES: dict[str, PolicyConfig] = {
    "statistics": replace(NARROW, kind="mlp"),
    "statistics, all features": replace(
        NARROW, kind="mlp", tokens=False, features=("confidence", "entropy", "margin", "progress", "left", "right")
    ),
    "transformer": replace(NARROW, kind="transformer"),
    "transformer, blockwise": replace(NARROW, kind="transformer", blockwise=True),
    "hidden": replace(NARROW, kind="hidden"),
    "grid": replace(NARROW, kind="grid", n_layers=2),
    "grid, statistics": replace(NARROW, kind="grid", distribution=False),
    "grid, no residual": replace(NARROW, kind="grid", residual=False),
    "grid, uncertainty": replace(NARROW, kind="grid", base="uncertainty", temperature=0.5),
}
PRESETS = (
    "ablation-all-action",
    "ablation-critic",
    "ablation-groups",
    "ablation-hidden",
    "ablation-mlp",
    "ablation-no-correctness",
    "ablation-reward-to-go",
    "ablation-statistics",
    "ablation-trajectory",
    "ablation-transformer",
    "demo",
    "rival-adaptive-orders",
    "rival-hybrid",
    "rival-jazbec",
    "rival-lo-arm",
    "rival-terminal",
    "rival-upo",
    "rival-where-to-unmask",
    "sas-sudoku-4x4",
    "sas-sudoku-4x4-imperfect",
    "sas-sudoku-9x9",
    "sas-sudoku-9x9-imperfect",
    "sas-sudoku-9x9-imperfect-parallel",
)
WRITTEN_PRESETS = (
    "reward-hybrid",
    "reward-terminal",
    "sas-arithmetic",
    "sas-arithmetic-hidden",
    "sas-arithmetic-parallel",
)


def trained(config: PolicyRun, folder: Path) -> str:
    AcceleratorState._reset_state()  # it keeps the precision of the first training of a process
    made = of_run(folder, run_policy_training(config, folder))
    AcceleratorState._reset_state()
    return made


def boards(policy: PolicyConfig = NARROW, **training: Any) -> PolicyRun:
    return PolicyRun("sudoku-4x4-imperfect", policy, data=BOARDS, training=replace(SHORT, **training))


def shrunk(preset: str, denoiser: str, data: Any) -> PolicyRun:
    """A preset's recipe at the size of a test."""
    config = load_preset(preset, PolicyRun, "train")
    own = config.training
    return replace(
        config,
        denoiser=denoiser,
        start="",
        validation=None,
        data=data,
        policy=replace(config.policy, width=8, n_layers=1, n_heads=2),
        training=replace(
            own,
            steps=3,
            prompts=2,
            group=min(own.group, 3),
            states=32,
            warm_start=min(own.warm_start, 1),
            validate=4,
            validate_every=3,
            save_every=3,
        ),
    )


def policy_trainings(folder: Path, every: int) -> Entries:
    made = {
        f"objective | {name}": trained(boards(**options), folder / f"objective-{nth}")
        for nth, (name, options) in thin(enumerate(OBJECTIVES.items()), every)
    }
    made |= {
        f"policy | {name}": trained(
            boards(policy, decoding=Decoding(block=5 if policy.blockwise else None)), folder / f"policy-{nth}"
        )
        for nth, (name, policy) in thin(enumerate(POLICIES.items()), every)
    }
    started = replace(boards(load_scheduler("sas-sudoku-4x4").config), start="sas-sudoku-4x4")  # pyright: ignore[reportAttributeAccessIssue]
    started = replace(started, denoiser="sudoku-4x4")
    return made | {"start | sas-sudoku-4x4": trained(started, folder / "started")}


def preset_trainings(folder: Path, every: int) -> Entries:
    presets = thin(PRESETS, every)
    return {name: trained(shrunk(name, "sudoku-4x4-imperfect", BOARDS), folder / name) for name in presets}


def masked(**options: Any) -> MaskedTraining:
    return MaskedTraining(**{"samples": 24, "batch": 8, "lr": 1e-2, "log_every": 1, "save_every": 3, **options})


def written_model() -> TransformerConfig:
    return TransformerConfig(**Arithmetic.shape(), width=16, n_layers=2, n_heads=2, ffn=24, positions="learned")


def masked_trainings(folder: Path, every: int) -> Entries:
    """Pre-training, and the orders that are learned for the denoiser of sums that it makes."""
    shape: dict[str, Any] = {"width": 12, "n_layers": 2, "n_heads": 3, "ffn": 16, "mask_id": 0, "vocab_size": 5}
    shape |= {"max_length": 16}
    trainings: dict[str, tuple[TransformerConfig, Any, MaskedTraining]] = {
        "boards": (TransformerConfig(**shape, positions="learned", grid=4), BOARDS, masked()),
        "boards, averaged": (TransformerConfig(**shape, positions="none", grid=4), BOARDS, masked(ema=0.9)),
        "boards, bound": (TransformerConfig(**shape, tied_head=True), BOARDS, masked(weight="elbo", seed=3)),
        "sums": (written_model(), Arithmetic(count=40), masked(samples=48, batch=16)),
    }
    made = {}
    for name, (model, data, training) in trainings.items():
        place = folder / name
        records = pretrain(Pretrain(model, data, training), place)
        made[f"pre-training | {name}"] = of_run(place, records)
    sums = Arithmetic(count=40, seed=7, length=40)
    for name in thin(WRITTEN_PRESETS, every):
        made[f"order | {name}"] = trained(shrunk(name, str(folder / "sums"), sums), folder / name)
    return made


def examples(file: Path, vocabulary: list[str]) -> str:
    """Answers that follow from their prompts: the same words, turned around."""
    rows = []
    for number in range(24):
        picked = [vocabulary[(number * k + k * k) % len(vocabulary)] for k in range(1, 3 + number % 3)]
        prompt = f"{' '.join(picked)} {vocabulary[number % 5]}"
        rows.append(json.dumps({"prompt": prompt, "completion": " ".join(reversed(picked))}))
    file.write_text("\n".join(rows) + "\n")
    return str(file)


def text_trainings(folder: Path, every: int) -> Entries:
    """Orders and adapters for denoisers of text."""
    llada = write(folder / "llada", "llada")
    words(eos=27).save_pretrained(llada)
    vocabulary = {"llada": [f"w{n}" for n in range(2, 14)], "bert": ["the", "cat", "s", "on", "mat"]}
    made = {}
    for family, place in {"llada": llada, "bert": bert(folder / "bert")}.items():
        data = TextData(file=examples(folder / f"{family}.jsonl", vocabulary[family]), length=6, held_out=0.3)
        for kind in thin(("mlp", "transformer", "hidden"), every):
            policy = replace(NARROW, kind=kind, tokens=False, features=("confidence", "entropy", "position", "left"))
            config = PolicyRun(str(place), policy, data=data, training=replace(SHORT, select="nll"))
            made[f"order | {family} | {kind}"] = trained(config, folder / f"{family}-{kind}")
        lora: dict[str, Any] = {"denoiser": str(place), "data": data, "validate": 4, "adapter": "lora", "rank": 4}
        for name, options in {
            "reveal": {"loss_on": "reveal"},
            "hidden, merged": {"loss_on": "hidden", "merged": True, "random_share": 0.5},
        }.items():
            stage = SecondStage(order="confidence", training=masked(), **lora, **options)
            run = folder / f"{family}-lora-{name}"
            made[f"adapter | {family} | {name}"] = of_run(run, run_second_stage(stage, run))
    return made


STAGES: dict[str, dict[str, Any]] = {
    "learned order": {"order": "sas"},
    "confidence": {"order": "confidence", "loss_on": "hidden"},
    "expert, head": {"order": "expert", "trained": "head"},
    "random, drawn anew": {"order": "random", "refresh": 1, "random_share": 0.0},
    "margin, averaged": {"order": "margin", "training": masked(ema=0.9, weight="elbo")},
    "adapter": {"order": "confidence", "adapter": "lora", "rank": 2, "alpha": 4.0},
    "adapter, merged": {"order": "confidence", "adapter": "lora", "rank": 2, "merged": True},
}


def second_stages(folder: Path, every: int) -> Entries:
    made = {}
    for nth, (name, options) in thin(enumerate(STAGES.items()), every):
        given: dict[str, Any] = {"denoiser": "sudoku-4x4", "data": BOARDS, "validate": 4, "training": masked()}
        run = folder / str(nth)
        made[name] = of_run(run, run_second_stage(SecondStage(**given | options), run))
    return made


def two_processes(folder: Path, every: int) -> Entries:
    """Two forks of this process share each step over gloo, as under ``accelerate launch``."""
    config = boards(prompts=5, correctness=0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            _share(rank, port, config, folder / "run", folder / f"log.{rank}")
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0], "\n".join((folder / f"log.{rank}").read_text() for rank in range(2))
    logged = json.loads((folder / "logged.json").read_text())
    return {"policy": of_run(folder / "run", logged)}


def _share(rank: int, port: int, config: PolicyRun, run: Path, log: Path) -> None:
    code = 1
    with open(log, "w") as file:
        try:
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in own.items()}
            os.environ |= {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            for state in (AcceleratorState, GradientState, PartialState):
                state._reset_state()  # what this process inherited says that it is alone
            records = list(run_policy_training(config, run))
            if rank == 0:
                (run.parent / "logged.json").write_text(json.dumps(records))
            code = 0
        except BaseException:
            traceback.print_exc(file=file)
            file.flush()
        finally:
            os._exit(code)


# Commands


def called(*words: str) -> None:
    """The command line in this process; what it prints is not looked at."""
    with mock.patch.object(sys, "argv", ["unmask", *words]), contextlib.redirect_stdout(io.StringIO()):
        try:
            command()
        except SystemExit as end:
            assert not end.code, f"unmask {' '.join(words)} ended with {end.code}"


NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?")


def of_tables(markdown: str) -> str:
    """The numbers of all cells that begin with one, and which of them are strong."""
    found = []
    for line in markdown.splitlines():
        for cell in line.split("|")[2:-1] if line.startswith("|") else ():
            text = cell.strip()
            if NUMBER.match(text.lstrip("*")):
                found.append(("**" if text.startswith("**") else "") + " ".join(NUMBER.findall(text)))
    assert found, "the study's tables have no numbers"
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def studied(name: str, folder: Path, *options: str) -> Entries:
    called("study", name, "--out", str(folder), *options)
    pieces = [digest_json(json.loads(file.read_text())["result"]) for file in (folder / "pieces").glob("*.json")]
    return {
        f"{name} | tables": of_tables((folder / "tables.md").read_text()),
        f"{name} | {len(pieces)} pieces": unordered(pieces),
    }


def studies(folder: Path, every: int) -> Entries:
    made = studied("sudoku-4x4", folder / "orders", "--quick", "--limit", "24")
    made |= studied("tau", folder / "tau", "--quick", "--limit", "3", "--schedulers", "random,confidence,sas")
    return made


def verified(folder: Path, every: int) -> Entries:
    called("verify", "--json", str(folder / "claims.json"))
    rows = json.loads((folder / "claims.json").read_text())["rows"]
    return {f"claim {nth:02d}": digest_json(row) for nth, row in enumerate(rows, 1)}


GROUPS: dict[str, Callable[[Path, int], Entries]] = {
    "decoding sudoku-4x4": small_boards,
    "decoding sudoku-4x4-imperfect": small_boards_imperfect,
    "decoding with oracles": small_boards_oracles,
    "decoding sudoku-9x9": large_boards,
    "decoding sudoku-9x9-imperfect": large_boards_imperfect,
    "generated text": texts,
    "policy training": policy_trainings,
    "policy training of presets": preset_trainings,
    "masked training": masked_trainings,
    "training on text": text_trainings,
    "second stage": second_stages,
    "two processes": two_processes,
    "studies": studies,
    "verify": verified,
    "revisions": revised_boards,
}
"""Name → what computes its entries, or every so many of them, in an empty folder."""


def computed(group: str, folder: Path, every: int = 1) -> Entries:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return GROUPS[group](folder, every)


def record(records: Records, here: str, group: str, entries: Entries) -> None:
    """These entries into the record of the processor ``here``; what they replace goes from the others, which are as old."""
    before = records[here]["groups"].get(group, {})
    changed = {name for name in before if entries.get(name) != before[name]}
    for other in records.values():
        known = other["groups"].get(group, {})
        other["groups"][group] = {name: value for name, value in known.items() if name not in changed}
    records[here]["groups"][group] = entries


def main(groups: list[str]) -> None:
    """Record these groups, or all of them."""
    records: Records = json.loads(RECORD.read_text())
    torch.set_num_threads(1)
    here = probe()
    processor = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    records.setdefault(here, {"recorded with": processor, "groups": {}})
    for group in groups or GROUPS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            entries = computed(group, Path(folder))
        record(records, here, group, entries)
        sys.stderr.write(f"{group}: {len(entries)} entries, {time.perf_counter() - began:.1f} s\n")
    for other in records.values():
        other["groups"] = {group: other["groups"].get(group, {}) for group in GROUPS}
    RECORD.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
