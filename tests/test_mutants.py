"""One-line mutations of the core, each of which a quick check must notice: what a rewrite could break without a sound.

A mutant is the package's source with one text replaced, imported as ``mutated`` beside the real one. A check that a mutant
survives says nothing about the invariant that it is named for.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from denoisers_for_tests import CountingTable, Fixed, Stubborn, view_of
from test_decode import SCORES, apportion, assert_row, plain_decode, puzzles
from test_pace import RULES, Calm, checked
from test_pricing import brute
from test_regimes import luce
from unmask.protocols import View

SOURCE = Path(unmask.__path__[0])
LIMIT = 600  # forwards, after which a check gives a loop up


@contextmanager
def mutated(module: str = "", old: str = "", new: str = "") -> Iterator[Any]:
    """The core's modules by name, executed anew with ``old`` replaced in one of them."""
    core, package = SimpleNamespace(), ModuleType("mutated")
    package.__path__, sys.modules["mutated"] = [], package
    try:
        for name in ("pricing", "protocols", "plackett_luce", "schedulers", "pace", "live", "decode"):
            text = (SOURCE / f"{name}.py").read_text()
            if name == module:
                assert text.count(old) == 1, f"{name}.py must hold this text once: {old}"
                text = text.replace(old, new)
            fresh = ModuleType(f"mutated.{name}")
            setattr(core, name, fresh)
            sys.modules[fresh.__name__] = fresh
            exec(compile(text.replace("from unmask.", "from mutated."), f"{name}.py", "exec"), fresh.__dict__)
        yield core
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mutated"]:
            del sys.modules[name]


def decode(core: Any, denoiser: Any, rule: Any, tokens: Tensor, regime: Any = None, **rest: Any) -> Any:
    rule = getattr(core.schedulers, rule) if isinstance(rule, str) else rule
    return core.decode.unmask(denoiser, rule, tokens, core.live.Regime(**(regime or {})), **rest)


def prices(core: Any) -> None:
    logits = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)) * 3
    logits[:4, 2] += torch.tensor([30.0, 31.0, 45.0, 60.0])
    priced = core.pricing.price(logits, (4,))
    for n, row in enumerate(logits.double().tolist()):
        for name, value in brute(row, (4,)).items():
            assert getattr(priced, name)[n].item() == pytest.approx(value, rel=1e-4)
    try:
        core.pricing.price(torch.full((2, 3), torch.nan))
    except ValueError:
        return
    raise AssertionError("NaN went through")


def plain_loop(core: Any) -> None:
    """The reference decoder, free and forced, in blocks and in parallel."""
    denoiser = CountingTable(limit=LIMIT)
    tokens, target = puzzles(denoiser, 4, 9)
    for (block, steps), forced in itertools.product([(None, None), (4, None), (4, 7), (None, 4)], [False, True]):
        for name in ("confidence", "entropy", "left_to_right"):
            truth = target if forced else None
            path = decode(core, denoiser, name, tokens, {"block": block, "steps": steps}, target=truth)
            for row, canvas in enumerate(tokens.tolist()):
                goal = target[row].tolist() if forced else None
                assert_row(path, row, plain_decode(CountingTable(), canvas, SCORES[name], block, steps, goal))


def ends(core: Any) -> None:
    denoiser = CountingTable(end_ids=(1, 5), pad_id=0, limit=LIMIT)
    tokens = torch.full((12, 8), denoiser.mask_id)
    tokens[:, :2] = torch.tensor(list(itertools.product([0, 2, 4], [0, 2, 4, 6])))
    for name in ("confidence", "left_to_right"):
        path = decode(core, denoiser, name, tokens)
        for row, canvas in enumerate(tokens.tolist()):
            assert_row(path, row, plain_decode(denoiser, canvas, SCORES[name]))


def given(core: Any) -> None:
    denoiser = Stubborn(6, mask_id=2, limit=LIMIT)
    tokens, _ = puzzles(denoiser, 5, 8)
    path = decode(core, denoiser, "confidence", tokens)
    kept = tokens != denoiser.mask_id
    assert torch.equal(path.tokens[kept], tokens[kept]) and not (path.tokens == denoiser.mask_id).any()


def rows_alone(core: Any) -> None:
    """Every pace, random orders and tokens: a row alone, unpadded, against its batch, padded on the left."""
    denoiser = Calm(limit=5 * LIMIT)
    tokens, _ = puzzles(denoiser, 5, 7, seed=1)
    wide = torch.cat([torch.full((5, 2), denoiser.mask_id), tokens], 1)
    attention = torch.arange(9).expand(5, -1) >= 2
    seeds = torch.tensor([4, 9, 1, 7, 3])
    for pace in core.pace.PACES.values():
        regime = {"pace": pace(), "steps": 3, "order_temperature": 0.5, "token_temperature": 1.0}
        path = decode(core, denoiser, "random", wide, regime, seeds=seeds, attention=attention)
        for row in range(5):
            alone = decode(core, denoiser, "random", tokens[row : row + 1], regime, seeds=seeds[row : row + 1])
            n = int(alone.reveals[0])
            assert int(path.reveals[row]) == n and torch.equal(path.order[row, :n] - 2, alone.order[0, :n])
            assert torch.equal(path.tokens[row, 2:], alone.tokens[0])
            assert torch.allclose(path.order_logp[row, :n], alone.order_logp[0, :n], atol=1e-5)


def numbers(core: Any) -> None:
    """Numbers differ from step to step and stay inside (0, 1)."""
    tokens, seen = torch.full((1, 4), 3), []
    decode(core, CountingTable(), lambda view: seen.append(view.uniform(1)) or view.confidence, tokens)
    assert not torch.equal(seen[0], seen[1])
    core.protocols._mix = lambda x: torch.full_like(x, -1)
    assert core.protocols.counter_uniform(0, torch.zeros(1, dtype=torch.long)).item() < 1


def cost(core: Any) -> None:
    denoiser = CountingTable(limit=LIMIT)
    tokens = torch.tensor([[1, 3, 1, 1, 1, 1, 1, 1], [1, 3, 3, 1, 3, 3, 1, 1], [3] * 8])
    assert decode(core, denoiser, "confidence", tokens).denoiser_calls == denoiser.forwarded == 1 + 4 + 8
    decode(core, denoiser, "confidence", tokens, {"block": 3})
    assert max(denoiser.priced[8:]) <= 3 * 3


def sharing(core: Any) -> None:
    tokens = torch.full((2, 6), 3)
    attention = torch.arange(6).expand(2, -1) < torch.tensor([[6], [4]])
    paths = [decode(core, CountingTable(), "confidence", tokens, attention=attention, share=s) for s in (False, True)]
    assert torch.equal(paths[0].order, paths[1].order)


def draws(core: Any) -> None:
    """log v of a drawn order, and its frequency; tokens of a nucleus."""
    scores, temperature = torch.tensor([0.3, -0.5, 1.1]), 0.5
    twice, counts, known = torch.tensor([[2, 0]] * 2), torch.tensor([1, 2]), luce(scores.tolist(), [2, 0])
    uneven = core.plackett_luce.plackett_luce_logp(scores.expand(2, -1), twice, counts)
    assert torch.allclose(uneven, torch.tensor([[known[0], 0.0], known]))
    fixed = Fixed(torch.tensor([[2.0, 1.0, 0.0, 9]]).expand(3, -1), mask_id=3)
    tokens = torch.full((3000, 3), 3)
    nucleus = {"token_temperature": 0.5, "top_p": 0.9}  # 0.87, 0.12 and 0.02 at this temperature
    for steps in (None, 2):
        regime = {"order_temperature": temperature, "steps": steps, **nucleus}
        path = decode(core, fixed, lambda view: scores.expand(len(view.rows), -1), tokens, regime, record=False)
        for row in range(0, 3000, 500):
            expected = luce((scores / temperature).tolist(), path.order[row].tolist())
            assert path.order_logp[row].tolist() == pytest.approx(expected, abs=1e-4)
        share = (path.order[:, 0] == 2).float().mean().item()
        assert share == pytest.approx(math.exp(1.1 / 0.5) / sum(math.exp(s / 0.5) for s in scores.tolist()), abs=0.04)
        assert set(path.tokens.unique().tolist()) == {0, 1}
        assert (path.tokens == 0).float().mean().item() == pytest.approx(math.e**2 / (1 + math.e**2), abs=0.02)


def likelihood(core: Any) -> None:
    denoiser = CountingTable(limit=LIMIT)
    tokens, target = puzzles(denoiser, 5, 8)
    path = decode(core, denoiser, "margin", tokens, {"steps": 4}, target=target)
    assert torch.equal(core.decode.path_logp(denoiser, target, path.order, path.step), path.logp)


def infinite(core: Any) -> None:
    worst, tokens = (lambda view: view.confidence - torch.inf), torch.tensor([[1, 3, 3, 3]])
    path = decode(core, CountingTable(limit=30), worst, tokens, {"order_temperature": 0.1})
    assert path.reveals.tolist() == [3]


def secrecy(core: Any) -> None:
    def scheduler(view: Any) -> Any:
        assert view.reference is None
        return view.confidence

    tokens, target = puzzles(CountingTable(), 3, 6)
    decode(core, CountingTable(), scheduler, tokens, target=target)


def budgets(core: Any) -> None:
    for row, steps in (([7, 1, 1], 4), ([5, 4], 4), ([5, 5, 5], 7), ([14, 23, 24, 9], 7), ([0, 3, 9], 6)):
        assert core.live.spread(torch.tensor([row]), steps)[0].tolist() == apportion(row, steps)


def paces(core: Any) -> None:
    options = {"threshold": (0.6,), "factor": (1.3,), "entropy_bound": (0.7,), "kl_stable": (0.5, 0.004), "dilated": ()}
    for name, values in options.items():
        rule = core.pace.PACES[name](*values)
        denoiser = Calm(limit=LIMIT) if name == "kl_stable" else CountingTable(scale=2.0, limit=LIMIT)
        tokens, _ = puzzles(denoiser, 6, 10, seed=1)
        decode(core, denoiser, "confidence", tokens, {"pace": checked(rule, RULES[name][1], None, [])})


def scores(core: Any) -> None:
    """Formulas on a half-revealed canvas: the real scheduler's test, in short."""
    denoiser = CountingTable(end_ids=(0, 5))
    tokens = torch.tensor([[1, 3, 3, 2, 3, 3, 3, 3, 3, 3]])
    view = view_of(denoiser, tokens, total=torch.tensor([9]))
    view = View(**{**vars(view), "reference": torch.tensor([[1, 0, 2, 2, 4, 5, 6, 0, 1, 2]])})
    hidden, s = view.eligible, core.schedulers
    best, p = view.prices.best, view.prices.logp.exp()
    assert torch.allclose(s.entropy(view)[hidden], -view.prices.entropy)
    content = view.prices.confidence + math.log(math.log(7))
    assert torch.allclose(s.pc_sampler(0.3)(view)[hidden], content - 0.3 * view.index[hidden])
    noise = s.gumbel_confidence(0.5)(view)[hidden] - view.prices.confidence
    assert torch.allclose(noise, 0.5 * 8 / 9 * view.gumbel(s.TIE_NOISE)[hidden], atol=1e-5)
    damp = torch.where((best == 0) | (best == 5), math.log(0.4 + 0.6 / 9), 0.0)
    assert torch.allclose(s.end_damped()(view)[hidden], view.prices.confidence + damp)
    truth = view.reference[hidden]  # pyright: ignore[reportOptionalSubscript]
    others = torch.stack([p[n, [a for a in range(7) if a != t]].max() for n, t in enumerate(truth.tolist())])
    assert torch.allclose(s.gt_margin(view)[hidden], p[torch.arange(8), truth] - others)
    tried = view.confidence[0].argmax()
    after = tokens.clone()
    after[0, tried] = view.best[0, tried]
    rest = view_of(denoiser, after).prices.entropy.mean()
    assert torch.allclose(s.look_ahead(1)(view)[0, tried], -rest - view.entropy[0, tried])
    equal = view_of(Fixed(torch.zeros(40, 3), mask_id=2), torch.full((1, 40), 2))
    assert torch.nonzero(s.top_k_random(4)(equal)[0] > 0)[:, 0].tolist() == [0, 1, 2, 3]


MUTANTS = """
pricing        prices      if forbidden: → if not forbidden:
pricing        prices      others = relative.scatter(1, best[:, None], 0.0) → others = relative
pricing        prices      -torch.log1p(rest) → -torch.log(1 + rest)
pricing        prices      p_best * (1 - others.amax(1)) → p_best * (1 - rest)
pricing        prices      entropy = -(relative → entropy = (relative
pricing        prices      if not bool(torch.isfinite(top).all()): → if False:
protocols      rows_alone  self.seeds[:, None], self.step → self.rows[:, None], self.step
protocols      rows_alone  purpose, self.index) → purpose, torch.arange(self.tokens.shape[1])[None])
protocols      numbers     self.seeds[:, None], self.step → self.seeds[:, None], 0
protocols      numbers     .clamp(max=1 - 2**-24) → .clamp(max=1)
schedulers     plain_loop  return -view.entropy → return view.entropy
schedulers     scores      c * share[:, None] * view.gumbel → c * view.gumbel
schedulers     scores      - decay * view.index → + decay * view.index
schedulers     scores      (1 - floor) * progress → (1 - floor) * (1 - progress)
schedulers     scores      gain = -rest → gain = rest
schedulers     scores      p.scatter(1, truth, -1.0).amax(1) → p.amax(1)
schedulers     scores      among.sort(dim=1, descending=True, stable=True) → among.topk(min(k, among.shape[1]))
pace           plain_loop  keys.sort(dim=1, descending=True → keys.sort(dim=1, descending=False
pace           plain_loop  rank < count[:, None] → rank < count.max().expand(len(count), 1)
pace           paces       (_best(view, keys) & ~sure.any(1, keepdim=True)) → (_best(view, keys) & ~sure.any())
pace           paces       1 - f / (n + 1) → 1 - f / n
pace           paces       entropy.cumsum(1) - entropy.cummax(1).values → entropy.cumsum(1)
pace           paces       (run >= steps) → (run >= steps - 1)
pace           paces       (view.rows[view.at[0]], view.at[1]) → (view.at[0], view.at[1])
pace           paces       stride == coarsest → stride > 0
plackett_luce  draws       .logcumsumexp(1)[:, 1:] → .logcumsumexp(1)[:, :-1]
plackett_luce  draws       rest = scores.masked_fill(taken, -torch.inf) → rest = scores
plackett_luce  draws       < count[:, None] → <= count[:, None]
live           given       hidden = tokens == denoiser.mask_id → hidden = tokens >= 0
live           rows_alone  hidden = hidden & attention → hidden = hidden.clone()
live           plain_loop  (region, self.index // block, length) → (region, torch.arange(length) // block, length)
live           plain_loop  size // budget + (self.block_step < size % budget) → size // budget
live           plain_loop  (self._current() == before, self.block_step + 1, 0) → (before >= 0, self.block_step + 1, 0)
live           plain_loop  torch.where(revealed, chosen, self.tokens) → chosen
live           ends        first_end < first_hidden → first_end < length
live           ends        if denoiser.pad_id is not None else → if denoiser.pad_id else
live           cost        if bool(live.all()): → if bool(live.any()) and self.step:
live           budgets     .clamp(min=1).minimum(count) → .minimum(count)
live           budgets     exact - share * total → exact * 0
decode         cost        live.hidden if getattr(scheduler, "whole", False) else eligible → live.hidden
decode         plain_loop  torch.where(eligible, target[live.rows] → torch.where(eligible, target[: len(live.rows)]
decode         plain_loop  keys.masked_fill(~eligible, -torch.inf), quota → keys, quota
decode         plain_loop  self.count[live.rows] += count → self.count[: len(count)] += count
decode         plain_loop  logp[packed[row, where], chosen[row, where]] → confidence[packed[row, where]]
decode         draws       scores / regime.order_temperature → scores
decode         draws       -torch.inf) / temperature → -torch.inf)
decode         draws       before >= regime.top_p → before + p >= regime.top_p
decode         draws       view.prices.logp / regime.token_temperature → view.prices.logp
decode         likelihood  when[row] >= step[live] → when[row] > step[live]
decode         sharing     torch.where(attention, tokens, -1) → tokens
decode         infinite    scores.clamp(min=-1e30, max=1e30) → scores
decode         secrecy     if oracle and reference is not None else → if reference is not None else
"""
LINES = [line.split(maxsplit=2) for line in MUTANTS.strip().splitlines()]


@pytest.mark.parametrize("check", sorted({check for _, check, _ in LINES}))
def test_the_original_passes(check: str) -> None:
    with mutated() as core:
        globals()[check](core)


@pytest.mark.parametrize(("module", "check", "change"), LINES, ids=[str(n) for n in range(len(LINES))])
def test_the_mutant_is_noticed(module: str, check: str, change: str) -> None:
    old, _, new = change.partition(" → ")
    with mutated(module, old, new) as core, pytest.raises(AssertionError):
        globals()[check](core)
