"""lm-eval's model class: likelihoods against plain loops, rows against their batch, a killed run against a whole one."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from support.families import write
from support.tokenizers import words
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.lm_eval.model import UnmaskLM
from unmask.evaluation.lm_eval.samples import SampleLog
from unmask.evaluation.lm_eval.session import Session
from unmask.evaluation.lm_eval.settings import AnswerOptions, LmEval
from unmask.generation.likelihood import monte_carlo_likelihood, order_likelihood
from unmask.schedulers.loading import load_scheduler

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
CONTEXTS = ["w3 w4 w5 w6 w7", "w8", "w10 w11 w12 w13 w14 w15 w16", "w9 w9"]
ANSWERS = [" w1 w2 w4", " w5", " w6 w7 w8 w9", " w10 w3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write(tmp_path_factory.mktemp("tiny") / "llada", "llada", max_sequence_length=4096)
    words(size=31, eos=27, chat=True, bos=26).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def denoiser(folder: Path) -> Any:
    return load_denoiser(folder)


def lm(folder: Path, denoiser: Any, options: AnswerOptions | None = None, **given: Any) -> UnmaskLM:
    return UnmaskLM(denoiser, options, tokenizer=str(folder), **given)


def logged(path: Path, **callbacks: Any) -> Session:
    return Session(SampleLog(path), **callbacks)


def instances(kind: Any, *arguments: Any) -> list[Instance]:
    return [Instance(kind, {}, one, 0, ("task", n, 1)) for n, one in enumerate(arguments)]


def generations(**options: Any) -> list[Instance]:
    return instances("generate_until", *((context, {"until": [], **options}) for context in CONTEXTS))


def logp_at(denoiser: Any, ids: list[int], place: int) -> torch.Tensor:
    """log p at one position of one canvas, with nothing of the loop: a softmax without the forbidden tokens."""
    logits = denoiser.logits(denoiser.hidden(torch.tensor([ids]))[0, place][None])[0].double()
    logits[list(denoiser.forbidden_ids)] = -math.inf
    return logits.log_softmax(0)


def by_hand(denoiser: Any, prompt: list[int], answer: list[int], order: list[int] | str) -> tuple[float, bool]:
    """Reveal the answer in a given order, or the most confident position first."""
    canvas, total, greedy = prompt + [denoiser.mask_id] * len(answer), 0.0, True
    left = list(range(len(answer)))
    while left:
        rows = {i: logp_at(denoiser, canvas, len(prompt) + i) for i in left}
        i = (
            max(left, key=lambda i: float(rows[i].max()))
            if order == "confidence"
            else next(j for j in order if j in left)
        )
        total += float(rows[i][answer[i]])
        greedy = greedy and int(rows[i].argmax()) == answer[i]
        canvas[len(prompt) + i] = answer[i]
        left.remove(i)
    return total, greedy


@pytest.mark.parametrize("scheduler", ["confidence", "left_to_right"])
def test_exact_likelihood_by_hand(folder: Path, denoiser: Any, scheduler: str) -> None:
    model = lm(folder, denoiser, AnswerOptions(scheduler=scheduler), batch_size=3)
    found = model.loglikelihood(instances("loglikelihood", *zip(CONTEXTS, ANSWERS, strict=True)))
    for (logp, greedy), context, answer in zip(found, CONTEXTS, ANSWERS, strict=True):
        prompt = [26, *(int(word[1:]) for word in context.split())]
        ids = [int(word[1:]) for word in answer.split()]
        order = "confidence" if scheduler == "confidence" else list(range(len(ids)))
        expected, likeliest = by_hand(denoiser, prompt, ids, order)
        assert logp == pytest.approx(expected, abs=1e-4)
        assert greedy is likeliest


def test_the_decoded_answer_is_greedy(folder: Path, denoiser: Any) -> None:
    model = lm(folder, denoiser, AnswerOptions(length=4, scheduler="margin", decoding=Decoding(block=2)))
    texts = model.generate_until(generations())
    full = [(c, f" {t}") for c, t in zip(CONTEXTS, texts, strict=True) if len(t.split()) == 4]
    assert full
    assert all(greedy for _, greedy in model.loglikelihood(instances("loglikelihood", *full)))
    changed = [(c, " " + " ".join([*t.split()[:-1], "w20" if t.split()[-1] != "w20" else "w21"])) for c, t in full]
    assert not any(greedy for _, greedy in model.loglikelihood(instances("loglikelihood", *changed)))


def test_parallel_likelihood_shares_a_context(denoiser: Any) -> None:
    """Two reveals in one step are priced without each other."""
    prompt, answer = [3, 4], [5, 6]
    got = order_likelihood(denoiser, load_scheduler("left_to_right"), [prompt], [answer], Decoding(steps=1))
    canvas = [*prompt, denoiser.mask_id, denoiser.mask_id]
    assert got.logp[0] == pytest.approx(
        sum(float(logp_at(denoiser, canvas, 2 + i)[answer[i]]) for i in (0, 1)), abs=1e-4
    )
    assert got.denoiser_calls == 1


def test_monte_carlo_is_unbiased(denoiser: Any) -> None:
    """The mean over seeds is the mean over all orders, which the exact sum over all masks is too."""
    prompt, answer = [3, 4, 5], [6, 7, 8]
    orders = [by_hand(denoiser, prompt, answer, list(order))[0] for order in itertools.permutations(range(3))]
    exact = sum(orders) / len(orders)
    masks = 0.0
    for size in (1, 2, 3):
        subsets = list(itertools.combinations(range(3), size))
        for hidden in subsets:
            canvas = prompt + [denoiser.mask_id if i in hidden else answer[i] for i in range(3)]
            masks += sum(float(logp_at(denoiser, canvas, 3 + i)[answer[i]]) for i in hidden) / size / len(subsets)
    assert masks == pytest.approx(exact, abs=1e-6)
    seeds = list(range(400))
    got = monte_carlo_likelihood(denoiser, [prompt] * 400, [answer] * 400, seeds, samples=2, rows_at_once=400)
    values = torch.tensor(got.logp)
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / 20
    assert float(values.std()) > 0.01
    assert got.denoiser_calls == 800
    again = monte_carlo_likelihood(denoiser, [prompt], [answer], [7], samples=2, rows_at_once=1)
    assert again.logp[0] == pytest.approx(got.logp[7], abs=1e-4)


def test_monte_carlo_in_the_harness(folder: Path, denoiser: Any) -> None:
    requests = instances("loglikelihood", *zip(CONTEXTS, ANSWERS, strict=True))
    one = lm(folder, denoiser, AnswerOptions(likelihood="monte_carlo", samples=8), batch_size=1).loglikelihood(requests)
    many = lm(folder, denoiser, AnswerOptions(likelihood="monte_carlo", samples=8), batch_size=5).loglikelihood(
        requests
    )
    assert [x for x, _ in one] == pytest.approx([x for x, _ in many], abs=1e-3)
    assert not any(greedy for _, greedy in one)
    exact = lm(folder, denoiser).loglikelihood(requests)
    looked = lm(folder, denoiser, AnswerOptions(likelihood="monte_carlo", samples=8, greedy=True)).loglikelihood(
        requests
    )
    assert [greedy for _, greedy in looked] == [greedy for _, greedy in exact]


def test_guided_likelihood(folder: Path, denoiser: Any) -> None:
    """Of one token: the guided logits, written out."""
    ((logp, _),) = lm(folder, denoiser, AnswerOptions(decoding=Decoding(guidance=1.5))).loglikelihood(
        instances("loglikelihood", ("w3 w4", " w5"))
    )
    mask = denoiser.mask_id
    hidden = denoiser.hidden(torch.tensor([[26, 3, 4, mask], [mask, mask, mask, mask]]))[:, -1]
    with_prompt, without = denoiser.logits(hidden).double()
    logits = without + 2.5 * (with_prompt - without)
    logits[list(denoiser.forbidden_ids)] = -math.inf
    assert logp == pytest.approx(float(logits.log_softmax(0)[5]), abs=1e-4)


WAYS = {
    "plain": AnswerOptions(length=6),
    "drawn": AnswerOptions(length=6, decoding=Decoding(block=3, steps=4, token_temperature=1.0, order_temperature=0.5)),
    "guided": AnswerOptions(length=6, scheduler="entropy", decoding=Decoding(guidance=1.0, ends="suppress")),
    "threshold": AnswerOptions(length=6, decoding=Decoding(pace="threshold:p=0.3", ends="damp")),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_do_not_depend_on_their_batch(folder: Path, denoiser: Any, way: str) -> None:
    alone = lm(folder, denoiser, WAYS[way], batch_size=1)
    processes = lm(folder, denoiser, WAYS[way], batch_size=3)
    texts = alone.generate_until(generations())
    assert processes.generate_until(list(reversed(generations()))) == texts[::-1]
    assert processes.cost.reveals == alone.cost.reveals
    assert (
        processes.cost.denoiser_calls
        == alone.cost.denoiser_calls
        == pytest.approx(alone.cost.steps * (1 + (way == "guided")))
    )


def test_repeated_requests_differ_and_the_seed_matters(folder: Path, denoiser: Any) -> None:
    hot = AnswerOptions(length=8, decoding=Decoding(token_temperature=2.0))
    request = instances("generate_until", ("w3 w4", {"until": []}))[0]
    first, second = lm(folder, denoiser, hot).generate_until([request, request])
    assert first != second
    assert lm(folder, denoiser, hot).generate_until([request]) == [first]
    assert lm(folder, denoiser, replace(hot, seed=1)).generate_until([request]) != [first]


def test_stop_strings_and_lengths(folder: Path, denoiser: Any) -> None:
    model = lm(folder, denoiser, AnswerOptions(length=6, decoding=Decoding(steps=3, ends="suppress")))
    whole = model.generate_until(generations())
    assert any(len(text.split()) > 1 for text in whole)
    for text, short in zip(whole, model.generate_until(generations(max_gen_toks=2)), strict=True):
        assert len(short.split()) <= 2
        word = text.split()[1] if len(text.split()) > 1 else "absent"
        later = text.split()[-1]
        request = instances("generate_until", (CONTEXTS[whole.index(text)], {"until": [later, word]}))
        (cut,) = model.generate_until(
            [Instance("generate_until", {}, request[0].args, 0, ("task", whole.index(text), 1))]
        )
        assert cut == text[: min(text.find(stop) for stop in (word, later) if stop in text)]
    (one,) = model.generate_until(instances("generate_until", (CONTEXTS[0], {"until": "w"})))
    assert "w" not in one
    assert AnswerOptions(length=6, decoding=Decoding(steps=3)).decoding_of(2).steps == 1
    assert AnswerOptions(length=8, decoding=Decoding(block=2, steps=4)).decoding_of(16).steps == 8
    assert AnswerOptions(length=8, decoding=Decoding(block=2, steps=4)).decoding_of(3).steps == 2
    with pytest.raises(ValueError, match="no generation option 'num_beams'"):
        model.generate_until(generations(num_beams=2))
    with pytest.raises(ValueError, match="exceed the longest canvas, 8"):
        lm(folder, denoiser, AnswerOptions(length=6), max_length=8).generate_until(generations())


def test_sampling_options_of_the_request(folder: Path, denoiser: Any) -> None:
    greedy = lm(folder, denoiser, AnswerOptions(length=6))
    cold = greedy.generate_until(generations(temperature=2.0, do_sample=False))
    assert cold == greedy.generate_until(generations())
    hot = greedy.generate_until(generations(temperature=2.0, do_sample=True))
    assert hot != cold
    assert hot != lm(folder, denoiser, AnswerOptions(length=6)).generate_until(
        generations(temperature=2.0, do_sample=True, top_p=0.01)
    )


def test_rolling_likelihood_is_a_sum_of_windows(folder: Path, denoiser: Any) -> None:
    text = " ".join(f"w{n % 20 + 1}" for n in range(9))
    model = lm(folder, denoiser, AnswerOptions(scheduler="left_to_right"))
    (whole,) = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))
    ids = [int(word[1:]) for word in text.split()]
    assert whole == pytest.approx(by_hand(denoiser, [26], ids, list(range(9)))[0], abs=1e-3)
    short = lm(folder, denoiser, AnswerOptions(scheduler="left_to_right"), max_length=7)
    (windows,) = short.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))
    parts = [([26, *ids[max(0, s - 3) : s]], ids[s : s + 3]) for s in (0, 3, 6)]
    expected = sum(by_hand(denoiser, prompt, answer, [0, 1, 2])[0] for prompt, answer in parts)
    assert windows == pytest.approx(expected, abs=1e-3)
    assert model.loglikelihood_rolling(instances("loglikelihood_rolling", ("",))) == [0.0]


def test_a_chat_template_gets_one_opening_token(folder: Path, denoiser: Any) -> None:
    model = lm(folder, denoiser)
    turns = [
        {"role": "user", "content": "w5"},
        {"role": "assistant", "content": "w6"},
        {"role": "user", "content": "w7"},
    ]
    assert model.apply_chat_template(turns) == "w1 w5 w2 w1 w6 w2 w1 w7 w2 w3"
    assert model.tokenizer_name and "/" not in model.tokenizer_name
    assert model.tokenizer.encode("w5") == [26, 5]
    assert model.tokenizer.encode("<bos> w5") == [26, 5]


def test_trailing_spaces_belong_to_the_answer(folder: Path, denoiser: Any) -> None:
    model = lm(folder, denoiser)
    same = model.loglikelihood(instances("loglikelihood", ("w3 w4 ", "w5"), ("w3 w4", " w5"), ("", "w5"), ("w3", "")))
    assert same[0] == same[1]
    assert same[2][0] == pytest.approx(float(logp_at(denoiser, [26, denoiser.mask_id], 1)[5]), abs=1e-4)
    assert same[3] == (0.0, True)


def test_a_killed_run_repeats_no_finished_sample(folder: Path, denoiser: Any, tmp_path: Path) -> None:
    log, way = tmp_path / "samples.jsonl", WAYS["drawn"]
    expected = lm(folder, denoiser, way).generate_until(generations())
    child = os.fork()
    if child == 0:  # killed as soon as two samples are finished

        def kill(done: int, total: int) -> None:
            if done == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        lm(folder, denoiser, way, batch_size=1, session=logged(log, on_sample=kill)).generate_until(generations())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = log.read_bytes()
    assert before.count(b"\n") == 2
    log.write_bytes(before + b'{"key": "abc", "resp')  # as if the third had been torn
    calls = denoiser.forwarded
    model = lm(folder, denoiser, way, batch_size=1, session=logged(log))
    assert model.generate_until(generations()) == expected
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 4
    assert log.read_bytes().startswith(before)
    assert denoiser.forwarded - calls == sum(line["steps"] for line in lines[2:])
    assert model.cost.requests == 4 and model.cost.steps == sum(line["steps"] for line in lines)
    calls = denoiser.forwarded
    assert lm(folder, denoiser, way, batch_size=4, session=logged(log)).generate_until(generations()) == expected
    assert denoiser.forwarded == calls
    # Other settings are other samples.
    lm(folder, denoiser, WAYS["plain"], session=logged(log)).generate_until(generations())
    assert denoiser.forwarded > calls


def test_finished_likelihoods_are_not_repeated(folder: Path, denoiser: Any, tmp_path: Path) -> None:
    requests = instances("loglikelihood", *zip(CONTEXTS, ANSWERS, strict=True))
    first = lm(folder, denoiser, session=logged(tmp_path / "log")).loglikelihood(requests)
    calls = denoiser.forwarded
    assert lm(folder, denoiser, session=logged(tmp_path / "log")).loglikelihood(requests) == first
    assert denoiser.forwarded == calls


def test_a_log_ignores_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'not json\n[1]\n{"key": "a", "x": 1}\n{"key": "b"')
    log = SampleLog(path)
    assert log.get("a") == {"key": "a", "x": 1} and log.get("b") is None
    log.add({"key": "b", "x": 2})
    assert SampleLog(path).get("b") == {"key": "b", "x": 2}


def test_model_args_of_the_registered_model(folder: Path) -> None:
    model: Any = get_model("unmask").create_from_arg_string(
        f"denoiser={folder},length=4,block=2,guidance=1,scheduler=margin", {"batch_size": 2, "device": None}
    )
    assert isinstance(model, UnmaskLM)
    assert model.options == AnswerOptions(length=4, scheduler="margin", decoding=Decoding(block=2, guidance=1.0))
    assert model.batch == 2
    with pytest.raises(ValueError, match=r"no model argument 'lenght'.*did you mean 'length'"):
        UnmaskLM(str(folder), lenght=4)
    with pytest.raises(ValueError, match=r"length: expected a valid integer, got str 'many'"):
        UnmaskLM(str(folder), length="many")
    with pytest.raises(ValueError, match="batch_size must be a number"):
        UnmaskLM(str(folder), batch_size="auto")


@pytest.mark.parametrize("task", ["gsm8k", "mbpp", "math500", "ifeval", "humaneval"])
def test_real_problems_end_to_end(folder: Path, tmp_path: Path, task: str) -> None:
    if not (DATA / task).is_dir():
        pytest.skip(f"{task}'s files are not here")
    from unmask.evaluation.lm_eval.run import run_lm_eval
    from unmask.evaluation.lm_eval.tasks import MAIN_METRIC

    config = LmEval(
        task=task,
        denoiser=str(folder),
        data=str(DATA),
        limit=2,
        answers=AnswerOptions(length=4, decoding=Decoding(steps=2)),
    )
    results = run_lm_eval(config, tmp_path / "run")
    assert results is not None
    assert MAIN_METRIC[task] in results["scores"]
    assert results["documents"] == 2
    assert all(0 <= score <= 1 for score in results["scores"].values())
    assert results["model"]["cost"]["requests"] == 2
    assert results["model"]["cost"]["denoiser_calls"] <= 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "scores.jsonl").read_text().splitlines()]
    assert {line["doc"] for line in lines} == {0, 1}


def test_correct_solutions_score(tmp_path: Path) -> None:
    """The benchmarks' own solutions, handed to the scorers as responses."""
    if not (DATA / "mbpp").is_dir():
        pytest.skip("the benchmark files are not here")
    from unmask.evaluation.lm_eval.tasks import load_task
    from unmask.tasks.sandbox.sandbox import find_missing_protection

    if find_missing_protection():
        pytest.skip(f"this machine cannot confine code: it lacks {find_missing_protection()}")
    mbpp, humaneval = load_task("mbpp", DATA), load_task("humaneval", DATA)
    doc = mbpp.dataset["test"][0]
    assert mbpp.process_results(doc, [doc["code"]]) == {"pass_at_1": 1.0}
    assert mbpp.process_results(doc, [f"Sure:\n```python\n{doc['code']}\n```"]) == {"pass_at_1": 1.0}
    assert mbpp.process_results(doc, ["import os; os._exit(0)"]) == {"pass_at_1": 0.0}
    doc = humaneval.dataset["test"][0]
    assert humaneval.process_results(doc, [doc["canonical_solution"]]) == {"pass_at_1": 1.0}
    assert humaneval.process_results(doc, ["    return None"]) == {"pass_at_1": 0.0}
    context = mbpp.fewshot_context(mbpp.dataset["test"][0], 3)
    assert context.count("[BEGIN]") == 4 and context.count("[DONE]") == 3
    math = load_task("math500", DATA)
    docs = math.test_docs()
    assert math.process_results(docs[0], [docs[0]["solution"]])["boxed_match"] == 1.0
    assert math.process_results(docs[0], [docs[0]["solution"]])["math_verify"] == 1
    assert math.process_results(docs[0], ["\\boxed{1}"])["boxed_match"] == 0.0


def test_lm_eval_finds_the_model_by_its_entry_point() -> None:
    """lm-eval records the entry point as a placeholder under its name, and loads it when a run names the model."""
    from importlib.metadata import entry_points

    from lm_eval.api.registry import Registry

    (entry,) = [one for one in entry_points(group="lm_eval.models") if one.name == "unmask"]
    registry: Any = Registry("models")
    registry.register("unmask", target=entry)
    assert registry.get("unmask") is UnmaskLM
