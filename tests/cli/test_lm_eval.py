"""`unmask lm-eval` as its users meet it: the same scores as from Python, runs that resume, errors in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from support.families import write
from support.tokenizers import words
from unmask.cli import main as cli
from unmask.decoding.options import Decoding
from unmask.evaluation.lm_eval.model import UnmaskLM
from unmask.evaluation.lm_eval.run import evaluate_task, find_published
from unmask.evaluation.lm_eval.settings import AnswerOptions, LmEval
from unmask.evaluation.lm_eval.tasks import load_task
from unmask.report.benchmarks import published_key
from unmask.report.gather import gather
from unmask.report.traces.reading import read
from unmask.runs.presets import list_presets, load_preset

pytestmark = pytest.mark.usefixtures("unchecked")

PROBLEMS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write(tmp_path_factory.mktemp("tiny") / "llada", "llada", max_sequence_length=4096)
    words(size=31, eos=27, chat=True).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems whose answers a vocabulary of numbered words gets right now and then."""
    made = tmp_path_factory.mktemp("data")
    (made / "gsm8k").mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"w{n + 3} w{2 * n}", "answer": f"w{n}\n#### {2 + 20 * (n % 2)}"} for n in range(PROBLEMS)]
        (made / "gsm8k" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def run(monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["unmask", "lm-eval", *map(str, words)])
    cli.main()


def test_samples_leave_traces_and_are_the_same_with_them(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "--preset",
        "gsm8k-128-32",
        "--denoiser",
        folder,
        "--data",
        data,
        "--length",
        6,
        "--block",
        3,
        "--shots",
        1,
    ]
    run(monkeypatch, *given, "--limit", 3, "--out", tmp_path / "plain")
    run(monkeypatch, *given, "--limit", 3, "--traces", 2, "--out", tmp_path / "traced")
    both = [(tmp_path / name / "scores.jsonl").read_text() for name in ("plain", "traced")]
    assert both[0] == both[1]
    written = sorted((tmp_path / "traced" / "traces").iterdir())
    assert len(written) == 2 and "unmask view" in capsys.readouterr().out
    samples = [json.loads(line) for line in (tmp_path / "traced" / "samples.jsonl").read_text().splitlines()]
    for path in written:
        trace = read(path)
        (mine,) = (sample for sample in samples if trace.problem == f"{sample['task']}, problem {sample['doc']}")
        (decoded,) = trace.trajectories
        assert decoded.candidates is not None and decoded.denoiser_calls == mine["denoiser_calls"]
        assert len(decoded.order) == mine["reveals"] and max(decoded.step) + 1 == mine["steps"]


def test_the_command_and_python_agree(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    given = ["--preset", "gsm8k-128-32", "--denoiser", folder, "--data", data, "--dtype", "float32", "--length", 6]
    given += ["--block", 3, "--scheduler", "margin", "--shots", 2, "--ends", "suppress"]
    run(monkeypatch, *given, "--limit", 4, "--out", out)
    shown = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    options = AnswerOptions(length=6, scheduler="margin", decoding=Decoding(block=3, ends="suppress"))
    model = UnmaskLM(str(folder), options, batch_size=1)
    found = evaluate_task(model, load_task("gsm8k", data, shots=2, length=6), limit=4)
    assert results["scores"] == found["scores"]
    assert len(set(results["scores"].values())) > 0 and results["documents"] == 4
    texts = [json.loads(line)["response"] for line in (out / "samples.jsonl").read_text().splitlines()]
    assert sorted(texts) == sorted(record["response"] for record in model.session.log.records.values())
    assert "74.2%" not in shown  # what was published for margin is of another length
    assert "margin" in shown and "4 problems, 2-shot" in shown
    again = shown.split("another folder:")[1].split()
    assert again[:4] == ["unmask", "lm-eval", "--preset", "gsm8k-128-32"]

    # Resumed with more problems: the first four are not repeated.
    lines = (out / "samples.jsonl").read_text()
    run(monkeypatch, *given, "--limit", PROBLEMS, "--batch", 2, "--out", out, "--resume")
    assert (out / "samples.jsonl").read_text().startswith(lines)
    assert len((out / "samples.jsonl").read_text().splitlines()) == PROBLEMS
    assert json.loads((out / "results.json").read_text())["documents"] == PROBLEMS
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *given, "--out", out, "--resume", "--seed", 5)
    assert end.value.code == 2
    assert "cannot resume" in capsys.readouterr().err


def test_chat_and_turns_reach_the_prompt(folder: Path, data: Path) -> None:
    model = UnmaskLM(str(folder), AnswerOptions(length=2))
    seen: list[str] = []
    original = model.generate_until
    model.generate_until = lambda requests: [seen.extend(r.args[0] for r in requests), original(requests)][1]  # type: ignore
    task = load_task("gsm8k", data, shots=1, length=2)
    evaluate_task(model, task, limit=1, chat=True, multiturn=True)
    # The template writes w1 before each turn and w3 where the answer begins: example, its answer, question.
    assert seen[0].count("w1 ") == 3 and seen[0].endswith("w3")
    evaluate_task(model, load_task("gsm8k", data, shots=1, length=2), limit=1, chat=True, multiturn=False)
    assert seen[1].count("w1 ") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "gsm8k-256-all"], "unknown lm_eval preset 'gsm8k-256-all'; did you mean"),
        (["--data", "/nowhere"], "no file /nowhere/gsm8k/train.jsonl: for gsm8k the data folder must hold"),
        (["--limit", "0"], "limit: expected a number greater than or equal to 1"),
        (["--lenght", "3"], "has no option --lenght; did you mean '--length'?"),
        (["--scheduler", "confidnce"], "did you mean 'confidence'?"),
        (["--shots", "-1"], "shots must be at least 0, got -1"),
        (["--denoiser", "nowhere"], "no denoiser 'nowhere'"),
    ],
)
def test_errors_are_one_line(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], message: str,
) -> None:  # fmt: skip
    given = {"--denoiser": str(folder), "--data": str(data), "--length": "2", "--dtype": "float32"}
    given |= dict(zip(words[::2], words[1::2], strict=True))
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *(word for pair in given.items() for word in pair), "--out", tmp_path / "run")
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_an_existing_folder_is_refused(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "--denoiser", folder, "--data", data, "--length", 2, "--dtype", "float32", "--out", tmp_path)
    assert end.value.code == 2
    assert "to be absent or" in capsys.readouterr().err


def test_every_preset_says_what_it_reproduces() -> None:
    presets = list_presets("lm_eval")
    assert len(presets) == 35
    for preset in presets:
        config = load_preset(preset.name, LmEval, "lm_eval")
        numbers = [int(word) for word in preset.name.split("-") if word.isdigit()]
        length, decoding = config.answers.length, config.answers.decoding
        assert config.source and config.task in preset.name
        if numbers:
            assert numbers[0] == length
            whole = "any" in preset.name or (len(numbers) > 1 and numbers[1] == numbers[0])
            assert decoding.block == (None if whole else numbers[1])
        assert (decoding.steps or length) == (numbers[2] if len(numbers) > 2 else length)
        assert all(0 < value < 1 for value in config.published.values())


def test_published_numbers_stand_beside_their_own_settings_only(tmp_path: Path) -> None:
    preset = load_preset("gsm8k-128-32", LmEval, "lm_eval")
    assert find_published(preset)["margin"] == 0.742
    policy = replace(preset, answers=replace(preset.answers, scheduler="runs/order", seed=3), device="cuda", batch=2)
    assert find_published(policy)[published_key("runs/order")] == 0.788  # the paper's learned order
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text('{"kind": "hidden"}')
    assert find_published(policy)[published_key(str(tmp_path))] == 0.754
    for altered in (
        replace(preset, limit=10),
        replace(preset, shots=3),
        replace(preset, dtype="float32"),
        replace(preset, denoiser="models/other"),
        replace(preset, answers=replace(preset.answers, length=64)),
        replace(preset, answers=replace(preset.answers, decoding=Decoding(32, ends="suppress"))),
    ):
        assert find_published(altered) == {}


def test_benchmark_runs_are_put_together(
    folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--denoiser", folder, "--data", data, "--dtype", "float32", "--length", 6, "--shots", 1]
    for name, block in (("confidence", 3), ("random", 3), ("confidence", 6)):
        out = tmp_path / f"{name}-{block}"
        run(monkeypatch, "--preset", "gsm8k-128-32", *given, "--block", block, "--scheduler", name, "--out", out)
    capsys.readouterr()
    folders = sorted(str(path) for path in tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["unmask", "report", *folders, "--out", str(tmp_path / "page.html")])
    cli.main()
    shown, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    assert "gsm8k, 1-shot, n = 6, 95 % intervals" in shown
    assert "against confidence" in shown and "6-3" in shown and "6-6" in shown
    assert "published" not in shown and "Nothing was logged yet" not in page
    solved = {}
    for line in (tmp_path / "random-3" / "scores.jsonl").read_text().splitlines():
        score = json.loads(line)
        if score["filter"] == "flexible-extract":
            solved[score["doc"]] = score["exact_match"]
    (report,) = [one.report for one in gather([Path(one) for one in folders]).evaluations]
    row = report.row("random")
    assert row.solved == "".join(str(int(solved[doc])) for doc in sorted(solved))
    assert row.versus is not None and row.versus.baseline == "confidence"
    assert row.denoiser_calls > 0 and row.seconds > 0


TASK = """
task: numbers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
generation_kwargs: {{until: [], max_gen_toks: 4}}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
REGISTERED = "metadata: {version: 1.0, model: !function unmask.evaluation.lm_eval.model.UnmaskLM}\n"


def write_task(folder: Path) -> Path:
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"question": f"w{n}", "answer": "w2"}) + "\n" for n in range(3))
    )
    (folder / "numbers.yaml").write_text(TASK.format(file=folder / "rows.jsonl"))
    return folder / "numbers.yaml"


def command_line(folder: Path, task: Path) -> list[str]:
    given = ["--model", "unmask", "--model_args", f"denoiser={folder},length=4,block=2", "--tasks", str(task)]
    return [*given, "--output_path", str(task.parent / "results"), "--log_samples"]


def read_responses(folder: Path) -> list[str]:
    (samples,) = folder.rglob("samples_numbers*.jsonl")
    return [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]


def test_lm_evals_own_command_takes_the_best_device(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names cuda:0 where its user names none, also on machines that have none."""
    from lm_eval.__main__ import cli_evaluate

    monkeypatch.setattr(sys, "argv", ["lm_eval", *command_line(folder, write_task(tmp_path))])
    cli_evaluate()
    assert len(read_responses(tmp_path)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("module", ["lm_eval", "unmask.evaluation.lm_eval.model"])
def test_the_documented_lines_of_lm_evals_own_command(folder: Path, tmp_path: Path, module: str) -> None:
    """Its own command knows the model by a task's file that names it; ours by itself."""
    task = write_task(tmp_path)
    if module == "lm_eval":
        task.write_text(task.read_text() + REGISTERED)
    subprocess.run([sys.executable, "-m", module, *command_line(folder, task)], check=True, capture_output=True)
    options = AnswerOptions(length=4, decoding=Decoding(block=2))
    assert read_responses(tmp_path) == generate_texts(folder, options)


def generate_texts(folder: Path, options: AnswerOptions) -> list[str]:
    """The same requests, from Python."""
    from lm_eval.api.instance import Instance

    model = UnmaskLM(str(folder), options)
    arguments = {"until": [], "max_gen_toks": 4, "do_sample": False}
    return model.generate_until([Instance("generate_until", {}, (f"w{n}", arguments), n) for n in range(3)])
