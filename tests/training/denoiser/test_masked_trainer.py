"""Masked training: masks, losses, and resume bit for bit."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from support.denoisers import text_denoiser
from unmask.decoding.loop import trajectory_logp
from unmask.decoding.protocols import Canvas
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.run import Run
from unmask.training.denoiser.masked_trainer import (
    MaskedTraining,
    Masks,
    elbo_weight,
    masked_loss,
    random_pattern,
    train_masked,
)

MASK = 12


def canvases(rows: int, length: int = 9, seed: int = 0) -> Canvas:
    """Prompts of different lengths, answers all hidden; the last row has nothing to answer."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, 12, (rows, length), generator=generator)
    start = torch.randint(length - 1, (rows, 1), generator=generator)
    start[-1] = length
    return Canvas(tokens=target.masked_fill(torch.arange(length) >= start, MASK), target=target)


def test_patterns_hide_only_answers_and_always_something() -> None:
    canvas = canvases(400)
    answer = canvas.tokens == MASK
    for step in range(3):
        pattern, t = random_pattern(canvas, MASK, seed=7, step=step)
        assert not (pattern & ~answer).any()
        assert torch.equal(pattern.any(1), answer.any(1))
        assert ((t > 0) & (t < 1)).all() and t.shape == (400, 1)
        again, _ = random_pattern(canvas, MASK, seed=7, step=step)
        assert torch.equal(pattern, again)
        assert not torch.equal(pattern, random_pattern(canvas, MASK, seed=8, step=step)[0])
        assert not torch.equal(pattern, random_pattern(canvas, MASK, seed=7, step=step + 1)[0])


def test_the_share_of_hidden_positions_is_t() -> None:
    canvas = Canvas(tokens=torch.full((3000, 50), MASK), target=torch.full((3000, 50), 3))
    pattern, t = random_pattern(canvas, MASK, seed=0, step=0)
    assert stats.kstest(t[:, 0].numpy(), "uniform").pvalue > 1e-3
    share = pattern.float().mean(1)
    spread = ((share - t[:, 0]) / (t * (1 - t) / 50).sqrt()[:, 0])[(t[:, 0] > 0.1) & (t[:, 0] < 0.9)]
    assert abs(spread.mean().item()) < 0.1 and abs(spread.std().item() - 1) < 0.1
    assert stats.chisquare(pattern.sum(0).numpy()).pvalue > 1e-3  # no position is favoured
    # One t per row: the number hidden is uniform over 0 … n, and the rows that would hide nothing hide one.
    few = Canvas(tokens=canvas.tokens[:, :4], target=canvas.truth[:, :4])
    counts = torch.bincount(random_pattern(few, MASK, seed=0, step=1)[0].sum(1), minlength=5).numpy()
    assert counts[0] == 0
    assert stats.chisquare(counts[1:], [3000 * 2 / 5, *[3000 / 5] * 3]).pvalue > 1e-3


def by_hand(denoiser: Transformer, canvas: Canvas, pattern: Tensor) -> list[list[float]]:
    """−log p of the hidden tokens, row by row in float64."""
    losses = []
    for target, hidden in zip(canvas.truth.tolist(), pattern.tolist(), strict=True):
        tokens = [MASK if h else t for t, h in zip(target, hidden, strict=True)]
        logits = denoiser.logits(denoiser.hidden(torch.tensor([tokens]))[0]).double()
        logp = logits - logits.exp().sum(1, keepdim=True).log()
        losses.append([-logp[i, t].item() for i, (t, h) in enumerate(zip(target, hidden, strict=True)) if h])
    return losses


def test_the_loss_is_the_mean_over_hidden_tokens() -> None:
    denoiser, canvas = text_denoiser(), canvases(6)
    pattern, _ = random_pattern(canvas, MASK, seed=1, step=0)
    losses = by_hand(denoiser, canvas, pattern)
    loss, hit = masked_loss(denoiser, canvas, Masks(pattern, pattern))
    assert loss.item() == pytest.approx(sum(map(sum, losses)) / int(pattern.sum()), rel=1e-4)
    tokens = canvas.truth.masked_fill(pattern, MASK)
    guess = denoiser.logits(denoiser.hidden(tokens)).argmax(-1)
    assert hit.item() == pytest.approx((guess == canvas.target)[pattern].float().mean().item())
    weight = torch.arange(1.0, 7.0)[:, None]
    answers = int((canvas.tokens == MASK).sum())
    expected = sum((r + 1) * sum(row) for r, row in enumerate(losses)) / answers
    assert masked_loss(denoiser, canvas, Masks(pattern, pattern, weight))[0].item() == pytest.approx(expected, rel=1e-4)


def test_padding_has_no_loss() -> None:
    denoiser, canvas = text_denoiser(), canvases(4)
    pattern, _ = random_pattern(canvas, MASK, seed=1, step=0)
    pad = torch.zeros(4, 3, dtype=torch.long)
    wide = Canvas(
        *(torch.cat([pad, x], 1) for x in (canvas.tokens, canvas.truth)), attention=torch.arange(12).expand(4, -1) > 2
    )
    shifted = torch.cat([pad.bool(), pattern], 1)
    loss, _ = masked_loss(denoiser, wide, Masks(shifted, shifted))
    assert loss.item() == pytest.approx(masked_loss(denoiser, canvas, Masks(pattern, pattern))[0].item(), rel=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_elbo_is_the_mean_over_orders(n: int) -> None:
    """Over all patterns with their probabilities, the weighted loss is −log p(x | σ) averaged over all n! orders."""
    denoiser = text_denoiser(head_rows=MASK, forbidden_ids=())
    target, given = torch.tensor([[5, 6, 7, 8, 9]]), 5 - n
    canvas = Canvas(tokens=target.masked_fill(torch.arange(5) >= given, MASK), target=target)
    answer, total = canvas.tokens == MASK, 0.0
    for hidden in itertools.product([False, True], repeat=n):
        if k := sum(hidden):
            pattern = torch.tensor([[False] * given + list(hidden)])
            probability = (2 if k == 1 else 1) / (n + 1) / math.comb(n, k)
            loss, _ = masked_loss(denoiser, canvas, Masks(pattern, pattern, elbo_weight(answer, pattern)))
            total += probability * loss.item() * n  # the loss is per position of the answer
    orders = torch.tensor(list(itertools.permutations(range(given, 5))))
    exact = trajectory_logp(denoiser, target.expand(len(orders), -1), orders).sum(1)
    assert total == pytest.approx(-exact.mean().item(), rel=1e-4)


def test_learning_rate() -> None:
    config = MaskedTraining(samples=1000, batch=10, lr=0.5, warmup=0.1)
    assert config.steps == 100
    assert [config.lr_at(s) for s in (0, 4, 9)] == pytest.approx([0.05, 0.25, 0.5])
    assert config.lr_at(10) == pytest.approx(0.5)
    assert config.lr_at(55) == pytest.approx(0.25)
    assert config.lr_at(99) == pytest.approx(0.25 * (1 + math.cos(math.pi * 89 / 90)))
    rates = [config.lr_at(s) for s in range(100)]
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True) and min(rates) > 0
    assert MaskedTraining(samples=10, batch=10, warmup=0.0).lr_at(0) == MaskedTraining().lr
    with pytest.raises(ValueError, match="weight: expected 'hidden' or 'elbo'"):
        MaskedTraining(weight="sum")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one batch"):
        MaskedTraining(samples=3, batch=4)


CONFIG = MaskedTraining(samples=60, batch=5, lr=0.05, warmup=0.2, ema=0.9, log_every=1, save_every=3)


def source(step: int, batch: int) -> Canvas:
    return canvases(batch, seed=100 + step)


def fresh(seed: int = 0, tied: bool = False) -> Transformer:
    shape = TransformerConfig(
        vocab_size=13, width=8, n_layers=1, n_heads=2, ffn=8, mask_id=MASK, qkv_bias=True, tied_head=tied
    )
    return Transformer(shape).initialise(torch.Generator().manual_seed(seed))


def weights(denoiser: Transformer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in denoiser.named_parameters()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("ema", [0.0, 0.9, 0.2])
def test_average_of_weights_follows_its_formula(ema: float) -> None:
    """ā ← d·ā + (1 − d)·w with d = min(ema, s/(s + 9)) after the s-th step; the average replaces the weights at the end."""
    denoiser = fresh()
    average = {name: p.double() for name, p in weights(denoiser).items()}
    for s, _ in enumerate(train_masked(denoiser, source, replace(CONFIG, ema=ema)), start=1):
        decay = min(ema, s / (s + 9))
        now = weights(denoiser)
        average = {name: decay * old + (1 - decay) * now[name].double() for name, old in average.items()}
        if ema == 0.0:
            assert equal({name: p.float() for name, p in average.items()}, now)
    assert s == CONFIG.steps
    for name, p in weights(denoiser).items():
        torch.testing.assert_close(p.double(), average[name], atol=1e-6, rtol=1e-5)


def test_a_first_step_has_the_size_of_its_learning_rate() -> None:
    """Adam's first step moves every weight that has a gradient by the rate: the rate is set before the step, not after."""
    denoiser = fresh()
    before = weights(denoiser)
    record = next(train_masked(denoiser, source, replace(CONFIG, weight_decay=0.0, ema=0.0)))
    moved = max((p - before[name]).abs().max().item() for name, p in weights(denoiser).items())
    assert moved == pytest.approx(CONFIG.lr_at(0), rel=1e-3)
    assert record["lr"] == CONFIG.lr_at(0) < CONFIG.lr
    pattern, _ = random_pattern(source(0, 5), MASK, CONFIG.seed, 0)
    assert record["loss"] == pytest.approx(
        masked_loss(fresh(), source(0, 5), Masks(pattern, pattern))[0].item(), rel=1e-6
    )


def test_loss_falls_on_a_learnable_answer() -> None:
    """Answers that repeat one token are learnt in a few steps."""
    same = Canvas(tokens=torch.full((8, 6), MASK), target=torch.full((8, 6), 5))
    records = list(train_masked(fresh(), lambda step, batch: same, replace(CONFIG, samples=200, batch=8, log_every=5)))
    assert records[0]["loss"] > 1 and records[-1]["loss"] < 0.1 and records[-1]["token_accuracy"] == 1
    assert [r["step"] for r in records] == [5, 10, 15, 20, 25]


def metrics(run: Run) -> list[dict[str, object]]:
    return [{k: v for k, v in record.items() if k != "samples_per_second"} for record in run.metrics()]


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("config", "crashes", "tied"),
    [
        (CONFIG, [1], False),
        (CONFIG, [3, 7], True),
        (replace(CONFIG, save_every=1), [5], False),
        (replace(CONFIG, save_every=5, log_every=4, weight="elbo"), [9, 9, 11], True),
        (replace(CONFIG, save_every=4, log_every=3, ema=0.0), [6, 10], False),
        (replace(CONFIG, save_every=100), [11], False),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(
    config: MaskedTraining, crashes: list[int], tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, averages and records, wherever it stopped; from a checkpoint on, the weights it began with do not matter."""
    monkeypatch.setattr("os.fsync", lambda file: None)  # the machine stays on
    whole, expected = Run.create(tmp_path / "whole", config), fresh(tied=tied)
    list(train_masked(expected, source, config, whole))
    run = Run.create(tmp_path / "killed", config)
    for attempt, crash in enumerate([*crashes, None, None]):  # the last time there is nothing left to do

        def failing(step: int, batch: int, crash: int | None = crash) -> Canvas:
            if step == crash:
                raise Killed
            return source(step, batch)

        denoiser = fresh(seed=attempt if run.load_latest() else 0, tied=tied)
        if crash is None:
            list(train_masked(denoiser, failing, config, run))
            assert equal(weights(denoiser), weights(expected))
        else:
            with pytest.raises(Killed):
                list(train_masked(denoiser, failing, config, run))
    assert metrics(run) == metrics(whole)


def test_record_is_logged_before_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run killed right after a checkpoint was saved has logged that step already."""
    run = Run.create(tmp_path, CONFIG)
    save = Run.save

    def save_and_die(self: Run, step: int, *rest: object) -> object:
        save(self, step, *rest)  # pyright: ignore[reportArgumentType]
        raise Killed

    monkeypatch.setattr(Run, "save", save_and_die)
    with pytest.raises(Killed):
        list(train_masked(fresh(), source, CONFIG, run))
    monkeypatch.undo()
    list(train_masked(fresh(seed=3), source, CONFIG, run))
    assert [record["step"] for record in run.metrics()] == list(range(1, CONFIG.steps + 1))
