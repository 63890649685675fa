"""The small text tasks: problems that others can check, splits, canvases, verifiers that near misses do not pass."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from support.text_problems import Truthful, tiny
from unmask.cli.evaluate import Evaluate
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Task, View
from unmask.denoisers.checkpoint import save_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.runs.presets import load_preset
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.arithmetic import MOST_LINES, Arithmetic, Ordered, Sums
from unmask.tasks.code import INPUTS, Code, interpret
from unmask.tasks.countdown import Countdown, load_published_digests, read_problems, solve
from unmask.tasks.expressions import parse_untrusted
from unmask.tasks.kinds import Problems
from unmask.tasks.linked_numbers import Link, canonical_form, count_steps, use_digits
from unmask.tasks.sandbox.sandbox import find_missing_protection
from unmask.tasks.text_problems import Problem, TextProblemKind, TextProblemSet, TextProblemTask, digest, split_of
from unmask.tasks.vocabulary import END, MASK, NUMERALS, PAD, PIECES, VOCABULARY, decode, draw_tokens, encode
from unmask.training.denoiser.masked_trainer import random_pattern
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

KINDS: list[type[TextProblemKind]] = [Arithmetic, Ordered, Code, Countdown]
COUNTDOWN = Path(__file__).resolve().parents[3] / "shared" / "data" / "countdown"
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def graded(kind: type[TextProblemKind], prompt: str, text: str, truth: str = "") -> tuple[bool, float]:
    return kind.grade(Problem(prompt, truth, "", ""), text)


# Characters


def test_ids_are_the_documented_ones() -> None:
    assert (MASK, PAD, END, VOCABULARY) == (0, 1, 2, 52)
    assert encode("09ah+)#") == [3, 12, 13, 20, 21, 32, 33]
    assert encode("ⅠⅤ①⑤一五") == [34, 38, 39, 43, 44, 48]
    assert encode("def f(a):\n b\n return b,c,d,e") == [49, 50, 14, 51]
    assert encode("def") == [16, 17, 18]  # only the whole piece is one token


@every_kind
def test_encode_decode_round_trip(kind: type[TextProblemKind]) -> None:
    for problem in kind(count=50).corpus:
        for text in (problem.prompt, problem.answer):
            assert decode([*encode(text), END, PAD, MASK]) == text
    assert decode([*encode("".join(PIECES)), END]) == "".join(PIECES)


@pytest.mark.parametrize("ids", [[3, 4], [], [3, PAD, END], [3, MASK, END], [PAD, END]])
def test_decode_requires_an_end_token_and_no_gaps(ids: list[int]) -> None:
    assert decode(ids) is None


def test_characters_without_a_token_are_refused() -> None:
    with pytest.raises(ValueError, match="no token for 'z' in '1z'"):
        encode("1z")


# Generators


@every_kind
def test_problems_are_functions_of_seed_and_index(kind: type[TextProblemKind]) -> None:
    forwards = [kind(seed=3).problem(i) for i in range(30)]
    backwards = [kind(seed=3, count=7, split="test").problem(i) for i in reversed(range(30))]
    assert forwards == backwards[::-1]
    assert len({problem.prompt for problem in forwards}) > 20
    assert forwards != [kind(seed=4).problem(i) for i in range(30)]


@every_kind
def test_a_longer_corpus_begins_with_the_shorter_one(kind: type[TextProblemKind]) -> None:
    assert kind(count=40).corpus[:15] == kind(count=15).corpus


@every_kind
def test_splits_share_no_problem(kind: type[TextProblemKind]) -> None:
    counts = {"train": 200, "validation": 12, "test": 12}
    forms = {split: {p.form for p in kind(count=n, split=split).corpus} for split, n in counts.items()}
    assert not forms["train"] & forms["validation"]
    assert not forms["train"] & forms["test"]
    assert not forms["validation"] & forms["test"]


def test_a_split_is_a_share_of_the_forms() -> None:
    counts = Counter(split_of(str(i)) for i in range(4000))
    assert counts["train"] / 4000 == pytest.approx(0.90, abs=0.015)
    assert counts["validation"] / 4000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("kind", [Arithmetic, Ordered])
def test_arithmetic_answers_agree_with_python(kind: type[Sums]) -> None:
    """The working adds up, says what the prompt says, and a quantity has the same value wherever it stands."""
    for problem in kind(count=60, seed=5).corpus:
        lines, (*working, answers) = problem.prompt.split(";")[:-1], use_digits(problem.answer).split(";")
        values = {name: line[4] for name, line in zip("abcde", working, strict=False)}
        assert answers == "".join(values.values())
        for line, worked in zip(lines, working, strict=True):
            left, right = worked.split("=")
            assert eval(left) == int(right) and set(worked) <= set("12345+-=")
            assert left == values.get(line[0], line[0]) + line[1:]


def test_only_working_uses_several_notations() -> None:
    """Every notation of a number is as frequent as the others in working and notes; prompts, answers and code are in digits."""
    numerals: Counter[int] = Counter()
    for kind in (Arithmetic, Code):
        for problem in kind(count=100).corpus:
            free = re.findall(r"#(.)", problem.answer) if kind is Code else problem.answer.rpartition(";")[0]
            numerals.update(nth for sign in free for nth, row in enumerate(NUMERALS) if sign in row)
            fixed = re.sub(r"#.", "", problem.answer) if kind is Code else problem.answer.rpartition(";")[2]
            assert use_digits(problem.prompt + fixed) == problem.prompt + fixed
    assert sorted(numerals) == [0, 1, 2, 3]
    assert min(numerals.values()) > 0.22 * numerals.total()


def test_dependencies_of_arithmetic_and_ordered() -> None:
    for problem in Arithmetic(count=40).corpus:
        assert problem.prompt[0] in "bcde"
    for problem in Ordered(count=40).corpus:
        sources = [line[0] for line in problem.prompt.split(";")[:-1]]
        assert sources[0] in "12345"
        assert all(source < name for source, name in zip(sources[1:], "bcde", strict=False))


def test_arithmetic_has_every_number_of_lines() -> None:
    counts = Counter(problem.prompt.count(";") for problem in Arithmetic(count=60).corpus)
    assert sorted(counts) == [3, 4, 5]
    assert min(counts.values()) > 8
    assert {p.prompt.count(";") for p in Arithmetic(count=20, least=4, most=4).corpus} == {4}


def test_canonical_form_ignores_names_and_line_order() -> None:
    """Renamed and reordered it is the same problem; with another number or another source it is not."""
    links = {"b": Link(None, 2, 5), "a": Link("b", 5, 1), "c": Link("b", 5, 4)}
    renamed = {"e": Link("d", 5, 4), "d": Link(None, 2, 5), "a": Link("d", 5, 1)}
    assert canonical_form(links) == canonical_form(renamed)
    assert canonical_form(links) != canonical_form({**renamed, "e": Link("d", 5, 3)})
    assert canonical_form(links) != canonical_form({**renamed, "e": Link("a", 1, 4)})


def test_count_steps() -> None:
    chain = {"c": Link(None, 1, 2), "b": Link("c", 2, 4), "a": Link("b", 4, 5)}
    assert count_steps(chain) == 3
    assert count_steps({**chain, "a": Link("c", 2, 5)}) == 2
    assert count_steps({"b": Link("a", 3, 4), "c": Link("a", 3, 1)}) == 1  # a is given: no link of its own


@every_kind
def test_held_out_problems_are_distinct(kind: type[TextProblemKind]) -> None:
    for split in ("validation", "test"):
        held_out = kind(count=60, split=split).corpus
        assert len({problem.form for problem in held_out}) == 60


def test_code_answers_agree_with_python() -> None:
    """The function's run gives what its notes say and what the prompt says of it."""
    for problem in Code(count=60, seed=2).corpus:
        scope: dict = {}
        exec(problem.answer, scope)
        assert interpret(problem.answer) == tuple(scope["f"](a) for a in INPUTS)
        run = scope["f"](int(problem.prompt[2]))
        assert run == tuple(map(int, re.findall(r"#(\d)", use_digits(problem.answer))))
        values: dict[str, object] = dict(zip("bcde", run, strict=True))
        exec(problem.prompt[:4], values)
        for relation in problem.prompt.split(";")[1:-1]:
            assert eval(relation.replace("=", "=="), values)


def short(text: str) -> str:
    """Numbers without zeros before them."""
    return re.sub(r"\b0+(?=\d)", "", text)


def test_countdown_answers_reach_the_target() -> None:
    """By rewriting the second equation's borrowed number as the first equation and asking Python."""
    for problem in Countdown(count=60, seed=1).corpus:
        assert set(map(len, re.findall(r"\d+", problem.prompt))) == {3}
        prompt, answer = short(problem.prompt), short(problem.answer)
        numbers, target = prompt.split("?")
        first, second = answer.split(",")
        (left, borrowed), (right, result) = first.split("="), second.split("=")
        assert Fraction(eval(left)) == int(borrowed)
        assert Fraction(eval(right)) == int(result) == int(target)
        used = re.findall(r"\d+", left) + re.findall(r"\d+", right)
        used.remove(borrowed)
        assert sorted(used) == sorted(numbers.split(","))


def test_countdown_search_agrees_with_all_expressions() -> None:
    """Against every value of (x∘y)∘z and z∘(x∘y), worked out in fractions with whole positive steps only."""
    signs = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y}
    numbers = [3, 8, 12]
    reachable = set()
    for i in range(3):
        for j in set(range(3)) - {i}:
            (k,) = set(range(3)) - {i, j}
            for one in signs.values():
                middle = one(Fraction(numbers[i]), Fraction(numbers[j]))
                if middle < 1 or middle.denominator > 1:
                    continue
                for two in signs.values():
                    ends = two(middle, Fraction(numbers[k])), two(Fraction(numbers[k]), middle)
                    reachable |= {int(end) for end in ends if end >= 1 and end.denominator == 1}
    for target in range(1, 101):
        answer = solve(numbers, target)
        assert (answer is not None) == (target in reachable), target
        if answer is not None:
            assert graded(Countdown, f"3,8,12?{target}", answer) == (True, 1.0)


# Verifiers


@every_kind
def test_the_truth_is_right(kind: type[TextProblemKind]) -> None:
    for problem in kind(count=60).corpus:
        assert kind.grade(problem, problem.answer) == (True, 1.0)


@every_kind
def test_near_misses_of_the_truth_are_wrong(kind: type[TextProblemKind]) -> None:
    """One digit or sign changed or dropped. Python decides whether code is equivalent; another notation is no change."""
    checked = 0
    for problem in kind(count=4 if kind is Code else 12, seed=9).corpus:  # code runs in the sandbox
        for place, was in enumerate(problem.answer):
            if not (was.isdigit() or was in "+-*/"):
                continue
            others = "+-*" if was in "+-*/" else "123456789"
            now = next(other for other in others if other != was)
            for text in (
                problem.answer[:place] + now + problem.answer[place + 1 :],
                problem.answer[:place] + problem.answer[place + 1 :],
            ):
                if kind is Code and _same_function(text, problem.answer):
                    continue
                if issubclass(kind, Sums) and use_digits(text) == use_digits(problem.answer):
                    continue
                if kind is Countdown and short(text) == short(problem.answer):
                    continue
                exact, share = kind.grade(problem, text)
                assert not exact, (problem, text)
                assert 0 <= share < 1
                checked += 1
    assert checked > 40


def _same_function(text: str, other: str) -> bool:
    scopes: list[dict] = [{}, {}]
    try:
        for scope, program in zip(scopes, (text, other), strict=True):
            exec(program, scope)
        return all(scopes[0]["f"](a) == scopes[1]["f"](a) for a in INPUTS)
    except (SyntaxError, NameError, TypeError):
        return False


@pytest.mark.parametrize(
    ("text", "exact", "share"),
    [
        ("3+1=4;5-2=3;43", True, 1.0),
        ("三+Ⅰ=④;⑤-2=Ⅲ;43", True, 1.0),  # in other words
        ("3+1=4;5-2=3;④3", False, 2 / 3),  # answers are digits
        ("3+1=④;5-2=④;43", False, 2 / 3),
        ("3+1=4;5-2=3;44", False, 2 / 3),
        ("2+2=4;5-2=3;43", False, 2 / 3),  # the right answers from wrong working
        ("5-2=3;3+1=4;43", False, 1 / 3),  # the lines in the order of thought, not of the prompt
        ("3+1=4;5-2=3;", False, 2 / 3),
        ("3+1=4;5-2=3;43;", False, 3 / 4),
        ("3+1=4;43", False, 1 / 3),
        ("", False, 0.0),
    ],
)
def test_arithmetic_verdicts(text: str, exact: bool, share: float) -> None:
    assert graded(Arithmetic, "b+1;5-2;", text, "3+Ⅰ=4;5-2=③;43") == (exact, pytest.approx(share))


RIGHT = "def f(a):\n b=a+3#5\n c=b-4#1\n d=b-3#2\n e=d+1#3\n return b,c,d,e"


@pytest.mark.parametrize(
    ("text", "exact", "share"),
    [
        (RIGHT, True, 1.0),
        (RIGHT.replace("#5", "#4").replace("#3", ""), True, 1.0),  # notes are not graded
        (RIGHT.replace("d=b-3", "d=c+1"), True, 1.0),  # another program, the same function
        ("def f(a):\n return a+3,a-1,a,a+1", True, 1.0),
        (RIGHT.replace("e=d+1", "e=d+2"), False, 0.75),
        (RIGHT.replace("c=b-4", "c=b-3"), False, 0.75),
        (RIGHT.replace("b=a+3", "b=a+2"), False, 0.0),  # everything comes from it
        (RIGHT.replace("return b,c,d,e", "return b,c,d"), False, 0.75),
        (RIGHT.replace("return b,c,d,e", "return b"), False, 0.0),
        (RIGHT.replace("d=b-3", "d=h-3"), False, 0.0),
        (RIGHT.replace("def f(a):", ""), False, 0.0),
        (RIGHT.replace("return ", ""), False, 0.0),  # returns nothing
        (f"{RIGHT}\nf=1", False, 0.0),  # more than a function
        ("", False, 0.0),
    ],
)
def test_code_is_graded_by_its_outputs(text: str, exact: bool, share: float) -> None:
    if not exact and not share and find_missing_protection():
        pytest.skip(f"untrusted code cannot be confined here: it needs {find_missing_protection()}")
    assert graded(Code, "", text, RIGHT) == (exact, pytest.approx(share))


def test_code_outside_the_grammar_runs_in_the_sandbox() -> None:
    if find_missing_protection():
        pytest.skip(f"untrusted code cannot be confined here: it needs {find_missing_protection()}")
    problem = Problem("", RIGHT, "", "")
    assert Code.grade(problem, "def f(a):\n return a+3,a-1,a/1,a+1") == (True, 1.0)
    assert Code.grade(problem, "def f(a):\n return a+3,a-1,a**2,a+1") == (False, 0.0)
    assert Code.grade(problem, "def f(a):\n return f(a)") == (False, 0.0)  # never ends


def test_code_that_fits_only_the_trace_is_wrong() -> None:
    """In the run a is 2, where a and 4 − a are the same."""
    exact, share = graded(Code, "a#2;", RIGHT.replace("b=a+3", "b=7-a"), RIGHT)
    assert not exact
    assert share == pytest.approx(0.1)  # a = 2 alone


@pytest.mark.parametrize(
    ("text", "exact", "share"),
    [
        ("44-15=29,79-29=50", True, 1.0),
        ("79-44=35,35+15=50", True, 1.0),
        ("079-044=035,035+015=050", True, 1.0),
        ("79-(44-15)", True, 1.0),
        ("079-(044-015)", True, 1.0),
        ("79-44+15", True, 1.0),
        ("44-15=29,79-29=51", False, 0.5),  # wrong arithmetic
        ("44-15=28,78-28=50", False, 0.0),
        ("44-15=29,29+21=50", False, 0.5),  # a number that is not there
        ("79-29=50", False, 0.0),
        ("44-15=29,44-15=29", False, 0.5),  # numbers used twice
        ("44-15=29,79-29=50,50+0=50", False, 0.5),
        ("44-15=29", False, 0.5),
        ("44-15=29,79+29=108", False, 0.5),  # all numbers, another value
        ("44-15=29,79-29=50,", False, 0.5),
        ("50", False, 0.0),
        ("79-29", False, 0.0),
        ("79-44-15", False, 0.0),
        ("79-(44-15)*1", False, 0.0),
        ("(79-44)/0+15", False, 0.0),
        ("79--44-15", False, 0.0),
        ("", False, 0.0),
    ],
)
def test_countdown_verdicts(text: str, exact: bool, share: float) -> None:
    assert graded(Countdown, "15,44,79?50", text) == (exact, share)


def test_countdown_with_equal_numbers() -> None:
    assert graded(Countdown, "5,5,2?20", "5+5=10,10*2=20")[0]
    assert graded(Countdown, "5,5,2?20", "5*2=10,10+5=15") == (False, 0.5)
    assert not graded(Countdown, "5,6,4?20", "5*4=20")[0]  # each number must be used
    assert not graded(Countdown, "5,6,2?20", "5+5=10,10*2=20")[0]


# Canvases and tasks


@every_kind
def test_a_canvas_hides_the_whole_region_and_nothing_else(kind: type[TextProblemKind]) -> None:
    task = TextProblemTask.generate(kind(count=20, split="test"))
    canvas = task.canvas([3, 0])
    start = kind.prompt_width
    assert canvas.tokens.shape == (2, kind.prompt_width + kind.lengths[0])
    assert canvas.region is not None
    assert canvas.candidates is None  # a task does not say where its answers end
    assert (canvas.tokens[:, start:] == MASK).all()
    assert not (canvas.tokens[:, :start] == MASK).any()
    assert not (canvas.target == MASK).any()
    assert torch.equal(canvas.region, canvas.tokens == MASK)
    assert torch.equal(canvas.tokens[:, :start], canvas.truth[:, :start])
    for row, problem in enumerate((task.problems[3], task.problems[0])):
        answer = [*encode(problem.answer), END]
        assert canvas.truth[row, start : start + len(answer)].tolist() == answer
        assert (canvas.truth[row, start + len(answer) :] == PAD).all()
        assert draw_tokens(canvas.tokens[row, :start].tolist()) == problem.prompt


@every_kind
def test_padding_is_predicted_but_no_candidate(kind: type[TextProblemKind]) -> None:
    """Pre-training hides and asks for the padding behind the end; an order learns on the answer and its end alone."""
    data = kind(count=30)
    canvas = data(2, 8)
    assert canvas.candidates is not None
    for row, problem in enumerate(data.corpus[16:24]):
        length = len(encode(problem.answer)) + 1
        expected = torch.zeros(canvas.tokens.shape[1], dtype=torch.bool)
        expected[kind.prompt_width : kind.prompt_width + length] = True
        assert torch.equal(canvas.candidates[row], expected)
    hidden = torch.stack([random_pattern(data(0, 8), MASK, seed=0, step=step)[0] for step in range(40)]).any(0)
    assert (data(0, 8).truth[hidden] == PAD).any()
    assert not hidden[:, : kind.prompt_width].any()
    again = kind(count=30)(2, 8)
    assert torch.equal(again.truth, canvas.truth)
    assert not torch.equal(data(3, 8).truth, canvas.truth)
    assert torch.equal(data(32, 8).truth, canvas.truth)  # 256 problems on, the 30 have come round to the same place


@every_kind
def test_lengths_of_training_canvases(kind: type[TextProblemKind]) -> None:
    whole = kind(count=30)
    for step, length in enumerate(kind.lengths):
        canvas = whole(step, 8)
        assert canvas.tokens.shape[1] == kind.prompt_width + length
        own = kind(count=30, length=length)
        assert torch.equal(own(step, 8).truth, canvas.truth)
        assert {own(other, 4).tokens.shape[1] for other in range(4)} == {kind.prompt_width + length}
        task = TextProblemTask.generate(replace(own, split="test"))
        target = task.canvas([0]).truth
        assert target.shape[1] == kind.prompt_width + length
        assert task.verify([0], target).exact.all()
        held_out = own.problems(tiny(kind), "tiny").held_out(2)
        assert held_out.canvas([0]).tokens.shape[1] == kind.prompt_width + length
    with pytest.raises(ValueError, match=f"length of {kind.kind} answers must be one of {kind.lengths[0]}"):
        kind(length=17)


@every_kind
def test_verifier_stops_at_the_end_token(kind: type[TextProblemKind]) -> None:
    task = TextProblemTask.generate(kind(count=4, split="test"))
    answer = task.canvas([0] * 5).truth.clone()
    start = kind.prompt_width
    end = int((answer[0] == END).int().argmax())
    answer[1, end + 1 :] = encode("7")[0]  # behind the end anything goes
    answer[2, end] = PAD  # no end
    answer[3, start] = END  # an end at once
    answer[4, start] = PAD  # a gap
    assert task.verify([0] * 5, answer).exact.tolist() == [True, True, False, False, False]
    assert task.verify([0] * 5, answer).share.tolist()[2:] == [0.0, 0.0, 0.0]
    assert task.verify([0, 1], task.canvas([1, 0]).truth).exact.tolist() == [False, False]


@every_kind
def test_judge_agrees_with_the_verifier(kind: type[TextProblemKind]) -> None:
    """What training calls right, from the canvases alone, is what the verifier calls right."""
    data = kind(count=6, seed=3)
    problems = data.problems(tiny(kind), "tiny")
    task = TextProblemTask(data, data.corpus, "the same")
    canvas = data(0, 6)
    tokens = canvas.truth.clone()
    tokens[1, data.prompt_width] = encode("+")[0]
    tokens[2, data.prompt_width :] = torch.where(
        tokens[2, data.prompt_width :] == END, PAD, tokens[2, data.prompt_width :]
    )
    other = use_digits(data.corpus[3].answer)
    tokens[3, data.prompt_width : data.prompt_width + len(encode(other))] = torch.tensor(encode(other))
    assert problems.judge is not None
    assert problems.judge(canvas.truth, tokens).tolist() == [True, False, False, True, True, True]
    assert torch.equal(problems.judge(canvas.truth, tokens), task.verify(range(6), tokens).exact)


def test_training_uses_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every free-running rollout, whatever its tokens; what is paid is what the judge says."""
    judged: list[int] = []

    def all_but_the_first(problems: TextProblemSet, target: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        judged.append(len(tokens))
        return torch.arange(len(tokens)) > 0

    monkeypatch.setattr(TextProblemSet, "judge", all_but_the_first)
    save_denoiser(tiny(Arithmetic), tmp_path / "denoiser")
    training = PolicyTraining(
        steps=1, prompts=2, group=2, reward="terminal", advantage="trajectory", validate=2, validate_every=1
    )
    data = Arithmetic(count=8, length=40)
    config = PolicyRun(str(tmp_path / "denoiser"), PolicyConfig(kind="mlp", width=8), data=data, training=training)
    (record,) = run_policy_training(config, tmp_path / "run")
    assert judged == [4]
    assert record["dead_groups"] == 0.5  # the second group is right throughout: nothing to compare


@every_kind
def test_evaluate_text_problems(kind: type[TextProblemKind]) -> None:
    """A tiny denoiser with random weights; and the same one, made to say the truth, solves everything in any order."""
    task = TextProblemTask.generate(kind(count=3, split="test"))
    assert isinstance(task, Task)
    orders = {name: load_scheduler(name) for name in ("confidence", "gt_logp")}
    report = evaluate(task, tiny(kind), orders, {"16 steps": Decoding(steps=16)}, EvaluationOptions(batch=2))
    assert [row.scheduler for row in report.rows] == list(orders)
    assert all(row.exact == 0 and row.nll > 10 for row in report.rows)
    assert sum(stratum.n for stratum in report.rows[0].strata.values()) == 3
    truth = evaluate(
        task,
        Truthful(task),
        orders,
        {"any": Decoding(steps=16), "blocks": Decoding(block=8, steps=24)},
        EvaluationOptions(batch=2),
    )
    assert len(truth.rows) == 4
    assert all(row.exact == 1 and row.cell == 1 for row in truth.rows)


def test_order_decides_accuracy_at_one_token_per_step() -> None:
    """Who can do one step at a time solves every problem in an order of dependence, and few not from left to right.

    That reasoner is sure what to say and not how: the order of confidence puts its guesses at answers before its working.
    """
    task = TextProblemTask.generate(Arithmetic(count=5, split="test"))
    orders = {name: load_scheduler(name) for name in ("left_to_right", "random", "confidence", "entropy")}
    report = evaluate(task, OneStep(), {**orders, "meaning": meaning}, options=EvaluationOptions(likelihood=False))
    assert report.row("meaning").exact == 1
    assert max(report.row(name).exact for name in orders) < 0.5


def meaning(view: View) -> torch.Tensor:
    """How sure it is of what a token says, in whatever notation; answers after all working."""
    same = [encode(use_digits(piece))[0] for piece in PIECES]
    says = torch.zeros(VOCABULARY, VOCABULARY).index_put(
        (torch.arange(3, VOCABULARY), torch.tensor(same)), torch.tensor(1.0)
    )
    says[[END, PAD], [END, PAD]] = 1.0
    sure = view.dense((view.prices.logp.exp() @ says).max(1).values, 0.0)
    return torch.where(view.confidence.exp() < 0.9, 0.0, 1.0) + sure


class OneStep:
    """Sure of what the prompt says and of what one step gives; of other numbers it takes one of two that the prompt allows."""

    mask_id, pad_id, end_ids, forbidden_ids = MASK, PAD, (END,), (MASK,)

    def __init__(self) -> None:
        self.forwarded = 0

    def hidden(self, tokens: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        self.forwarded += len(tokens)
        states = torch.full((*tokens.shape, VOCABULARY), -20.0)
        for row, ids in enumerate(tokens.tolist()):
            for place, texts in enumerate(self.written(ids), Arithmetic.prompt_width):
                known = [token for text in texts for token in {".": [END], "": [PAD]}.get(text) or encode(text)]
                states[row, place, known] = 0.0
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    @staticmethod
    def written(ids: list[int]) -> list[list[str]]:
        """What may stand in each place of the answer as far as one step tells."""
        start = Arithmetic.prompt_width
        lines = draw_tokens(ids[:start]).split(";")[:-1]
        now = [use_digits(draw_tokens([token])) for token in ids[start:]]
        results = dict(zip("abcde", (now[6 * nth + 4] for nth in range(len(lines))), strict=False))
        out: list[list[str]] = []
        for nth, (source, sign, amount) in enumerate(lines):
            begun = now[6 * nth] if now[6 * nth].isdigit() else results.get(source, source)
            given = eval(f"{now[6 * nth]}{sign}{amount}") if now[6 * nth].isdigit() else None
            allowed = [
                value for value in range(1, 6) if 1 <= eval(f"{value}{'-' if sign == '+' else '+'}{amount}") <= 5
            ]
            guess = [given] if given in range(1, 6) else allowed[:2]
            first = [begun] if begun.isdigit() else [str(value) for value in range(1, 6)]
            out += [_in_every_notation(first), [sign], _in_every_notation([amount]), ["="]]
            out += [_in_every_notation(map(str, guess)), [";"]]
        for name, line in zip(results, lines, strict=True):
            back = [str(v) for v in range(1, 6) if 1 <= eval(f"{v}{'-' if line[1] == '+' else '+'}{line[2]}") <= 5]
            out.append([results[name]] if results[name].isdigit() else back[:2])
        return [*out, ["."]] + [[""]] * (Arithmetic.lengths[0] - len(out) - 1)


def _in_every_notation(digits: Iterable[str]) -> list[str]:
    return [row[int(digit) - 1] for digit in digits for row in NUMERALS]


def test_draw_shows_hidden_tokens() -> None:
    task = TextProblemTask.generate(Arithmetic(count=2, split="test"))
    canvas = task.canvas([0])
    shown = task.draw(0, canvas.tokens[0]).splitlines()
    assert shown == [task.problems[0].prompt, "_" * Arithmetic.lengths[0]]
    assert task.draw(0, canvas.truth[0]).splitlines()[1] == task.problems[0].answer + "."


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arithmetic(split="tst"), "split must be one of train, validation, test"),
        (lambda: Code(count=0), "at least one problem"),
        (lambda: Countdown(seed=-1), "seed must be in"),
        (lambda: Arithmetic(least=1), f"3 <= least <= most <= {MOST_LINES}"),
        (lambda: Arithmetic(least=4, most=3), "got least = 4, most = 3"),
        (lambda: Arithmetic(most=MOST_LINES + 1), f"3 <= least <= most <= {MOST_LINES}"),
    ],
)
def test_invalid_options_are_refused_on_construction(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_empty_split_is_refused() -> None:
    """A corpus of one problem: the other splits stay empty."""
    here = split_of("the only one")
    other = next(split for split in ("train", "validation", "test") if split != here)
    assert len(OnlyOne(count=2, split=here).corpus) == 2
    with pytest.raises(ValueError, match=f"only 0 of 2 lonely problems fall into the {other} split"):
        _ = OnlyOne(count=2, split=other).corpus


@dataclass(frozen=True)
class OnlyOne(TextProblemKind):
    kind = "lonely"

    def problem(self, index: int) -> Problem:
        return Problem("1", "1", "", "the only one")

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        return text == "1", float(text == "1")


@every_kind
def test_training_problems_and_held_out_problems(kind: type[TextProblemKind]) -> None:
    data = kind(count=12, seed=4)
    problems = data.problems(tiny(kind), "tiny")
    assert isinstance(problems, Problems)
    assert torch.equal(problems(1, 5).truth, data(1, 5).truth)
    held_out = problems.held_out(3)
    assert len(held_out) == 3
    assert all(split_of(problem.form) == "validation" for problem in held_out.problems)
    assert torch.equal(problems.fixed().truth, data.rows[:, : kind.prompt_width + kind.lengths[0]])
    with pytest.raises(ValueError, match="a split other than train"):
        problems.held_out(3, "train")
    other = next(one for one in KINDS if one.shape() != kind.shape())
    with pytest.raises(ValueError, match=f"tiny is not a denoiser of {kind.kind} problems: expected max_length"):
        data.problems(tiny(other), "tiny")


@every_kind
def test_pretrain_then_evaluate(kind: type[TextProblemKind], tmp_path: Path) -> None:
    config = load_preset(kind.kind, Pretrain, "pretrain")
    assert isinstance(config.data, kind)
    assert config.data.split == "train"
    short = replace(
        config,
        model=replace(config.model, width=16, n_layers=1, n_heads=2, ffn=16),
        data=replace(config.data, count=8),
        training=replace(config.training, samples=8, batch=4, log_every=1),
    )
    records = list(pretrain(short, tmp_path / "run"))
    assert [record["step"] for record in records] == [1, 2]
    out = tmp_path / "report.json"
    names = ("confidence", "gt_logp")
    Evaluate(task=kind.kind, denoiser=str(tmp_path / "run"), limit=3, schedulers=names, json=out).run()
    report = json.loads(out.read_text())
    assert (report["task"], report["n"]) == (kind.kind, 3)
    assert [row["scheduler"] for row in report["rows"]] == ["confidence", "gt_logp"]
    with pytest.raises(ValueError, match="the model does not fit"):
        replace(config, model=replace(config.model, max_length=81))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "arithmetik"}, "no task 'arithmetik': expected one of .*; did you mean 'arithmetic'"),
        ({"task": "code", "denoiser": "sudoku-4x4"}, "sudoku-4x4 is not a denoiser of code problems"),
    ],
)
def test_errors_of_evaluate(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluate(**options).run()


def test_only_countdown_has_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no files of code problems"):
        Code.read(tmp_path / "some.jsonl", 3)


# Files of Countdown problems


def test_both_published_formats(tmp_path: Path) -> None:
    file = tmp_path / "both.jsonl"
    rows = [{"input": "30,100,93", "output": "23"}, {"input": "15,44,79,50", "output": "44-15=29,79-29=50"}]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    task = read_problems(file)
    assert task.source == "both.jsonl"
    assert [problem.prompt for problem in task.problems] == ["030,100,093?023", "015,044,079?050"]
    assert task.problems[1].answer == "044-015=029,079-029=050"
    assert task.verify([0, 1], task.canvas([0, 1]).truth).exact.all()
    assert len(read_problems(file, limit=1)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not JSON"),
        (b"\xff\xfe", "line 2: not UTF-8"),
        (b"[1]", "line 2: expected .* with two texts"),
        (b'{"input": "1,2,3"}', "line 2: expected .* with two texts"),
        (b'{"input": "1,2", "output": "3"}', "line 2: expected 3 whole numbers and a target"),
        (b'{"input": "1,2,x", "output": "3"}', "line 2: expected 3 whole numbers and a target"),
        (b'{"input": "1,2,-3", "output": "3"}', "line 2: expected 3 whole numbers and a target"),
        (b'{"input": "1,2,300", "output": "3"}', "line 2: expected numbers up to 100"),
        (b'{"input": "1,1,1", "output": "97"}', "line 2: 97 cannot be made of 1,1,1"),
        (b'{"input": "15,44,79,50", "output": "44-15=29,79-28=51"}', "line 2: .* does not make 50"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b'{"input": "30,100,93", "output": "23"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=message):
        read_problems(file)


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        read_problems(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="at least one problem"):
        read_problems(tmp_path / "empty.jsonl")


def test_published_problems_are_in_the_test_split() -> None:
    """A problem that stands in a published file is never trained on or validated with, whatever its writing and its hash."""
    numbers, target = (30, 100, 93), 23  # d1's first
    wrong = [split for split in ("train", "validation") if split_of(f"{sorted(numbers)} {target}") == split]
    assert wrong, "choose a published problem whose hash says something else than test"
    for written in ("30,100,93?23", "93,30,100?23"):
        problem = Problem(written, "", "", f"{sorted(numbers)} {target}")
        assert Countdown().split_for(problem) == "test"
    free = Problem("1,2,3?6", "", "", "[1, 2, 3] 6")
    assert Countdown().split_for(free) == split_of(free.form)
    kept = {split: Countdown(count=400, split=split).corpus for split in ("train", "validation", "test")}
    known = {
        split: sum(digest(p.form).hex() in load_published_digests() for p in corpus) for split, corpus in kept.items()
    }
    assert known["train"] == known["validation"] == 0 < known["test"]


@pytest.mark.parametrize(("name", "count"), [("d1_countdown_cd3_test", 256), ("pcsampler_countdown", 1000)])
def test_the_published_files(name: str, count: int) -> None:
    file = COUNTDOWN / f"{name}.jsonl"
    if not file.exists():
        pytest.skip("the published Countdown files are not here")
    task = read_problems(file)
    assert len(task) == count
    assert task.verify(range(count), task.canvas(range(count)).truth).exact.all()
    assert {Countdown().split_for(problem) for problem in task.problems} == {"test"}


@pytest.mark.filterwarnings("error")
def test_answers_and_rows_of_others_warn_of_nothing() -> None:
    """Python warns of their escapes and comparisons: thousands of lines on the terminal of a benchmark."""
    assert [node.name for node in parse_untrusted("def f(x):\n    return x is 3 or '\\w'").body] == ["f"]
    assert parse_untrusted("1 if 2is 2 else 3", mode="eval") is not None
    with pytest.raises(SyntaxError):
        parse_untrusted("def")
    for kind in (Countdown(), Code()):
        kind.grade(kind.problem(0), "def f(a):\n    return '\\w' is 3")
        kind.grade(kind.problem(0), "1if 2 is 3else 4")
