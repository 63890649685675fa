"""Studies on Sudoku: tables hold what was measured, τ follows its definition, trainings are found or run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from support.studies import run, text
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.report import page
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes, expert_order
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask_studies.catalogue import load_study
from unmask_studies.reports import find_leader, join_reports
from unmask_studies.sets import Decoded, Sets, decode_boards
from unmask_studies.sudoku.ablations import Ablations
from unmask_studies.sudoku.failures import first_wrong
from unmask_studies.sudoku.heatmap import KINDS, mean_place, reveal_classes
from unmask_studies.sudoku.schedulers import SudokuSchedulers
from unmask_studies.sudoku.tau import READINGS, expert_pairs, relevant_pairs, tau_eq, taus
from unmask_studies.sudoku.training import Training
from unmask_studies.tables import to_markdown
from unmask_studies.training_runs import is_finished, read_curve, read_history, transfer_options

pytestmark = pytest.mark.usefixtures("unchecked")

SMALL = SudokuSchedulers(
    denoisers=("sudoku-4x4-imperfect",),
    schedulers=("random", "confidence", "sas", "gt_logp"),
    sets=Sets(generated=12, clues="4-8", size=4, limit=12),
)


def test_the_table_holds_what_evaluate_measures(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "study")
    task, denoiser = SudokuTask.generate(12, 4, "4-8", "test", 0), load_denoiser("sudoku-4x4-imperfect")
    schedulers = {name: load_scheduler(name, denoiser, "sudoku-4x4-imperfect") for name in SMALL.schedulers}
    expected = evaluate(task, denoiser, schedulers, options=EvaluationOptions(likelihood=False))
    for mine, theirs in zip(found.evaluations[0].rows, expected.rows, strict=True):
        assert (mine.solved, mine.versus) == (theirs.solved, theirs.versus)
        assert (mine.cell, mine.denoiser_calls) == (theirs.cell, theirs.denoiser_calls)
    table = found.tables[0]
    assert [row[0] for row in table.rows] == ["random", "confidence", "learned (SAS)", "oracle: gt_logp"]
    assert [row[2] for row in table.rows] == ["", "", "95.0", ""]  # of boards of this size
    html = page.render(page.gather([tmp_path / "study"]))
    assert "learned (SAS)" in html and "data:image/svg+xml" in html


def one_row(scheduler: str, solved: str) -> dict[str, Any]:
    task, denoiser = SudokuTask.generate(1, 4, "8", "test", 0), load_denoiser("sudoku-4x4")
    report = evaluate(
        task, denoiser, {scheduler: load_scheduler("confidence")}, options=EvaluationOptions(likelihood=False)
    )
    row = replace(report.rows[0], n=len(solved), solved=solved, exact=solved.count("1") / len(solved), versus=None)
    return json.loads(
        json.dumps({**vars(report), "n": len(solved), "rows": [vars(row)]}, default=vars).replace("NaN", "null")
    )


def test_a_leader_needs_every_paired_interval() -> None:
    clear = join_reports(
        [one_row("confidence", "0" * 40 + "1" * 40), one_row("margin", "1" * 70 + "0" * 10)], "confidence"
    )
    assert find_leader(clear) == "margin"
    close = join_reports([one_row("confidence", "01" * 40), one_row("margin", "01" * 39 + "11")], "confidence")
    assert find_leader(close) is None
    oracle = join_reports(
        [one_row("confidence", "0" * 80), one_row("gt_logp", "1" * 80), one_row("margin", "0" * 80)], "margin"
    )
    assert find_leader(oracle) is None
    versus = oracle.row("gt_logp").versus
    assert versus is not None and versus.won == 80


# Kendall's τ.


def slow_tau(puzzle: np.ndarray, solution: np.ndarray, rank: np.ndarray, reading: str) -> float:
    """The definition, pair by pair, one board at a time."""
    order = [int(cell) for cell in expert_order(puzzle[None], solution[None]).order[0] if cell >= 0]
    board, concordant, discordant = puzzle.copy(), 0, 0
    for t, now in enumerate(order):
        classes = cell_classes(board)
        for later in order[t + 1 :]:
            if classes[later] == classes[now]:
                continue
            if reading == "hierarchy" and classes[later] == FALLBACK:
                continue
            concordant += rank[now] < rank[later]
            discordant += rank[now] > rank[later]
        board[now] = solution[now]
    pairs = concordant + discordant
    return (concordant - discordant) / pairs if pairs else float("nan")


@pytest.fixture(scope="module")
def nine() -> SudokuTask:
    return SudokuTask.generate(6, clues="24-30")


@pytest.mark.parametrize("reading", READINGS)
def test_tau_is_its_definition(nine: SudokuTask, reading: str) -> None:
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.permutation(81) for _ in range(len(nine))])
    expected = [slow_tau(p, s, r, reading) for p, s, r in zip(nine.puzzles, nine.solutions, ranks, strict=True)]
    np.testing.assert_allclose(taus(nine, ranks)[reading], expected)
    assert len(set(np.round(expected, 6))) > 3


def test_the_expert_agrees_with_itself_and_not_with_its_reverse(nine: SudokuTask) -> None:
    forth = np.zeros((len(nine), 81), int)
    for row, pairs in enumerate(expert_pairs(nine)):
        forth[row, pairs.order] = np.arange(len(pairs.order))
    for reading in READINGS:
        assert set(taus(nine, forth)[reading]) == {1.0}
        assert set(taus(nine, -forth)[reading]) == {-1.0}


def test_equivalent_moves_may_change_places(nine: SudokuTask) -> None:
    pairs = expert_pairs(nine)[0]
    n = len(pairs.order)
    t = next(t for t in range(n - 1) if not pairs.literal[t, t + 1])
    rank = np.zeros(81, int)
    rank[pairs.order] = np.arange(n)
    rank[pairs.order[[t, t + 1]]] = rank[pairs.order[[t + 1, t]]]
    assert tau_eq(rank, pairs.order, pairs.literal) == 1.0
    t = next(t for t in range(n - 1) if pairs.literal[t, t + 1])
    rank[pairs.order] = np.arange(n)
    rank[pairs.order[[t, t + 1]]] = rank[pairs.order[[t + 1, t]]]
    assert tau_eq(rank, pairs.order, pairs.literal) < 1.0


def test_tau_is_undefined_where_all_moves_are_equivalent() -> None:
    task = SudokuTask.generate(1, 4, "8", "test", 3)
    puzzle = task.solutions[0].copy()
    puzzle[:2] = 0  # two naked singles
    pairs = relevant_pairs(puzzle, task.solutions[0], np.array([0, 1]))
    assert not pairs.literal.any()
    assert np.isnan(tau_eq(np.arange(16), pairs.order, pairs.literal))


def test_the_papers_numbers_of_tau_contradict_each_other() -> None:
    from unmask_studies.paper_numbers import TAU

    mean, positive, high = TAU["sas"]
    assert mean > high * 1.0 + (positive - high) * 0.5


# Failures and heat maps.


def test_first_wrong_reveal() -> None:
    solutions = np.array([[1, 2, 3, 4]] * 3)
    order = np.array([[3, 1, 0], [2, 0, -1], [0, 1, 2]])
    tokens = np.array([[9, 9, 3, 4], [1, 2, 3, 4], [1, 2, 9, 4]])
    assert first_wrong(Decoded(order, tokens), solutions).tolist() == [1, -1, 2]


def test_decodings_are_those_of_evaluate() -> None:
    task, name = SudokuTask.generate(10, 4, "4-6", "test", 1), "sudoku-4x4-imperfect"
    found = decode_boards(task, name, "random", seed=3)
    denoiser = load_denoiser(name)
    report = evaluate(
        task, denoiser, {"random": load_scheduler("random")}, options=EvaluationOptions(seed=3, likelihood=False)
    )
    assert "".join(str(int(right)) for right in (found.tokens == task.solutions).all(1)) == report.rows[0].solved
    failed = first_wrong(found, task.solutions.astype(np.int64)) >= 0
    assert (failed == ~(found.tokens == task.solutions).all(1)).all() and failed.any()
    ranks = found.ranks()
    assert ((ranks >= 0) == (task.puzzles == 0)).all()


def test_a_mean_place_is_over_the_puzzles_that_hide_the_cell() -> None:
    found = Decoded(np.array([[0, 1, 2], [2, 0, -1]]), np.ones((2, 4), int))
    np.testing.assert_array_equal(mean_place(found), [0.5, 0.5, 0.5, np.nan])


def test_classes_of_reveals() -> None:
    task = SudokuTask.generate(1, clues="rao", seed=4)
    order = expert_order(task.puzzles, task.solutions)
    cells = order.order[0][order.order[0] >= 0].astype(int)
    kinds = reveal_classes(task.puzzles[0], task.solutions[0].astype(int), cells)
    assert kinds == [min(int(technique), 2) for technique in order.technique[0][: len(cells)]]
    late = reveal_classes(task.puzzles[0], task.solutions[0].astype(int), cells[::-1])
    assert KINDS[late[0]] != "naked single" and KINDS[late[-1]] == "naked single"


# Runs of trained policies.

NAME = "sas-sudoku-4x4-imperfect"
BOARDS = Sets(generated=12, clues="4-6", size=4)
ABLATIONS = Ablations(denoiser="sudoku-4x4-imperfect", presets=(NAME,), baseline=NAME, steps=1, validate=4, sets=BOARDS)


def test_ablations_read_finished_runs_and_no_others(tmp_path: Path) -> None:
    config = load_preset(NAME, PolicyRun, "train")
    training = replace(config.training, steps=1, prompts=4, validate=4, validate_every=1, save_every=1)
    runs = tmp_path / "runs"
    for seed in ("", "@8"):
        list(
            run_policy_training(
                replace(config, data=replace(cast(Any, config.data), puzzles=50), training=training),
                runs / f"{NAME}{seed}",
            )
        )
    (runs / f"{NAME}@9").mkdir()
    (runs / f"{NAME}@9" / "config.json").write_text("{}")  # a training in progress
    found = run(replace(ABLATIONS, presets=(NAME, "sas-sudoku-4x4"), runs=runs, train=False), tmp_path / "study")
    assert [row[0] for row in found.tables[0].rows] == ["confidence", NAME]
    assert "Not trained: sas-sudoku-4x4." in found.tables[0].note
    pieces = sorted(path.name for path in (tmp_path / "study" / "pieces").iterdir())
    assert pieces == ["confidence_None.json", f"{NAME}_8.json", f"{NAME}_None.json"]
    assert sorted(path.name for path in (runs / f"{NAME}@9").iterdir()) == ["config.json"]
    assert not (tmp_path / "study" / "runs").exists()


def test_ablations_train_what_is_missing(tmp_path: Path) -> None:
    run(ABLATIONS, tmp_path / "study")
    assert is_finished(tmp_path / "study" / "runs" / NAME)
    history = read_history(tmp_path / "study" / "runs" / NAME)
    assert history["steps"] == 1 and history["calls"] > 0
    assert history["seed"] == load_preset(NAME, PolicyRun, "train").training.seed
    with pytest.raises(ValueError, match="not among the presets"):
        replace(ABLATIONS, baseline="rival-upo")


def test_the_curves_of_a_training(tmp_path: Path) -> None:
    """Two steps, validated at the start and after each; the table's rewards and shares are those of the run's own log."""
    study = Training(presets=(NAME,), names=("ours",), steps=2, validate=8, validate_every=1, ends=1, prompts=3)
    found = run(study, tmp_path / "study")
    trained = tmp_path / "study" / "runs" / NAME
    records = Run(trained).metrics()
    row = [text(cell) for cell in found.tables[0].rows[0]]
    first, last = (f"{records[at]['return']:.2f}".replace("-", "−") for at in (0, 1))
    assert row[2].startswith(first) and row[3].startswith(last) and first != last
    shares = [share for _, share in read_curve(trained)]
    assert len(shares) == 3
    assert [cell.split()[0] for cell in row[4:6]] == [f"{100 * share:.1f}" for share in (shares[0], max(shares))]
    assert (row[1], row[6]) == (f"{records[-1]['denoiser_calls']:,}", "8")
    assert (tmp_path / "study" / "training.svg").exists()
    with pytest.raises(ValueError, match="is a training of 2 steps, not of 3"):
        run(replace(study, steps=3, runs=tmp_path / "study" / "runs"), tmp_path / "longer")
    with pytest.raises(ValueError, match=r"ends must be in 1 \.\. 2"):
        replace(study, ends=3)


def test_a_rival_changes_on_another_board_what_it_changes_on_its_own() -> None:
    base, rival = (load_preset(name, PolicyRun, "train") for name in ("ablation-all-action", "rival-upo"))
    small = load_preset("sas-sudoku-4x4-imperfect", PolicyRun, "train")
    moved = transfer_options(rival, base, small)
    training = moved.training
    assert (training.reward, training.advantage, training.beta, training.group) == ("terminal", "trajectory", 0.01, 6)
    assert (training.steps, training.lr) == (small.training.steps, small.training.lr)
    assert (moved.denoiser, moved.policy, moved.data) == (small.denoiser, small.policy, small.data)


# Small versions of the studies of shipped schedulers.

SHRUNK: dict[str, Any] = {
    "tau": {"denoiser": "sudoku-4x4", "schedulers": ("random", "confidence"), "draws": 2},
    "failures": {"denoiser": "sudoku-4x4-imperfect", "schedulers": ("random", "confidence")},
    "heatmap": {"denoiser": "sudoku-4x4-imperfect", "schedulers": ("random", "confidence")},
    "difficulty": {"denoisers": ("sudoku-4x4-imperfect",), "schedulers": ("confidence", "sas")},
}


@pytest.mark.parametrize("name", SHRUNK)
def test_small_studies_of_shipped_schedulers(name: str, tmp_path: Path) -> None:
    sets = Sets(generated=10, clues="5-8", size=4, limit=10)
    study = replace(load_study(name, quick=True), sets=sets, **SHRUNK[name])
    found = run(study, tmp_path / "study")
    assert found.tables and found.figures
    for figure in found.figures:
        assert (tmp_path / "study" / f"{figure}.svg").read_text().lstrip().startswith("<?xml")
    assert to_markdown(found.tables, "unmask").count("| ") > 6


def test_kinds_of_policies_are_trained_by_one_recipe_and_compared_on_the_same_puzzles(tmp_path: Path) -> None:
    study = load_study("kinds", quick=True)
    found = run(study, tmp_path / "study")
    runs = tmp_path / "study" / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["general@0", "general@1", "mlp-grpo@0", "mlp-grpo@1"]
    rows = [[text(cell) for cell in row] for row in found.tables[0].rows]
    assert [row[0] for row in rows] == ["confidence", "mlp-grpo", "general"]
    curves = [[share for _, share in read_curve(runs / f"general@{seed}")] for seed in (0, 1)]
    start, best = (np.mean([pick(curve) for curve in curves]) for pick in (lambda curve: curve[0], max))
    assert rows[2][5] == f"{100 * start:.1f} → {100 * best:.1f}"
    calls = [Run(runs / f"mlp-grpo@{seed}").metrics()[-1]["denoiser_calls"] for seed in (0, 1)]
    assert rows[1][6] == f"{np.mean(calls):,.0f}"
    assert (tmp_path / "study" / "kinds.svg").exists()
    ours, theirs = (study.recipe(kind, 1) for kind in ("general", "mlp-grpo"))
    assert ours.training.objective == "regression" and theirs.training.objective == "grpo"
    assert (ours.data, ours.training.steps, ours.training.seed) == (theirs.data, theirs.training.steps, 1)
    with pytest.raises(ValueError, match="expected kinds among mlp-grpo"):
        replace(study, kinds=("grid",))
