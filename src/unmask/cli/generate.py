"""``unmask generate``: continue prompts, or fill the gaps of texts, and watch the order in which the tokens come."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from unmask.cli.shell import Inline, console, moving_picture, require_new_folder
from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import Step
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import Placement
from unmask.generation.generate import Generation, Watch, generate, infill
from unmask.generation.text_canvas import (
    TextCanvas,
    as_turns,
    gap_canvas,
    is_conversation,
    load_tokenizer,
    prompt_canvas,
)
from unmask.report.terminal.text import LiveText, Pieces, printable
from unmask.report.traces.record import write
from unmask.report.traces.text import trace_texts
from unmask.runs.bounded import read_bounded_text
from unmask.runs.config import Count, Seed, config
from unmask.runs.jsonable import parse_json_lines
from unmask.schedulers.loading import load_scheduler


@config
class Generate:
    """Continue prompts, or fill the gaps of texts. Shows the order as it comes.

    $ unmask generate --denoiser GSAI-ML/LLaDA-8B-Instruct --chat --prompt "Why is the sky blue?" --length 128 --block 32 --steps 64
    $ unmask generate --denoiser answerdotai/ModernBERT-base --infill --prompt "The <mask> sat on the <mask:2>."
    $ unmask generate --denoiser models/llada --file prompts.jsonl --json
    """

    denoiser: str  # A folder, a safetensors file or a hub id.
    prompt: str | None = None  # The text to continue, or with --infill the text whose gaps to fill.
    file: str | None = None
    """JSON lines, each with a "prompt" (a text, or the turns of a conversation); "-" is standard input. Without prompt and file it
    is standard input, which may also be a single prompt as plain text."""
    length: int = 128  # How many tokens at most (L).
    scheduler: str = "confidence"  # Any name that `unmask presets` lists, or a learned policy's folder.
    decoding: Annotated[Decoding, Inline] = field(default_factory=Decoding)  # How to decode.
    chat: bool = False  # Put prompts into the tokenizer's chat template.
    infill: bool = False  # The prompts have gaps: <mask> for a token, <mask:8> for eight.
    tokenizer: str | None = None
    """A folder or hub id, if not the denoiser's own (SMDM has none: TinyLlama/TinyLlama_v1.1)."""
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the denoiser runs.
    batch: Count = 8  # How many prompts at once. Changes speed and memory only.
    seed: Seed = 0  # For everything that is random.
    live: bool = True  # On a terminal, show every step as it happens.
    lines: bool = False  # Print every step, a line each.
    json: bool = False  # Print JSON instead of text, one object a line.
    traces: Path | None = None
    """Also record every step for `unmask view`, into this new folder, a file per prompt. Prompts are decoded one by one."""

    def __post_init__(self) -> None:
        if self.json and self.lines:
            raise ValueError("expected --json or --lines, not both")
        if self.infill and self.chat:
            raise ValueError("expected --infill or --chat, not both: a template has no turns")

    def run(self) -> None:
        prompts = _read_prompts(self.prompt, self.file)
        if not self.chat and not all(isinstance(prompt, str) for prompt in prompts):
            raise ValueError("a prompt that is a conversation needs the chat template: add --chat, or give a text")
        if self.traces is not None:
            require_new_folder(self.traces)
        words = load_tokenizer(self.tokenizer or self.denoiser)
        model = load_denoiser(self.denoiser, **self.placement.options)
        scheduler, pieces = load_scheduler(self.scheduler, model, self.denoiser), Pieces(words)
        batch = self.batch if self.traces is None else 1  # a trace counts the denoiser calls of its own problem
        for start in range(0, len(prompts), batch):
            part = prompts[start : start + batch]
            inputs: list[Any] = [as_turns(prompt) for prompt in part] if self.chat else part
            # The seeds of `unmask evaluate`: the batch size changes nothing.
            seeds = row_seeds(self.seed, range(start, start + len(part))).tolist()
            if self.infill:
                canvas, complete = gap_canvas(model, words, inputs), infill
            else:
                canvas = prompt_canvas(model, words, inputs, self.length)
                complete = partial(generate, length=self.length)
            shown = LiveText(canvas, pieces, () if self.infill else model.end_ids, prompt=self.infill)
            with self._watch(shown) as on_step:
                watch = Watch(on_step, self.traces is not None)
                done = complete(model, words, inputs, scheduler, self.decoding, seeds=seeds, watch=watch)
            shown.finish(done.trajectory.tokens)
            if self.traces is not None:
                trajectories, problem = {self.scheduler: done.trajectory}, _name_problem(part[0], start)
                recorded = trace_texts(
                    model, pieces, done.canvas, trajectories, self.denoiser, self.decoding, [problem]
                )
                self.traces.mkdir(parents=True, exist_ok=True)
                write(recorded[0], self.traces / f"{start + 1:04d}.json")
            for row in range(len(part)):
                self._print(done, canvas, shown, row, part[row], (start + row, len(prompts)))

    def _print(
        self, done: Generation, canvas: TextCanvas, shown: LiveText, row: int, prompt: Any, number: tuple[int, int]
    ) -> None:
        text = done.texts[row]
        if self.json:
            sys.stdout.write(json_text.dumps({"prompt": prompt, "text": text, **_record(done, row, canvas)}) + "\n")
        else:
            console.print(f"{_heading(done, row, *number)} on {self.placement.describe()}", style="dim")
            console.print(shown.row(row) if console.is_terminal else Text(printable(text)), soft_wrap=True)

    @contextmanager
    def _watch(self, shown: LiveText) -> Iterator[Callable[[Step], None] | None]:
        """What every step calls: it prints a line, or redraws the picture, or keeps the order for its colours."""

        def print_line(step: Step) -> None:
            shown.on_step(step)
            console.print(shown.line(), soft_wrap=True)

        if self.lines:
            yield print_line
        else:
            with moving_picture(console, shown, self.live and not self.json):
                yield shown.on_step if console.is_terminal else None


def _name_problem(prompt: Any, number: int) -> str:
    """A prompt's name in the viewer: its number and its first words, of a conversation those of the last turn."""
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    line = " ".join(printable(text).split())
    return f"prompt {number + 1}: {line if len(line) <= 60 else line[:59] + '…'}"


def _heading(done: Generation, row: int, number: int, count: int) -> str:
    trajectory, rows = done.trajectory, len(done.texts)
    reveals = int(trajectory.reveals[row])
    steps = int(trajectory.step[row].max()) + 1 if reveals else 0
    of_batch = "" if rows == 1 else f" for {rows} prompts"
    which = f"{number + 1}/{count}: " if count > 1 else ""
    share = trajectory.positions / max(1, trajectory.denoiser_calls * trajectory.tokens.shape[1])
    of_positions = f" ({share:.0%} of their positions)" if share < 1 else ""
    calls = f"{trajectory.denoiser_calls} denoiser calls{of_positions}{of_batch}"
    taken = int(trajectory.revised[row])
    back = f", {taken} taken back" if taken else ""
    return f"{which}{reveals} tokens in {steps} steps{back}, {calls}, {trajectory.seconds:.2f} s"


def _record(done: Generation, row: int, canvas: TextCanvas) -> dict[str, Any]:
    trajectory = done.trajectory
    reveals = int(trajectory.reveals[row])
    return {
        "tokens": trajectory.tokens[row][canvas.region[row]].tolist(),
        "order": done.order(row),
        "step": trajectory.step[row, :reveals].tolist(),
        "token_logp": [round(value, 6) for value in trajectory.logp[row, :reveals].tolist()],
        "trajectory_logp": None if trajectory.revised[row] else round(float(trajectory.total_logp[row]), 6),
        "taken_back": int(trajectory.revised[row]),
        "batch": {
            "prompts": len(done.texts),
            "denoiser_calls": trajectory.denoiser_calls,
            "positions": trajectory.positions,
            "seconds": round(trajectory.seconds, 3),
        },
    }


def _read_prompts(prompt: str | None, file: str | None) -> list[Any]:
    """Texts, or conversations, of the one prompt, of a file or of standard input."""
    if prompt is not None and file is not None:
        raise ValueError(f"expected a prompt or a file, not both: got --prompt and --file {file}")
    if prompt is not None:
        return [prompt]
    source, text = _read_text(file)
    if file in (None, "-") and text.strip() and not text.lstrip().startswith("{"):
        return [text.removesuffix("\n")]
    prompts = [_find_prompt(value, place) for place, value in parse_json_lines(text.encode().split(b"\n"), source)]
    if not prompts:
        raise ValueError(f'{source} has no prompts: expected JSON lines with a "prompt" each')
    return prompts


def _read_text(file: str | None) -> tuple[str, str]:
    """A file or standard input: its name, and what it holds."""
    if file is None and sys.stdin.isatty():
        raise ValueError("there is nothing to continue: give --prompt TEXT, --file FILE, or prompts on standard input")
    source = "standard input" if file in (None, "-") else str(file)
    try:
        return source, sys.stdin.read() if file in (None, "-") else read_bounded_text(Path(source))
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8: {error.reason}") from error


def _find_prompt(record: Any, place: str) -> Any:
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str) and not is_conversation(prompt):
        form = '{"prompt": "…"}, a text or a list of {"role", "content"}'
        raise ValueError(f"{place}: expected {form}, got {json_text.dumps(record)[:60]}")
    return prompt
