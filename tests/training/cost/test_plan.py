"""The plan's arithmetic against the real modules: counted FLOPs, counted forwards, counted bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.commands import Call
from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.presets import load_preset
from unmask.schedulers.policy import PolicyConfig
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.cost.flops import head_flops, parameters, policy_flops, trunk_flops
from unmask.training.cost.plan import (
    DEVICES,
    Work,
    forwards_per_step,
    measure,
    memory_bytes,
    peak_rate,
    plan,
    policy_of,
    utilisation,
    validations,
    work_of,
)
from unmask.training.cost.preflight import preflight
from unmask.training.cost.shapes import SHAPES, TEXT_POLICY, shape_of
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun, build_policy
from unmask.training.policy.trainer import PolicyJob, train_policy

GROUPED = TransformerConfig(
    vocab_size=50, width=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn=40, mask_id=49, qkv_bias=True, head_rows=49
)
BOARDS = SudokuData(size=4, puzzles=60, clues="5-8")
SMALL = PolicyRun(
    "sudoku-4x4",
    PolicyConfig(width=8, n_layers=2),
    data=BOARDS,
    training=PolicyTraining(steps=3, prompts=6, states=16, validate=4, validate_every=2),
)


def counted(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", [GROUPED, "sudoku-4x4"], ids=["grouped", "grid"])
def test_a_forward_is_what_the_counter_counts(shape: TransformerConfig | str) -> None:
    denoiser = load_denoiser(shape) if isinstance(shape, str) else Transformer(shape)
    assert isinstance(denoiser, Transformer)
    config, length = denoiser.config, 16
    tokens = torch.full((3, length), config.mask_id)
    with torch.no_grad():
        assert counted(lambda: denoiser.hidden(tokens)) == 3 * trunk_flops(config, length)
        assert counted(lambda: denoiser.logits(torch.zeros(7, config.width))) == head_flops(config, 7)
    assert sum(p.numel() for p in denoiser.parameters()) == parameters(config)


@pytest.mark.parametrize("kind", ["mlp", "transformer", "hidden", "grid"])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_a_policys_scores_are_what_the_counter_counts(kind: str, n_layers: int) -> None:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    policy = build_policy(PolicyConfig(kind=kind, width=12, n_layers=n_layers, n_heads=2), denoiser, "sudoku-4x4")
    config, canvas = policy.config, BOARDS(0, 3)
    path = unmask(denoiser, policy, canvas, forced=True, observe=policy.observe)
    assert path.states is not None
    seen = {name: value[:5] for name, value in path.states.observed.items()}
    # In training: a TransformerEncoder's fast path in evaluation is one operator that the counter does not know.
    assert counted(lambda: policy.train().score(seen)) == 5 * policy_flops(config, denoiser.config, 16)


def test_forwards_are_those_of_a_training() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    shape = shape_of("sudoku-4x4")
    policy = policy_of(SMALL, denoiser)
    records = list(train_policy(PolicyJob(denoiser, policy, BOARDS, SMALL.training)))
    hidden = [int((BOARDS(step, 6).tokens == 0).sum()) for step in range(3)]
    assert records[-1]["denoiser_calls"] == sum(hidden)  # a group of one: every state is a forward
    exact = replace(work_of(SMALL, shape), hidden=tuple((BOARDS(0, 6).tokens == 0).sum(1).tolist()))
    assert forwards_per_step(exact) == pytest.approx(hidden[0])
    assert exact.validations == 12 and validations(SMALL.training) == 3


def test_relative_rewards_cost_a_forward_per_hidden_position() -> None:
    denoiser, shape = load_denoiser("sudoku-4x4"), shape_of("sudoku-4x4")
    config = replace(SMALL, training=replace(SMALL.training, relative=True))
    first = next(iter(train_policy(PolicyJob(denoiser, policy_of(config, denoiser), BOARDS, config.training))))
    hidden = (BOARDS(0, 6).tokens == 0).sum(1)
    exact = replace(work_of(config, shape), hidden=tuple(hidden.tolist()))
    assert first["denoiser_calls"] == forwards_per_step(exact) == 2 * int(hidden.sum())
    needed = preflight(denoiser, policy_of(config, denoiser), BOARDS(0, 6), config.training)
    assert needed.forwards == 2 * int(hidden.sum())


@pytest.mark.parametrize(("budget", "group"), [(None, 3), (3, 2)])
def test_forwards_of_groups_and_budgets_are_a_close_bound(budget: int | None, group: int) -> None:
    denoiser, canvas = load_denoiser("sudoku-4x4-imperfect"), BOARDS(0, 6)
    training = replace(SMALL.training, budget=budget, group=group)
    rollout = collect(denoiser, policy_of(SMALL, denoiser), canvas, training, torch.arange(6 * group))
    work = Work(16, tuple((canvas.tokens == 0).sum(1).tolist()), prompts=6, group=group, budget=budget)
    total, _ = rollout.totals["trajectory_steps"]
    assert total == pytest.approx(6 * group * work.mean_turns)
    calls, _ = rollout.totals["forwards_per_step"]
    assert calls <= forwards_per_step(work) + 1e-9
    assert calls > 0.5 * forwards_per_step(work)


def test_kept_states_take_the_bytes_that_are_planned() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    canvas = BOARDS(0, 4)
    work = Work(16, tuple((canvas.tokens == 0).sum(1).tolist()), prompts=4)
    for kind in ("mlp", "grid", "hidden"):
        policy = build_policy(PolicyConfig(kind=kind, width=4), denoiser, "x")
        states = unmask(denoiser, policy, canvas, forced=True, observe=policy.observe).states
        assert states is not None
        fields = [v for v in vars(states).values() if isinstance(v, torch.Tensor)] + list(states.observed.values())
        kept = sum(tensor.numel() * tensor.element_size() for tensor in fields)
        assert memory_bytes(denoiser.config, policy.config, work)["states"] == pytest.approx(2 * kept, rel=0.1), kind


def test_a_measured_rate_is_the_arithmetic_over_the_time() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    shape, policy = shape_of("sudoku-4x4"), policy_of(SMALL, denoiser)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    ticks = iter([0.0, 2.0, 7.0])
    canvas = BOARDS(0, 4)
    rate = measure(denoiser, policy, canvas, SMALL.training, shape, clock=lambda: next(ticks))
    work = Work(16, tuple((canvas.tokens == 0).sum(1).tolist()), prompts=4, steps=10)
    found = plan(shape, policy.config, work, rate)
    assert found.step_seconds == pytest.approx(2.0 + 5.0)
    assert found.hours == pytest.approx(70 / 3600)
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in policy.named_parameters())


def test_the_papers_figure_is_consistent() -> None:
    """3.2 minutes on 4 H200, G = 6, B = 3, L = 512, a rollout and a recomputation: a plausible share of the peak."""
    device = DEVICES["h200"]
    work = Work(512, (512,), prompts=3, group=6, forwards=2)
    found = plan(SHAPES["llada-8b"], TEXT_POLICY, work, peak_rate(device, 0.4), 4, device)
    by_hand = 2 * 3 * (1 + 6 * 511) * (512 * 2 * 6.98e9)  # forwards × positions × two FLOPs per weight of the blocks
    assert found.rollout_flops == pytest.approx(by_hand, rel=0.1)
    assert 0.1 < utilisation(found, 192.0, device, 4) < 0.3
    assert found.devices == 3 and "4 devices cannot share 3 prompts" in found.notes[0]
    once = plan(SHAPES["llada-8b"], TEXT_POLICY, replace(work, forwards=1), peak_rate(device, 0.4), 3)
    assert once.rollout_flops == pytest.approx(found.rollout_flops / 2, rel=0.01)


def test_published_shapes_have_their_published_sizes() -> None:
    sizes = {"llada-8b": 8.02e9, "dream-7b": 7.62e9, "smdm-1b": 1.14e9}
    for name, size in sizes.items():
        assert parameters(shape_of(name)) == pytest.approx(size, rel=0.02), name


def test_devices_share_prompts() -> None:
    shape, rate = shape_of("sudoku-9x9"), peak_rate(DEVICES["a100"], 0.5)
    work = Work(81, (50,), prompts=8)
    alone = plan(shape, PolicyConfig(), work, rate)
    assert plan(shape, PolicyConfig(), work, rate, 4).step_seconds == pytest.approx(alone.step_seconds / 4)
    assert plan(shape, PolicyConfig(), work, rate, 5).step_seconds == pytest.approx(alone.step_seconds / 4)
    little = replace(DEVICES["a100"], memory=1e6)
    assert "do not fit a device" in plan(shape, PolicyConfig(), work, rate, 1, little).notes[0]


def test_the_command(command: Call, tmp_path: Path) -> None:
    code, out, err = command(
        "plan", "--model", "llada-8b", "--devices", "4", "--recompute", "--observed", "192", "--json", "p.json"
    )
    assert (code, err) == (0, "")
    assert "denoiser forwards" in out and "of their peak" in out
    stored = json.loads((tmp_path / "p.json").read_text())
    assert stored["forwards"] == 2 * 3 * (1 + 6 * 511)
    assert 0.1 < stored["implied_utilisation"] < 0.3
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text((tmp_path / "p.json").read_text())
    for words, message in (
        (("--model", "llada-9b"), "did you mean 'llada-8b'"),
        (("--device", "h201"), "did you mean 'h200'"),
        (("--measure",), "--preset"),
        (("--answer", "600"), "1 to 512"),
        (("--devices", "0"), "at least 1"),
        (("--utilisation", "2"), "(0, 1]"),
        (("--model", "folder"), "none of this library"),
    ):
        code, _, err = command("plan", *words)
        assert code == 2 and err.count("\n") == 1 and message in err, (words, err)


def planned_and_spent(seed: int) -> tuple[float, float]:
    """CPU seconds of a short 9x9 training: by a measured plan, and as they then were. Other processes do not change them."""
    config = load_preset("sas-sudoku-9x9-imperfect", PolicyRun, "train")
    training = replace(config.training, steps=3, prompts=6, validate=6, validate_every=3, seed=seed)
    boards = SudokuData(puzzles=64, clues="26-42", seed=seed)
    config = replace(config, training=training, data=boards)
    denoiser, shape = load_denoiser(config.denoiser), shape_of(config.denoiser)
    policy, canvas = policy_of(config, denoiser), boards(0, 6)
    rate = measure(denoiser, policy, canvas, training, shape, clock=time.process_time)
    found = plan(shape, policy.config, work_of(config, shape), rate)
    held_out = SudokuTask.generated(6, 9, config.validation, "validation", seed + 1)
    validation = held_out.canvas(range(6))
    torch.optim.AdamW(policy.parameters())  # the first optimizer imports torch's compiler
    began = time.process_time()
    list(train_policy(PolicyJob(denoiser, policy, boards, training, validation)))
    return 3600 * found.hours, time.process_time() - began


@pytest.mark.slow
def test_a_measured_plan_is_what_happens() -> None:
    ratios = []
    for seed in range(3):
        planned, spent = planned_and_spent(seed)
        ratios.append(planned / spent)
        print(f"planned {planned:.1f} s, spent {spent:.1f} s: {planned / spent:.2f}")
    assert 0.8 < sorted(ratios)[1] < 1.2
