"""Benchmarks: both sides of a ratio compute the same, bytes and exponents are right. No test looks at a time."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.cli import main as cli
from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.heuristics import confidence
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.cost.flops import LLADA_8B, head_flops, linear_flops, parameters
from unmask_studies.bench import caches, decoding, drafts, learning, loops, policy_cost, suite
from unmask_studies.bench.backbones import backbone, llada_like, share_layer
from unmask_studies.bench.measuring import Finding, TensorBytes, exponent, ratios, time_rounds
from unmask_studies.cli.bench import Bench


def test_llada_and_its_proportions() -> None:
    assert parameters(LLADA_8B) == 8_015_581_184  # as its index of weights has it
    share = head_flops(LLADA_8B, 1) / linear_flops(LLADA_8B)
    for width, layers in ((128, 2), (512, 4)):
        small = llada_like(width, layers)
        assert head_flops(small, 1) / linear_flops(small) == pytest.approx(share, rel=0.02)
        assert small.mask_id == small.vocab_size - 1


def test_one_layer_at_all_depths() -> None:
    """The forward of as many layers as the shape says, all with the same weights."""
    shape = llada_like(128, 3, 50)
    shared, whole = share_layer(shape), backbone(shape)
    assert shared.config == shape
    assert sum(p.numel() for p in shared.parameters()) == sum(
        p.numel() for p in backbone(replace(shape, n_layers=1)).parameters()
    )
    layer = {f"blocks.{n}.{name}": w for n in range(3) for name, w in shared.blocks[0].state_dict().items()}
    whole.load_state_dict({**shared.state_dict(), **layer})
    tokens = torch.randint(49, (2, 12), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shared.hidden(tokens), whole.hidden(tokens), rtol=0, atol=0)


def test_the_policys_own_flops_are_a_small_part_of_llada() -> None:
    """Of the policy alone. What it has priced in blocks is a head over more positions, which FLOPs understate: that is measured."""
    own, priced, weights = (f.value for f in policy_cost.count_flops(LLADA_8B, policy_cost.PolicyCost(), "LLaDA-8B"))
    assert 0 < own < 0.01 < priced
    assert 0 < weights < 0.01


def test_bytes_of_live_tensors() -> None:
    given = torch.zeros(1000)
    with TensorBytes() as counted:
        first = given + 1  # 4000
        view = first[:10]  # no bytes of its own
        second = first * 2  # 8000 together
        del first, view
        third = second + 1  # 8000: the first is gone
        given.add_(1)  # not made here
        del third
    assert counted.peak == 8000
    assert second.shape == (1000,)


def test_exponents_and_ratios() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0]
    assert exponent(sizes, [3 * s**1.5 for s in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [5.0, 5.0, 5.0, 5.0]) == pytest.approx(0)
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    found = Finding.median("x", [3.0, 1.0, 2.0], "s")
    assert (found.value, found.low, found.high, found.n) == (2, 1, 3, 3)


def test_rounds_alternate() -> None:
    calls_made: list[str] = []
    times = time_rounds({"a": lambda: calls_made.append("a"), "b": lambda: calls_made.append("b")}, 2)
    assert calls_made == ["a", "b"] * 3
    assert [len(seconds) for seconds in times.values()] == [2, 2]


@pytest.fixture(scope="module")
def small() -> Transformer:
    return backbone(llada_like(128, 2, 60))


def test_both_sides_reveal_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark refuses to compare different answers."""
    for name in loops.PUBLISHED:
        monkeypatch.delenv(name, raising=False)
    config = decoding.DecodingBench(width=128, layers=2, prompt=6, length=8, block=4, steps=4, repeats=1)
    found = list(decoding.measure_decoding(config))
    assert [f.what.partition(":")[0] for f in found[:3]] == ["LLaDA", "Dream", "Fast-dLLM, dual cache"]
    assert all(f.value > 0 for f in found)
    # What leaving out the head can save: a head of 7 % of the trunk, of which 2.5 of 14 positions remain.
    assert found[-1].what.endswith("LLaDA-8B") and found[-1].value == pytest.approx(1.06, abs=0.02)
    monkeypatch.setattr(loops, "llada", lambda model, prompt, *_: torch.cat([prompt, prompt], 1)[:, :14])
    with pytest.raises(ValueError, match="different tokens"):
        list(decoding.measure_decoding(config))


def test_named_files_are_checked_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without its neighbours, one without the function, and a checkout in which both are."""
    monkeypatch.setattr(decoding, "backbone", lambda shape: pytest.fail("measured before the files were checked"))
    variable = "UNMASK_FAST_DLLM_DECODER"
    file = tmp_path / "alone" / "generate.py"
    file.parent.mkdir()
    file.write_text("from beside.it import nothing\n")
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(ValueError, match=f"{variable} names .* cannot be imported: No module named 'beside'"):
        next(decoding.measure_decoding(decoding.QUICK))
    file = tmp_path / "empty.py"
    file.write_text("")
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(ValueError, match="has no generate_with_dual_cache"):
        next(decoding.measure_decoding(decoding.QUICK))
    monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="or a checkout with llada/generate"):
        next(decoding.measure_decoding(decoding.QUICK))
    checkout = tmp_path / "checkout" / "llada"
    checkout.mkdir(parents=True)
    (checkout / "a_neighbour.py").write_text("generate_with_dual_cache = print\n")
    (checkout / "generate.py").write_text("from a_neighbour import generate_with_dual_cache\n")
    monkeypatch.setenv(variable, str(checkout.parent))
    module = loops.load_published(variable)
    assert module is not None and module.generate_with_dual_cache is print
    assert loops.load_published(variable) is module  # imported once, outside of what is timed


def test_a_published_file_runs_where_one_is_named(
    small: Transformer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "generate.py"
    file.write_text("def generate(model, prompt, **options):\n    return prompt + options['steps']\n")
    monkeypatch.setenv("UNMASK_LLADA_DECODER", str(file))
    prompt = torch.tensor([[1, 2]])
    assert loops.llada(loops.AsPublished(small), prompt, 4, 2, 4).tolist() == [[5, 6]]
    assert decoding.list_sources()["UNMASK_LLADA_DECODER"] == "published file"
    monkeypatch.setenv("UNMASK_LLADA_DECODER", str(tmp_path / "none.py"))
    with pytest.raises(ValueError, match="must name a Python file"):
        loops.llada(loops.AsPublished(small), prompt, 4, 2, 4)


@torch.no_grad()
def test_the_second_forward_is_of_the_same_canvases(small: Transformer) -> None:
    watched = learning.Recorder(small)
    for rows in (3, 5):
        watched.hidden(torch.full((rows, 6), small.mask_id))
    assert watched.forwarded == 8
    watched.repeat(rows_at_once=4)
    assert watched.forwarded == 16
    assert watched.canvases == []


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fake(settings: Any) -> Any:
        yield Finding.median(f"with {settings}", [1.0, 3.0, 2.0], "×")

    monkeypatch.setattr(suite, "SUITE", {"fake": (fake, {"size": 9}, {"size": 1})})
    monkeypatch.setattr("unmask_studies.cli.bench.SUITE", suite.SUITE)
    file = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["unmask", "bench", "fake", "--quick", "--json", str(file)])
    cli.main()
    assert "2 ×" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert written["quick"] is True
    assert written["machine"]["torch"] == torch.__version__
    assert written["benchmarks"]["fake"]["settings"] == {"size": 1}
    assert written["benchmarks"]["fake"]["findings"][0]["low"] == 1.0
    monkeypatch.setattr(sys, "argv", ["unmask", "bench", "fak"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "did you mean 'fake'" in capsys.readouterr().err


def test_accuracy_is_not_measured_where_nothing_can_be_stale() -> None:
    assert load_denoiser("sudoku-4x4-imperfect").config.n_layers == 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="never stale"):
        next(caches.measure_accuracy("sudoku-4x4-imperfect", caches.QUICK))


def test_drafts_save_steps_and_cost_canvases() -> None:
    board, problems = "sudoku-4x4-imperfect", 3
    config = drafts.DraftBench((board,), ("confidence", "confidence:round=1"), (4,), problems, solved=8, repeats=1)
    found = {finding.what: finding for finding in drafts.measure_drafts(config)}
    task, denoiser = SudokuTask.generate(8, 4, None, "test", 0), load_denoiser(board)
    blanks = int((task.puzzles[:problems] == 0).sum())
    plain = found[f"{board}, confidence, no draft: sequential steps a problem"].value
    assert plain == blanks / problems
    drafted = f"{board}, confidence, drafts of 4"
    saved = found[f"{drafted}: fewer sequential steps"].value
    assert saved == pytest.approx(plain / found[f"{drafted}: sequential steps a problem"].value)
    assert saved > 1 and found[f"{drafted}: canvases"].value > 1
    solved = unmask(denoiser, confidence, task.canvas(range(8)), record=False).tokens
    share = task.verify(range(8), solved).exact.float().mean()
    assert found[f"{board}, confidence: solved"].value == pytest.approx(100 * share)
    assert found[f"{board}, confidence:round=1: against the scores as they are"].n == 8


def test_drafts_on_problems_of_a_file(tmp_path: Path) -> None:
    task, file = SudokuTask.generate(2, 4, "7-8", "test", 0), tmp_path / "puzzles.csv"
    rows = zip(task.puzzles.tolist(), task.solutions.tolist(), strict=True)
    file.write_text(
        "puzzle,solution\n" + "".join(",".join("".join(map(str, half)) for half in row) + "\n" for row in rows)
    )
    board = "sudoku-4x4-imperfect"
    config = drafts.DraftBench((board,), ("confidence",), (4,), 2, solved=0, repeats=1, task="sudoku", data=file)
    found = {finding.what: finding for finding in drafts.measure_drafts(config)}
    steps = found[f"{board}, confidence, no draft: sequential steps a problem"].value
    assert steps == (task.puzzles == 0).sum() / 2


@pytest.mark.parametrize("bench", [Bench("caches", denoiser="x", task="sudoku"), Bench("drafts", denoiser="x")])
def test_denoiser_and_task_go_together(bench: Bench) -> None:
    with pytest.raises(ValueError, match="--denoiser and --task go together"):
        bench.run()


def test_the_suite_is_complete() -> None:
    assert set(suite.SUITE) == {
        "caches",
        "policy-cost",
        "decoding",
        "learning",
        "throughput",
        "growth",
        "processes",
        "drafts",
        "boards",
    }
    for run, full, quick in suite.SUITE.values():
        assert callable(run)
        assert type(full) is type(quick)
        assert full != quick
