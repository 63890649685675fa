"""evaluate(): numbers by hand on a toy task, and on real puzzles with a shipped denoiser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable
from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Verdict, View
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, Report, evaluate
from unmask.evaluation.statistics import mcnemar_exact, wilson
from unmask.schedulers.loading import SCHEDULERS, load_scheduler
from unmask.tasks.sudoku.task import SudokuTask

N = 5
NAMES = ("random", "confidence", "expert")
FIELDS = {"scheduler", "exact", "exact_low", "exact_high", "cell", "nll", "denoiser_calls", "seconds"}


@dataclass
class Toy:
    """``n`` rows of noise, of 3 to 8 positions with padding behind them; ``batches`` lists the rows decoded together."""

    n: int = 12
    mask_id: int = 3
    name: str = "toy"
    batches: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.n

    def canvas(self, rows: Sequence[int]) -> Canvas:
        self.batches.append(tuple(rows))
        generator = torch.Generator().manual_seed(0)
        values = torch.randint(0, 3, (self.n, 8), generator=generator)[list(rows)]
        real = torch.arange(8) < torch.tensor([3 + row % 6 for row in rows])[:, None]
        hidden = real & (torch.arange(8) % 3 != 1)
        return Canvas(tokens=values.masked_fill(hidden, self.mask_id), target=values, attention=real)

    def verify(self, rows: Sequence[int], tokens: Tensor) -> Verdict:
        right = tokens == self.canvas(rows).target
        return Verdict(exact=right.all(1), share=right.float().mean(1))

    def stratum(self, row: int) -> str:
        return "odd" if row % 2 else "even"

    def draw(self, row: int, tokens: Tensor) -> str:
        return str(tokens.tolist())


@pytest.fixture(scope="module")
def denoiser() -> Denoiser:
    return load_denoiser("sudoku-9x9-imperfect")


@pytest.fixture(scope="module")
def puzzles() -> SudokuTask:
    return SudokuTask.generate(N, clues="38-42", seed=5)


@pytest.fixture(scope="module")
def report(denoiser: Denoiser, puzzles: SudokuTask) -> Report:
    return evaluate(
        puzzles, denoiser, {name: load_scheduler(name) for name in NAMES}, options=EvaluationOptions(seed=3)
    )


def test_the_puzzles_are_partly_solved(report: Report) -> None:
    """Otherwise the tests below would not cover both branches of the likelihood."""
    solved = "".join(row.solved for row in report.rows)
    assert "0" in solved
    assert "1" in solved


@pytest.mark.parametrize("name", NAMES)
def test_likelihood_is_the_teacher_forced_one(
    report: Report, denoiser: Denoiser, puzzles: SudokuTask, name: str
) -> None:
    """Against the forced order priced from scratch, state by state: rows that were right are not decoded again."""
    canvas = puzzles.canvas(range(N))
    seeds = row_seeds(3, range(N))
    forced = unmask(
        denoiser,
        load_scheduler(name),
        Canvas(canvas.tokens, target=canvas.target, region=canvas.region, seeds=seeds),
        forced=True,
    )
    priced = -trajectory_logp(denoiser, canvas.truth, forced.order).double().sum(1)
    assert report.row(name).nll == pytest.approx(float(priced.mean()), rel=1e-4)


class Mixed(Toy):
    """Every other target is what ``denoiser`` reveals by itself, so that half of the rows are solved."""

    def __init__(self, denoiser: CountingTable, name: str) -> None:
        super().__init__()
        self.denoiser, self.scheduler = denoiser, load_scheduler(name)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        noise = super().canvas(range(self.n))
        seeds = torch.arange(self.n)
        own = unmask(
            self.denoiser,
            self.scheduler,
            Canvas(noise.tokens, target=noise.target, attention=noise.attention, seeds=seeds),
        )
        target = torch.where(torch.arange(self.n)[:, None] % 2 == 0, own.tokens, noise.truth)
        assert noise.attention is not None
        return Canvas(noise.tokens[list(rows)], target[list(rows)], attention=noise.attention[list(rows)])


@pytest.mark.parametrize("ends", [(), (1,)])
@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "expert"])
def test_likelihood_of_every_scheduler(name: str, ends: tuple[int, ...]) -> None:
    """Also where rows stop at an end token: they price nothing behind it, and teacher forcing prices all."""
    denoiser = CountingTable(end_ids=ends, pad_id=0)
    task = Mixed(denoiser, name)
    canvas = task.canvas(range(task.n))
    forced = unmask(
        denoiser,
        task.scheduler,
        Canvas(canvas.tokens, target=canvas.target, attention=canvas.attention, seeds=torch.arange(12)),
        forced=True,
    )
    priced = -trajectory_logp(denoiser, canvas.truth, forced.order, attention=canvas.attention).double().sum(1)
    row = evaluate(task, denoiser, {name: task.scheduler}, options=EvaluationOptions(batch=12)).rows[0]
    assert 0 < row.exact < 1 or name.startswith("gt_") or name in ("best", "worst")
    assert row.nll == pytest.approx(float(priced.mean()), rel=1e-6)


def test_batches_change_no_number(report: Report, denoiser: Denoiser, puzzles: SudokuTask) -> None:
    names = ("random", "expert")
    again = evaluate(
        puzzles, denoiser, {name: load_scheduler(name) for name in names}, options=EvaluationOptions(seed=3, batch=2)
    )
    for name in names:
        a, b = report.row(name), again.row(name)
        assert (a.solved, a.exact, a.cell, a.steps) == (b.solved, b.exact, b.cell, b.steps)
        assert a.denoiser_calls == b.denoiser_calls
        assert a.nll == pytest.approx(b.nll, rel=1e-5)


def test_batches_change_no_bit_with_an_integer_denoiser() -> None:
    """No rounding with a denoiser in integers. Rows differ in length, so they leave at different steps."""
    results = []
    for batch in (5, 12):
        schedulers = {name: load_scheduler(name) for name in ("random", "confidence", "gumbel_confidence")}
        decodings = {"sequential": Decoding(), "block 2": Decoding(block=2), "3 steps": Decoding(steps=3)}
        toy = evaluate(Toy(), CountingTable(), schedulers, decodings, EvaluationOptions(batch=batch, seed=1))
        results.append([(row.solved, row.cell, row.nll, row.denoiser_calls, row.steps) for row in toy.rows])
    assert results[0] == results[1]


def test_the_seed_changes_random_orders_only() -> None:
    schedulers = {name: load_scheduler(name) for name in ("random", "confidence")}
    first, second = (
        evaluate(Toy(), CountingTable(), schedulers, options=EvaluationOptions(seed=seed)) for seed in (0, 1)
    )
    assert first.row("random").nll != second.row("random").nll
    assert first.row("confidence").nll == second.row("confidence").nll


def test_every_scheduler_sees_the_same_problems_and_the_same_seeds() -> None:
    task, seen = Toy(), {"a": [], "b": []}

    def spy(name: str):
        def score(view: View) -> Tensor:
            seen[name].append((view.seeds.tolist(), view.tokens.tolist(), view.uniform(7).tolist()))
            return -view.index.float()

        return score

    evaluate(task, CountingTable(), {"a": spy("a"), "b": spy("b")}, options=EvaluationOptions(limit=7, batch=4))
    assert seen["a"] == seen["b"]
    assert set(task.batches) == {(0, 1, 2, 3), (4, 5, 6)}


class Judged(Toy):
    """Verdicts written down: two schedulers, six problems."""

    first = (True, True, True, True, False, False)
    second = (True, False, False, False, True, False)

    def __init__(self) -> None:
        super().__init__(n=6)
        self.turn = 0

    def verify(self, rows: Sequence[int], tokens: Tensor) -> Verdict:
        outcome = (self.second, self.first)[self.turn]
        self.turn += 1
        return Verdict(exact=torch.tensor(outcome), share=torch.tensor(outcome).float())


def test_wilson_pairs_and_strata_by_hand() -> None:
    schedulers = {"base": load_scheduler("left_to_right"), "new": load_scheduler("right_to_left")}
    report = evaluate(Judged(), CountingTable(), schedulers, options=EvaluationOptions(baseline="base"))
    base, new = report.rows
    assert (base.exact, new.exact) == (2 / 6, 4 / 6)
    assert (new.exact_low, new.exact_high) == wilson(4, 6)
    # z = 1.96: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n) with p = 2/3, n = 6.
    assert new.exact_low == pytest.approx(0.3000, abs=2e-4)
    assert new.exact_high == pytest.approx(0.9032, abs=2e-4)
    assert base.versus is None
    assert new.versus is not None
    # Problems 1, 2 and 3 are won, problem 4 is lost.
    assert (new.versus.baseline, new.versus.won, new.versus.lost) == ("base", 3, 1)
    assert new.versus.difference == pytest.approx(2 / 6)
    assert new.versus.p == mcnemar_exact(3, 1) == pytest.approx(2 * (1 + 4) / 16)
    assert new.versus.low <= new.versus.difference <= new.versus.high
    # Even problems are 0, 2, 4 and odd ones 1, 3, 5.
    assert {label: (part.n, part.exact) for label, part in new.strata.items()} == {
        "even": (3, 2 / 3),
        "odd": (3, 2 / 3),
    }
    assert {label: (part.n, part.exact) for label, part in base.strata.items()} == {"even": (3, 2 / 3), "odd": (3, 0.0)}
    assert new.solved == "111100"


def test_strata_add_up(report: Report) -> None:
    for row in report.rows:
        assert sum(part.n for part in row.strata.values()) == row.n == N
        assert sum(part.n * part.exact for part in row.strata.values()) == pytest.approx(row.exact * N)


def test_shares_stay_shares_and_calls_count_canvases(report: Report, puzzles: SudokuTask) -> None:
    blanks = (puzzles.puzzles == 0).sum(1).mean()
    for row in report.rows:
        assert 0 <= row.cell_low <= row.cell <= row.cell_high <= 1
        assert row.denoiser_calls == row.steps == pytest.approx(blanks)


def test_the_default_baseline_is_confidence() -> None:
    schedulers = {name: load_scheduler(name) for name in ("confidence", "margin")}
    assert evaluate(Toy(), CountingTable(), schedulers).row("margin").versus is not None
    assert evaluate(Toy(), CountingTable(), {"margin": schedulers["margin"]}).row("margin").versus is None
    with pytest.raises(ValueError, match="baseline 'entropy' is not among the schedulers"):
        evaluate(Toy(), CountingTable(), schedulers, options=EvaluationOptions(baseline="entropy"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "nothing to evaluate"),
        ({"limit": -3}, "nothing to evaluate"),
        ({"batch": 0}, "batch: expected a number greater than or equal to 1"),
        ({"batch": -1}, "batch: expected a number greater"),
        ({"seed": -1}, "seed: expected a number greater"),
        ({"seed": 2**31}, "seed: expected a number less"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(Toy(), CountingTable(), {"random": load_scheduler("random")}, options=EvaluationOptions(**options))
    with pytest.raises(ValueError, match="at least one scheduler"):
        evaluate(Toy(), CountingTable(), {})


def test_the_json_has_no_nan(tmp_path: Path, report: Report) -> None:
    report.write(tmp_path / "a.json", command="unmask evaluate")
    stored = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert stored["n"] == N
    assert [row["scheduler"] for row in stored["rows"]] == list(NAMES)
    assert all(row.keys() >= FIELDS for row in stored["rows"])
    assert stored["rows"][0]["nll"] == pytest.approx(report.rows[0].nll)
    # One problem has no interval, and a likelihood that was not measured is NaN: both are null in JSON.
    schedulers = {name: load_scheduler(name) for name in ("confidence", "margin")}
    evaluate(Toy(), CountingTable(), schedulers, options=EvaluationOptions(limit=1, likelihood=False)).write(
        tmp_path / "b.json"
    )
    row = json.loads((tmp_path / "b.json").read_text(), parse_constant=pytest.fail)["rows"][1]
    assert row["nll"] is None
    assert row["versus"]["low"] is None
