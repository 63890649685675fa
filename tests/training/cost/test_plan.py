"""The plan's arithmetic against the real modules: counted FLOPs, counted forwards, counted bytes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.commands import Call
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.presets import load_preset
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.cost.flops import (
    SHAPES,
    TEXT_POLICY,
    head_flops,
    linear_flops,
    parameters,
    policy_flops,
    shape_of,
    trunk_flops,
)
from unmask.training.cost.plan import (
    DEVICES,
    batch_cost,
    implied_utilisation,
    measure_rate,
    peak_rate,
    plan,
    weigh_drafts,
)
from unmask.training.cost.preflight import Work, preflight, step_memory
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import choose_method
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun
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


def new_policy(config: PolicyRun = SMALL) -> OrderPolicy:
    return build_policy(config.policy, load_denoiser(config.denoiser), config.denoiser)


def hidden_in(canvas: Canvas) -> tuple[int, ...]:
    return tuple((canvas.tokens == 0).sum(1).tolist())


def trunk_by_hand(c: TransformerConfig, length: int) -> int:
    """Two FLOPs per weight of the projections and the FFN, and attention's two products."""
    width = c.head_width or c.width // c.n_heads
    kv = (c.n_kv_heads or c.n_heads) * width
    weights = 2 * c.width * c.n_heads * width + 2 * c.width * kv + 3 * c.width * c.ffn
    return c.n_layers * (2 * length * weights + 4 * length**2 * c.n_heads * width)


@pytest.mark.parametrize("shape", [GROUPED, "sudoku-4x4", *SHAPES], ids=["grouped", "grid", *SHAPES])
def test_counted_flops_equal_the_closed_form(shape: TransformerConfig | str) -> None:
    config = shape_of(shape) if isinstance(shape, str) else shape
    assert trunk_flops(config, 16) == trunk_by_hand(config, 16)
    attention = 4 * config.n_layers * config.n_heads * (config.head_width or config.width // config.n_heads)
    assert 16 * linear_flops(config) == trunk_by_hand(config, 16) - 16**2 * attention
    assert head_flops(config, 7) == 2 * 7 * config.width * (config.head_rows or config.vocab_size)
    if config.width < 1000:
        assert parameters(config) == sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize("n_layers", [1, 2])
def test_counted_flops_of_policies_equal_the_closed_form(n_layers: int) -> None:
    """``d`` the policy's width, ``F`` features and the hidden bit, ``L`` positions."""
    d, features, length, shape = 12, 4, 16, shape_of("sudoku-4x4")
    layer = 8 * d * d + 2 * length * d  # q, k, v, out and an FFN of twice the width; attention's two products
    n, cells, units = 4, 16, 12
    shared = (units * n + cells) * d * d  # the means over units and cells
    shared += d * d + cells * n * d  # the shift and the scale of a norm
    mixing = 3 * cells * n * d * d + shared
    last = (cells * n + 2 * cells) * d * d + shared  # for one digit of each cell
    expected = {
        "mlp": 2 * length * (features * d + d * d + d),
        "transformer": 2 * length * (features * d + n_layers * layer + d),
        "hidden": 2 * length * (shape.width * d + d),
        "grid": 2 * cells * n * 7 * d + 2 * (n_layers - 1) * mixing + 2 * last + 2 * cells * d,
    }
    for kind, flops in expected.items():
        assert policy_flops(PolicyConfig(kind=kind, width=d, n_layers=n_layers, n_heads=2), shape, length) == flops


def test_planned_forwards_equal_those_of_a_training() -> None:
    records = list(train_policy(PolicyJob(load_denoiser("sudoku-4x4"), new_policy(), BOARDS, SMALL.training)))
    hidden = [int((BOARDS(step, 6).tokens == 0).sum()) for step in range(3)]
    assert records[-1]["denoiser_calls"] == sum(hidden)  # a group of one: every state is a forward
    work = Work.of(BOARDS(0, 6), 0, SMALL.training)
    assert work.step_forwards == pytest.approx(hidden[0])
    assert work.validations == 12  # before the first step, after the second and at the end, four problems each


def test_relative_rewards_cost_a_forward_per_hidden_position() -> None:
    denoiser, training = load_denoiser("sudoku-4x4"), replace(SMALL.training, relative=True)
    first = next(iter(train_policy(PolicyJob(denoiser, new_policy(), BOARDS, training))))
    hidden = sum(hidden_in(BOARDS(0, 6)))
    assert first["denoiser_calls"] == Work.of(BOARDS(0, 6), 0, training).step_forwards == 2 * hidden
    assert preflight(denoiser, new_policy(), BOARDS(0, 6), training).forwards == 2 * hidden


@pytest.mark.parametrize(("budget", "group"), [(None, 3), (3, 2)])
def test_planned_forwards_bound_groups_and_step_budgets(budget: int | None, group: int) -> None:
    denoiser, canvas = load_denoiser("sudoku-4x4-imperfect"), BOARDS(0, 6)
    training = replace(SMALL.training, decoding=Decoding(steps=budget), group=group)
    rollout = collect(denoiser, choose_method(training, new_policy()), canvas, torch.arange(6 * group))
    work = Work.of(canvas, 0, training)
    total, _ = rollout.totals["trajectory_steps"]
    assert total == pytest.approx(6 * group * work.mean_turns)
    calls, _ = rollout.totals["forwards_per_step"]
    assert calls <= work.step_forwards + 1e-9
    assert calls > 0.5 * work.step_forwards


def test_planned_bytes_of_kept_states() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    canvas = BOARDS(0, 4)
    work = Work.of(canvas, 0, PolicyTraining(prompts=4))
    for kind in ("mlp", "grid", "hidden"):
        policy = build_policy(PolicyConfig(kind=kind, width=4), denoiser, "x")
        states = unmask(denoiser, policy, canvas, forced=True, observe=policy.observe).states
        assert states is not None
        fields = [v for v in vars(states).values() if isinstance(v, torch.Tensor)] + list(states.observed.values())
        kept = sum(tensor.numel() * tensor.element_size() for tensor in fields)
        planned = step_memory(denoiser.config, policy.config, work, bytes_per_weight=2)["states"]
        assert planned == pytest.approx(2 * kept, rel=0.1), kind


def test_measured_rate_is_flops_over_time() -> None:
    denoiser = load_denoiser("sudoku-4x4")
    shape, policy = shape_of("sudoku-4x4"), new_policy()
    before = {name: p.clone() for name, p in policy.named_parameters()}
    ticks = iter([0.0, 2.0, 7.0])
    canvas = BOARDS(0, 4)
    rate = measure_rate(denoiser, policy, canvas, SMALL.training, shape, clock=lambda: next(ticks))
    work = Work(16, hidden_in(canvas), PolicyTraining(prompts=4, steps=10))
    found = plan(shape, policy.config, work, rate)
    assert found.step_seconds == pytest.approx(2.0 + 5.0)
    assert found.hours == pytest.approx(70 / 3600)
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in policy.named_parameters())


def test_plan_of_the_papers_training() -> None:
    """3.2 minutes on 4 H200, G = 6, B = 3, L = 512, a rollout and a recomputation: a plausible share of the peak."""
    device = DEVICES["h200"]
    work = Work(512, (512,), PolicyTraining(prompts=3, group=6), forwards=2)
    found = plan(SHAPES["llada-8b"], TEXT_POLICY, work, peak_rate(device, 0.4), 4, device)
    by_hand = 2 * 3 * (1 + 6 * 511) * (512 * 2 * 6.98e9)  # forwards × positions × two FLOPs per weight of the blocks
    assert found.rollout_flops == pytest.approx(by_hand, rel=0.1)
    assert 0.1 < implied_utilisation(found, 192.0, device, 4) < 0.3
    assert found.devices == 3 and "4 devices cannot share 3 prompts" in found.notes[0]
    once = plan(SHAPES["llada-8b"], TEXT_POLICY, replace(work, forwards=1), peak_rate(device, 0.4), 3)
    assert once.rollout_flops == pytest.approx(found.rollout_flops / 2, rel=0.01)


def test_published_shapes_have_their_published_sizes() -> None:
    sizes = {"llada-8b": 8.02e9, "dream-7b": 7.62e9, "smdm-1b": 1.14e9}
    for name, size in sizes.items():
        assert parameters(shape_of(name)) == pytest.approx(size, rel=0.02), name


def test_devices_share_prompts() -> None:
    shape, rate = shape_of("sudoku-9x9"), peak_rate(DEVICES["a100"], 0.5)
    work = Work(81, (50,), PolicyTraining(prompts=8))
    alone = plan(shape, PolicyConfig(), work, rate)
    assert plan(shape, PolicyConfig(), work, rate, 4).step_seconds == pytest.approx(alone.step_seconds / 4)
    assert plan(shape, PolicyConfig(), work, rate, 5).step_seconds == pytest.approx(alone.step_seconds / 4)
    little = replace(DEVICES["a100"], memory=1e6)
    assert "do not fit a device" in plan(shape, PolicyConfig(), work, rate, 1, little).notes[0]


def test_drafts_pay_where_reading_the_weights_takes_longer_than_the_products() -> None:
    """2 bytes and 2·L FLOPs per weight: at L tokens, products take L·bandwidth/rate of the time of reading."""
    device = DEVICES["h200"]
    rate = peak_rate(device, 0.4)
    long, short = (batch_cost(SHAPES["llada-8b"], length, rate, device, 2) for length in (512, 16))
    assert long == 8.0 and "do not pay" in weigh_drafts(long)
    assert short == pytest.approx(8 * 16 * device.bandwidth / rate.rollout, rel=0.2) and "can pay" in weigh_drafts(
        short
    )


def test_plan_command(command: Call, tmp_path: Path) -> None:
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
    policy, canvas = new_policy(config), boards(0, 6)
    rate = measure_rate(denoiser, policy, canvas, training, shape, clock=time.process_time)
    found = plan(shape, policy.config, Work.of(boards(0, 64), 0, training), rate)
    held_out = SudokuTask.generate(6, 9, config.validation, "validation", seed + 1)
    validation = held_out.canvas(range(6))
    torch.optim.AdamW(policy.parameters())  # the first optimizer imports torch's compiler
    began = time.process_time()
    list(train_policy(PolicyJob(denoiser, policy, boards, training, validation)))
    return 3600 * found.hours, time.process_time() - began


@pytest.mark.slow
def test_measured_plan_predicts_the_time_of_a_training() -> None:
    ratios = []
    for seed in range(3):
        planned, spent = planned_and_spent(seed)
        ratios.append(planned / spent)
        print(f"planned {planned:.1f} s, spent {spent:.1f} s: {planned / spent:.2f}")
    assert 0.8 < sorted(ratios)[1] < 1.2
