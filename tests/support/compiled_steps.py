"""What a step computes beside the denoiser, compiled as whole graphs. Run by a test as a process of its own: the checks of shapes
that are wrapped around every function in the tests cannot be traced.

Graphs are traced and run as they are: of a Transformer policy, with the argument ``all`` of every kind. With a kind as the
argument, inductor compiles them, and the kernels of its code are printed: of the pricing, and of the policy. With ``boards`` it
compiles the orders that ship for boards.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import FEATURES
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.sudoku.task import SudokuTask

MASK = 39
COMPILE = torch.compile
GRAPHS: list[Any] = []


def keep_graph(graph: Any, inputs: Any) -> Any:
    GRAPHS.append(graph)
    return graph


def make_denoiser() -> Transformer:
    shape = TransformerConfig(vocab_size=40, width=32, n_layers=2, n_heads=2, ffn=64, mask_id=MASK, max_length=32)
    return Transformer(shape).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()


def make_policy(denoiser: Transformer, kind: str, **options: Any) -> OrderPolicy:
    config = PolicyConfig(kind=kind, width=32, n_layers=1, features=FEATURES, tokens=False, **options)
    policy = build_policy(config, denoiser, "tiny").requires_grad_(False).eval()
    if kind != "opinion":
        policy.network.readout.weight.normal_(generator=torch.Generator().manual_seed(2))
    return policy


def make_canvas(padded: bool = False) -> Canvas:
    tokens = torch.randint(0, MASK, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[:, 4:] = MASK
    tokens[1, 9:12] = 3  # rows with different numbers of hidden positions
    attention = torch.ones_like(tokens, dtype=torch.bool)
    attention[2, :2] = False
    return Canvas(tokens, attention=attention if padded else None)


def compare(denoiser: Transformer, scheduler: Any, canvas: Canvas, **options: Any) -> None:
    """A whole decoding, compiled and not. Steps differ in the number of positions, and graphs serve all of them but the last
    ones, of a single position or row."""
    plain = unmask(denoiser, scheduler, canvas, Decoding(**options))
    GRAPHS.clear()
    torch._dynamo.reset()
    compiled = unmask(denoiser, scheduler, canvas, Decoding(compile=True, **options))
    assert torch.equal(plain.order, compiled.order) and torch.allclose(plain.score, compiled.score, atol=1e-4)
    assert 1 <= len(GRAPHS) <= 6, len(GRAPHS)


def count_kernels(kind: str) -> tuple[int, int]:
    """Kernels in the code that inductor writes: fused ones, and calls of libraries."""
    denoiser = make_denoiser()
    policy = make_policy(denoiser, kind, distribution=False)
    _, codes = run_and_get_code(unmask, denoiser, policy, make_canvas(), Decoding(compile=True))
    calls = [
        re.findall(r"^    +(?:\w+ = )?(cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.\w+\.\w+)\b", code, re.M)
        for code in codes
    ]
    return len(calls[0]), len(calls[1])


def compare_boards(denoiser: str = "sudoku-9x9-imperfect") -> None:
    """Down to a single position of a single row, inductor's code reveals what plain code does."""
    model, canvas = load_denoiser(denoiser), SudokuTask.generate(3, clues="rao").canvas(range(3))
    for name in ("sas", "sas-general"):
        scheduler = load_scheduler(name, model, denoiser)
        plain, compiled = (unmask(model, scheduler, canvas, Decoding(compile=on)) for on in (False, True))
        assert torch.equal(plain.order, compiled.order) and torch.equal(plain.tokens, compiled.tokens), name


if __name__ == "__main__":
    with torch.no_grad():
        if sys.argv[1:] == ["boards"]:
            compare_boards()
            sys.exit()
        if sys.argv[1:] not in ([], ["all"]):
            print(*count_kernels(sys.argv[1]))
            sys.exit()
        torch.compile = partial(COMPILE, backend=keep_graph, fullgraph=True)
        tiny = make_denoiser()
        compare(tiny, make_policy(tiny, "transformer", distribution=False), make_canvas(padded=True), block=8)
        if sys.argv[1:]:
            compare(tiny, confidence, make_canvas())
            for kind in ("hidden", "mlp", "transformer", "general", "opinion"):
                compare(tiny, make_policy(tiny, kind, distribution=False), make_canvas())
            compare(tiny, make_policy(tiny, "general", token_width=8), make_canvas(), cache="dual", block=8)
