"""The command as its users meet it: what it prints, what it refuses and how, what it leaves behind when it is stopped."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from support.commands import Call
from support.forks import fork_command, latest_step
from unmask.cli import main as cli
from unmask.cli.shell import list_options, parse, resolve
from unmask.decoding.options import Decoding
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.report.terminal import tables as terminal
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.tasks.kinds import KINDS
from unmask.tasks.sudoku.files import read_csv
from unmask.tasks.sudoku.grid import parse as parse_board
from unmask.tasks.sudoku.solver import solve
from unmask.training.policy.run import PolicyRun
from unmask_studies.catalogue import list_studies

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
MODEL = ("--denoiser", "sudoku-9x9-imperfect")
pytestmark = pytest.mark.usefixtures("unchecked")
TINY = """# A run of seconds.
[model]
vocab_size = 5
width = 6
n_layers = 1
n_heads = 3
ffn = 8
mask_id = 0
max_length = 16
positions = "learned"
grid = 4
[data]
size = 4
puzzles = 50
[training]
samples = 800
batch = 8
ema = 0.9
log_every = 7
save_every = 5
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


REFUSED = {
    "": "expected a command: demo, play, decode",
    "decod": "no command 'decod': expected one of demo, .* did you mean 'decode'",
    "decode": "decode needs PUZZLE",
    "decode --blok 3 1234": "decode has no option --blok; did you mean '--block'",
    "decode absent.csv": "cannot read absent.csv: No such file",
    "decode 123": "expected a board of 16, 36 or 81 cells, got 3",
    f"decode {'x' + PUZZLE[1:]}": "got 'x' at character 1",
    f"decode {'55' + PUZZLE[2:]}": "has no solution: its clues contradict",
    f"decode {'00000' + PUZZLE[5:40] + '0' * 41}": "has several solutions: expected one",
    f"decode {PUZZLE} --scheduler confidnce": "no scheduler 'confidnce': .* did you mean 'confidence'",
    f"decode {PUZZLE} --scheduler top_k_random:k=-1": "k must be a whole number of at least 1, got '-1'",
    f"decode {PUZZLE} --schedler margin": "decode has no option --schedler; did you mean '--scheduler'",
    f"decode {PUZZLE} --ends sup": "--ends: expected one of allow, damp, suppress, .*confidence_eos_eot_inf, got 'sup'",
    f"decode {PUZZLE} --steps": "--steps: expected a value",
    f"decode {PUZZLE} --steps 0": "steps.*1, got.* 0",
    f"decode {PUZZLE} --seed 99999999999999999999": "seed: expected a number less than 2147483648",
    f"decode {PUZZLE} --seed x": "--seed: .*'x'",
    f"decode {PUZZLE} --speed 0": "speed: expected a number greater than 0",
    f"decode {PUZZLE} {PUZZLE}": "decode does not expect '53",
    "decode 1234341221434320 --denoiser sudoku-9x9-imperfect": "decodes 9x9 boards, but the puzzle is 4x4",
    "decode 1234341221434320 --denoiser text": "is not a denoiser of Sudoku boards",
    "evaluate --data small.csv": "decodes 9x9 boards, but the puzzles are 4x4",
    "evaluate --data broken.csv": "broken.csv, line 2: clues clash: digit 5 stands twice in row 1",
    "evaluate --limit 0": "at least one puzzle",
    "evaluate --limit 2 --batch 0": "batch: expected a number greater than or equal to 1",
    "evaluate --limit 2 --clues roa": "a range such as 30-40, got 'roa'",
    "evaluate --limit 2 --baseline confidnce": "the baseline 'confidnce' is not among the schedulers",
    "evaluate --limit 2 --schedulers ,": "name at least one scheduler",
    "evaluate --json folder": "cannot write folder: it is not a file",
    "evaluate --json small.csv --data small.csv": "would overwrite the puzzles",
    "data small.csv": "small.csv exists: name another file",
    "data new.csv --check small.csv": "not both",
    "data new.csv --count 1000000000000": "out of memory",
    "data new.csv --split tst": "split.*train.*validation.*test",
    "data --check folder": "folder is a directory",
    "pretrain": "pretrain needs --out PATH",
    "finetune --out new --adapter loro": "--adapter: expected one of '', lora, got 'loro'; did you mean 'lora'",
    "study llada --settings gsm8k-256-63": "no setting 'gsm8k-256-63' of the paper: .* did you mean 'gsm8k-256-64'",
    "pretrain --out new --preset sudoku-9x9-imperfet": "did you mean 'sudoku-9x9-imperfect'",
    "pretrain --out new --preset typo.toml": r"in \[training\].*did you mean 'samples'",
    "pretrain --out new --preset=nan.toml": "preset nan.toml: training.batch: expected a valid integer, got float nan",
    "pretrain --out new --samples 3": r"samples \(3\) must be at least one batch",
    "pretrain --out new --training.sampels 3": "no option --training.sampels; did you mean '--training.samples'",
    "pretrain --out folder": "expected folder to be absent or empty, but it holds precious; .* or resume the run",
    "demo --puzzles 0": "at least one puzzle",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_one_line_and_changes_nothing(command: Call, tmp_path: Path, words: str) -> None:
    (tmp_path / "small.csv").write_text("puzzle\n1234341221434320\n")
    (tmp_path / "broken.csv").write_text(f"puzzle\n{'55' + PUZZLE[2:]}\n")
    (tmp_path / "typo.toml").write_text(TINY.replace("samples", "sampels"))
    (tmp_path / "nan.toml").write_text(TINY.replace("batch = 8", "batch = nan"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text("kept")
    (tmp_path / "text").mkdir()
    if "text" in words.split():
        config = TransformerConfig(vocab_size=7, width=4, n_layers=1, n_heads=1, ffn=4, mask_id=6, max_length=16)
        save_denoiser(Transformer(config), tmp_path / "text")
    before = contents(tmp_path)
    words_list = words.split()
    if words_list[:1] == ["evaluate"] and "--denoiser" not in words_list:
        words_list += MODEL
    code, out, err = command(*words_list)
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("unmask: ")
    assert "Traceback" not in err
    assert re.search(REFUSED[words], err), err
    assert contents(tmp_path) == before


def test_the_version_is_that_of_the_installed_package(command: Call) -> None:
    code, out, _ = command("--version")
    assert code == 0 and out == f"unmask {importlib.metadata.version('unmask')}\n"


def test_help_lists_every_command_and_shows_examples_on_lines_of_their_own(command: Call) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert "$ unmask" not in out
    listed = re.findall(r"^  ([\w-]+)  +\w.*\.$", out, re.MULTILINE)
    assert listed == list(cli.COMMANDS)  # a line each, no line more
    code, out, _ = command("evaluate", "--help")
    examples = [line for line in out.splitlines() if "$ unmask" in line]
    assert code == 0
    assert len(examples) == 5
    assert all(line.count("unmask evaluate") == 1 for line in examples)


@pytest.mark.parametrize("words", ["--help", "--version", "decod", ""])
def test_help_and_mistyped_commands_do_not_import_torch(tmp_path: Path, words: str) -> None:
    script = f"""import sys
from unmask.cli.main import main
sys.argv = ["unmask", *{words.split()!r}]
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


WITH_STUDIES = [*cli.COMMANDS, *(f"study {name}" for name in list_studies())]


@pytest.mark.parametrize("command_and_study", WITH_STUDIES)
def test_every_boolean_option_works_in_both_directions(command_and_study: str) -> None:
    """Against the opposite, as a preset may set it."""
    name, *words = command_and_study.split()
    needed = {
        "decode": [PUZZLE],
        "generate": ["--denoiser", "x"],
        "figure": ["hero"],
        "view": ["x"],
        "report": ["x"],
        "train": ["--task", "text"],
        "react": ["C>>?", "--denoiser", "x"],
    }
    needed |= {"four-by-four": ["--policy.kind", "mlp"]}
    given = [*words, *needed.get(name, needed.get(words[-1] if words else "", []))]
    options = list_options(resolve(cli.COMMANDS[name], given))
    given += ["--out", "x"] if "--out" in options else []
    flags = [flag for flag, arg in options.items() if arg.lowered.action == "boolean_optional_action"]
    opposite = {
        flag: next(other for other in flags if options[other] is options[flag] and other != flag) for flag in flags
    }

    def made_by(*chosen: str) -> Any:
        return parse(cli.COMMANDS, "unmask", [name, *given, *(opposite[flag] for flag in chosen), *chosen])

    for negative in (False, True) if flags else ():
        group = [flag for flag in flags if ("no-" in flag) is negative]
        try:
            made = dict.fromkeys(group, made_by(*group))  # all at once, since a parse is slow
        except ValueError:  # some exclude each other
            made = {flag: made_by(flag) for flag in group}
        for flag, value in made.items():
            for part in options[flag].get_output_key().replace("-", "_").split("."):
                value = getattr(value, part)
            assert value is not negative, flag


WITH_TASKS = [f"{command} --task {task}" for command in ("train", "evaluate") for task in KINDS]


@pytest.mark.parametrize("words", [*cli.COMMANDS, *WITH_TASKS])
def test_help_explains_every_option(words: str) -> None:
    name, *rest = words.split()
    options = list_options(resolve(cli.COMMANDS[name], rest))
    help_of = {flag: arg.field.helptext for flag, arg in options.items()}
    assert [flag for flag, text in help_of.items() if not (text() if callable(text) else text)] == []


@pytest.mark.parametrize("name", ["decode", "evaluate", "generate", "lm-eval", "react", "trace", "train"])
def test_every_command_that_decodes_takes_every_decoding_option(name: str) -> None:
    """An option is declared in ``Decoding`` alone; here it may have a prefix, such as ``--decoding.cache``."""
    known = {
        flag.lstrip("-").rpartition(".")[2].replace("-", "_") for flag in list_options(resolve(cli.COMMANDS[name], []))
    }
    assert {field.name for field in fields(Decoding)} - known == set()


def test_rows_of_an_evaluation_have_a_decoding_in_common() -> None:
    words = ["evaluate", "--decoding.cache", "dual", "--decoding.block", "9", "--steps", "20", "--pace", "factor"]
    base = Decoding(block=9, cache="dual")
    rows = parse(cli.COMMANDS, "unmask", words).decodings
    assert rows == {"20 steps": replace(base, steps=20), "factor": replace(base, pace="factor")}
    assert parse(cli.COMMANDS, "unmask", words[:5]).decodings == {"blocks of 9": base}
    assert parse(cli.COMMANDS, "unmask", words[:1]).decodings == {"sequential": Decoding()}


def test_an_option_overrides_a_boolean_of_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("chat = true\nmultiturn = true\n[answers]\nlength = 4")
    words = ["lm-eval", "--preset", str(tmp_path / "mine.toml"), "--out", "x"]
    assert parse(cli.COMMANDS, "unmask", words).config.chat
    changed = parse(cli.COMMANDS, "unmask", [*words, "--no-chat", "--block", "2"]).config
    assert (
        not changed.chat and changed.multiturn and changed.answers.decoding.block == 2 and changed.answers.length == 4
    )


def test_every_field_of_a_preset_is_an_option() -> None:
    words = [
        "train",
        "--out",
        "x",
        "--training.steps",
        "3",
        "--policy.width",
        "8",
        "--data.puzzles",
        "5",
        "--seed",
        "4",
    ]
    made = parse(cli.COMMANDS, "unmask", words)
    preset = load_preset("default", PolicyRun, "train")
    expected = replace(
        preset,
        training=replace(preset.training, steps=3),
        policy=replace(preset.policy, width=8),
        data=replace(cast(Any, preset.data), puzzles=5, clues="26-42"),  # those to learn from
        candidates=(),  # a policy that is described is the one that is wanted
    )
    assert made.config == expected and made.seed == 4
    other = parse(cli.COMMANDS, "unmask", ["train", "--out", "x", "--preset", "default", "--task", "arithmetic"]).config
    assert other.data.kind == "arithmetic" and other.policy == preset.policy


def test_decode_prints_the_whole_trajectory_as_json(command: Call) -> None:
    code, out, err = command("decode", PUZZLE, *MODEL, "--json", "--scheduler", "entropy")
    assert (code, err) == (0, "")
    record = json.loads(out)
    blanks = [cell for cell, digit in enumerate(PUZZLE) if digit == "0"]
    assert sorted(record["order"]) == blanks
    assert record["step"] == list(range(len(blanks)))
    assert record["denoiser_calls"] == len(blanks)
    assert sum(record["token_logp"]) == pytest.approx(record["trajectory_logp"], abs=1e-3)
    truth = "".join(map(str, np.asarray(solve(parse_board(PUZZLE)))))
    assert record["solved"] == (record["answer"] == truth)
    wrong = [k for k, cell in enumerate(record["order"]) if record["answer"][cell] != truth[cell]]
    assert record["first_wrong"] == (wrong[0] if wrong else None)


def test_decode_uses_the_learned_order_and_says_where_it_leaves_confidence(command: Call) -> None:
    code, out, err = command("decode", PUZZLE, *MODEL, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    beside = record["compared"]
    assert (record["scheduler"], beside["scheduler"]) == ("sas", "confidence")
    parts = beside["parts_at"]
    assert record["order"][:parts] == beside["order"][:parts]
    assert record["order"][parts] != beside["order"][parts]
    alone = json.loads(command("decode", PUZZLE, *MODEL, "--json", "--scheduler", "confidence")[1])
    assert "compared" not in alone and alone["order"] == beside["order"]
    code, out, _ = command("decode", PUZZLE, *MODEL)
    row, column = divmod(record["order"][parts], 9)
    digit = record["answer"][record["order"][parts]]
    assert code == 0
    assert f"the two part at reveal {parts + 1}: {digit} at row {row + 1}, column {column + 1}" in out
    same = command("decode", PUZZLE, *MODEL, "--scheduler", "margin", "--compare", "margin")[1]
    assert "margin order" in same and "the same cells in the same order" in same


def test_decode_of_a_file_follows_evaluate(command: Call, tmp_path: Path) -> None:
    """The same puzzles, the same seeds: the random orders of both solve the same ones. Nothing in a pipe but text."""
    assert command("data", "p.csv", "--count", "3", "--clues", "44-46", "--seed", "4")[0] == 0
    words = ("--schedulers", "random,left_to_right", "--data", "p.csv", "--seed", "2", "--by-difficulty")
    code, table, err = command("evaluate", *MODEL, *words, "--json", "r.json", "--no-nll")
    assert (code, err) == (0, "")
    assert "\x1b" not in table
    assert "n = 3" in table
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["n"] == 3
    assert stored["command"].startswith("unmask evaluate --denoiser")
    fields = {"scheduler", "exact", "exact_low", "exact_high", "cell", "nll", "denoiser_calls", "seconds"}
    assert all(row.keys() >= fields for row in stored["rows"])
    code, out, _ = command("decode", "p.csv", *MODEL, "--scheduler", "random", "--seed", "2", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["puzzle"] for record in records] == ["".join(map(str, row)) for row in read_csv("p.csv").puzzles]
    assert "".join(str(int(record["solved"])) for record in records) == stored["rows"][0]["solved"]


def test_decode_draws_boards_without_escape_codes(command: Call) -> None:
    code, out, _ = command("decode", PUZZLE, *MODEL, "--scheduler", "right_to_left")
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("right_to_left order, sudoku-9x9-imperfect: ")
    assert lines[2].split("  ")[0].replace("!", " ").startswith("5 3 ")
    # The last blank goes first.
    assert out.split()[-3:] == ["1", "·", "·"]
    assert ("!" in out) == ("wrong" in lines[0])


def test_no_colour_where_no_color_is_set() -> None:
    def drawn(no_color: bool) -> str:
        screen = Console(force_terminal=True, no_color=no_color, color_system="truecolor", width=80)
        rank = np.full(16, -1)
        rank[[3, 7]] = [0, 1]
        with screen.capture() as capture:
            screen.print(terminal.board(np.arange(16) % 4 + 1, rank, rank == 1))
            screen.print(terminal.ranks(rank))
        return capture.get()

    assert "\x1b[38;2" in drawn(no_color=False)
    assert "\x1b[38;2" not in drawn(no_color=True)
    assert drawn(no_color=True).count("!") == 1


def test_data_and_its_check(command: Call, tmp_path: Path) -> None:
    code, out, _ = command("data", "p.csv", "--count", "20", "--size", "4", "--seed", "1")
    assert (code, out) == (0, "wrote 20 puzzles (test split, seed 1) to p.csv\n")
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    code, out, _ = command("data", "--check", "p.csv")
    assert code == 0
    assert out.startswith("p.csv: 20 puzzles, each with one solution; clues ")
    shares = [float(line.split("│")[3].strip().rstrip("%")) for line in out.splitlines() if "%" in line]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_presets_lists_what_there_is(command: Call) -> None:
    code, out, _ = command("presets")
    assert code == 0
    for name in ("sudoku-9x9-imperfect", "pretrain", "confidence", "expert"):
        assert name in out


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_is_one_line(command: Call, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    def stop(*args: object, **options: object) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(1)

    monkeypatch.setattr("unmask.cli.sudoku.read_csv", stop)
    before = signal.getsignal(signal.SIGTERM)
    stopped, out, err = command("data", "--check", "p.csv")
    assert (stopped, out, err.count("\n")) == (code, "", 1)
    assert "--resume" not in err  # nothing to go on with
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.setattr("unmask.cli.train.load_run", stop)
    stopped, _, err = command("train", "--out", "runs/order")
    assert stopped == code and err.count("\n") == 1 and "train goes on with --resume" in err


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """In an interpreter of its own, which writes what is left when it ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (1, "")


def test_stopped_killed_and_resumed_is_bit_for_bit_the_same(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    words = ("pretrain", "--preset", "tiny.toml", "--out")
    assert command(*words, "whole")[0] == 0
    reached = 0
    for stop, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        process = fork_command(tmp_path, *words, "broken", "--resume")
        process.until(lambda: latest_step(tmp_path / "broken") > reached)  # noqa: B023
        process.send_signal(stop)
        _, err = process.communicate()
        assert process.returncode == code, err
        assert err.count("\n") == (1 if stop == signal.SIGTERM else 0), err
        checkpoint = Run(tmp_path / "broken").load_latest()
        assert checkpoint is not None
        assert reached < checkpoint.step < 100
        reached = checkpoint.step
    code, _, err = command(*words, "broken")
    assert code == 2
    assert "resume" in err
    assert command(*words, "broken", "--resume")[0] == 0
    whole, broken = (tmp_path / name / "denoiser" / "model.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    losses = [[(r["step"], r["loss"]) for r in Run(tmp_path / name).metrics()] for name in ("whole", "broken")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 15
