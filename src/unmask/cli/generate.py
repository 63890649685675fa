"""``unmask generate``: continue prompts, or fill the gaps of texts, and watch the order in which the tokens come."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from unmask.cli.shell import console, moving_picture, require_new_folder
from unmask.decoding.loop import Step
from unmask.decoding.options import Cache, Decoding, Ends
from unmask.decoding.protocols import Scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.generation.generate import Generation, Watch, generate, infill
from unmask.generation.text_canvas import TextCanvas, gap_canvas, load_tokenizer, prompt_canvas
from unmask.report.terminal.text import LiveText, Pieces, printable
from unmask.report.traces.record import write
from unmask.report.traces.text import trace_texts
from unmask.schedulers.loading import load_scheduler

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def generate_command(
    denoiser: str,
    prompt: str | None = None,
    file: str | None = None,
    length: int = 128,
    block: int | None = None,
    steps: int | None = None,
    scheduler: str = "confidence",
    pace: str = "top",
    order_temperature: float = 0.0,
    token_temperature: float = 0.0,
    top_p: float = 1.0,
    ends: Ends = "allow",
    end_floor: float = 0.4,
    min_length: int = 0,
    guidance: float = 0.0,
    cache: Cache = "none",
    refresh: int | None = None,
    chat: bool = False,
    infill: bool = False,
    tokenizer: str | None = None,
    dtype: str = "float32",
    device: str | None = None,
    batch: int = 8,
    seed: int = 0,
    live: bool = True,
    lines: bool = False,
    json: bool = False,
    traces: Path | None = None,
) -> None:
    """Continue prompts, or fill the gaps of texts. Shows the order as it comes.

    $ unmask generate --denoiser GSAI-ML/LLaDA-8B-Instruct --chat --prompt "Why is the sky blue?" --length 128 --block 32 --steps 64
    $ unmask generate --denoiser answerdotai/ModernBERT-base --infill --prompt "The <mask> sat on the <mask:2>."
    $ unmask generate --denoiser models/llada --file prompts.jsonl --json

    Args:
        denoiser: A folder, a safetensors file or a hub id.
        prompt: The text to continue, or with --infill the text whose gaps to fill.
        file: JSON lines, each with a "prompt" (a text, or the turns of a conversation); "-" is standard input. Without prompt and
            file it is standard input, which may also be a single prompt as plain text.
        length: How many tokens at most (L).
        block: Block size, for semi-autoregressive decoding (B).
        steps: Step budget, for parallel decoding (T).
        scheduler: The order: any name that `unmask presets` lists, or a learned one's folder.
        pace: How many per step: top, threshold:p=0.9, factor, entropy_bound, kl_stable, dilated, bernoulli.
        order_temperature: 0 takes the position with the best score.
        token_temperature: 0 takes the likeliest token.
        top_p: Draw tokens only from the likeliest ones that together have this probability.
        ends: allow end tokens, damp them while little is revealed, or suppress them until nothing else is left.
        end_floor: How little damped end tokens begin with, a factor in [0, 1].
        min_length: No end token in this many positions.
        guidance: The scale of classifier-free guidance; twice the denoiser calls.
        cache: none, prefix (compute only from the block on) or dual (compute only the block); not exact, see docs/caching.md.
        refresh: With a cache, compute everything again after this many steps; otherwise only where a block begins.
        chat: Put prompts into the tokenizer's chat template.
        infill: The prompts have gaps: <mask> for a token, <mask:8> for eight.
        tokenizer: A folder or hub id, if not the denoiser's own (SMDM has none: TinyLlama/TinyLlama_v1.1).
        dtype: float32, bfloat16 or float16.
        device: Such as cuda; auto spreads the denoiser over all devices.
        batch: How many prompts at once. Changes speed and memory only.
        seed: For whatever is drawn.
        live: On a terminal, show every step as it happens.
        lines: Print every step, a line each.
        json: Print JSON instead of text, one object a line.
        traces: Also record every step for `unmask view`, into this new folder, a file per prompt. Prompts are decoded one by one.
    """
    prompts = _prompts(prompt, file)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {seed}")
    if json and lines:
        raise ValueError("expected --json or --lines, not both")
    if infill and chat:
        raise ValueError("expected --infill or --chat, not both: a template has no turns")
    if traces is not None:
        require_new_folder(traces)
        batch = 1  # a trace counts the denoiser calls of its own problem
    words = load_tokenizer(tokenizer or denoiser)
    placed: dict[str, Any] = {"device_map": "auto"} if device == "auto" else {"device": device}
    model = load_denoiser(denoiser, DTYPES[dtype], **placed)
    chosen = load_scheduler(scheduler, model, denoiser)
    options = Decoding(
        block=block,
        steps=steps,
        pace=pace,
        order_temperature=order_temperature,
        token_temperature=token_temperature,
        top_p=top_p,
        ends=ends,
        end_floor=end_floor,
        min_length=0 if infill else min_length,
        guidance=guidance,
        cache=cache,
        refresh=refresh,
    )
    pieces = Pieces(words)
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        # The seeds of `unmask evaluate`: the batch size changes nothing.
        seeds = [seed * 2**32 + start + row for row in range(len(part))]
        canvas = gap_canvas(model, words, part) if infill else prompt_canvas(model, words, part, length, chat)
        shown = LiveText(canvas, pieces, () if infill else model.end_ids, prompt=infill)
        with _watching(shown, live and not json, lines) as on_step:
            watch = Watch(on_step, traces is not None)
            more: dict[str, Any] = {} if infill else {"length": length, "chat": chat}
            done = _run(model, words, part, infill, chosen, options, seeds=seeds, watch=watch, **more)
        shown.finish(done.trajectory.tokens)
        if traces is not None:
            recorded = trace_texts(
                model, pieces, done.canvas, {scheduler: done.trajectory}, denoiser, options, [_problem(part[0], start)]
            )
            traces.mkdir(parents=True, exist_ok=True)
            write(recorded[0], traces / f"{start + 1:04d}.json")
        for row, text in enumerate(done.texts):
            if json:
                record = {"prompt": part[row], "text": text, **_record(done, row, canvas)}
                sys.stdout.write(json_text.dumps(record) + "\n")
            else:
                console.print(_heading(done, row, start + row, len(prompts)), style="dim")
                console.print(shown.row(row) if console.is_terminal else Text(printable(text)), soft_wrap=True)


def _problem(prompt: Any, number: int) -> str:
    """A prompt's name in the viewer: its number and its first words, of a conversation those of the last turn."""
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    line = " ".join(printable(text).split())
    return f"prompt {number + 1}: {line if len(line) <= 60 else line[:59] + '…'}"


def _run(
    model: Any, words: Any, prompts: list[Any], gaps: bool, scheduler: Scheduler, decoding: Decoding, **options: Any
) -> Generation:
    try:
        return (infill if gaps else generate)(model, words, prompts, scheduler, decoding, **options)
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error).splitlines()[0]) from error


@contextmanager
def _watching(shown: LiveText, live: bool, lines: bool) -> Iterator[Callable[[Step], None] | None]:
    """Whom to tell of every step: one who draws a picture that moves, or prints lines, or keeps the order for its colours."""
    if lines:

        def line(step: Step) -> None:
            shown.on_step(step)
            console.print(shown.line(), soft_wrap=True)

        yield line
    else:
        with moving_picture(console, shown, live):
            yield shown.on_step if console.is_terminal else None


def _heading(done: Generation, row: int, number: int, count: int) -> str:
    path, rows = done.trajectory, len(done.texts)
    reveals = int(path.reveals[row])
    steps = int(path.step[row].max()) + 1 if reveals else 0
    of_batch = "" if rows == 1 else f" for {rows} prompts"
    which = f"{number + 1}/{count}: " if count > 1 else ""
    share = path.positions / max(1, path.denoiser_calls * path.tokens.shape[1])
    of_positions = f" ({share:.0%} of their positions)" if share < 1 else ""
    calls = f"{path.denoiser_calls} denoiser calls{of_positions}{of_batch}"
    return f"{which}{reveals} tokens in {steps} steps, {calls}, {path.seconds:.2f} s"


def _record(done: Generation, row: int, canvas: TextCanvas) -> dict[str, Any]:
    path = done.trajectory
    reveals = int(path.reveals[row])
    return {
        "tokens": path.tokens[row][canvas.region[row]].tolist(),
        "order": done.order(row),
        "step": path.step[row, :reveals].tolist(),
        "token_logp": [round(value, 6) for value in path.logp[row, :reveals].tolist()],
        "trajectory_logp": round(float(path.total_logp[row]), 6),
        "batch": {
            "prompts": len(done.texts),
            "denoiser_calls": path.denoiser_calls,
            "positions": path.positions,
            "seconds": round(path.seconds, 3),
        },
    }


def _prompts(prompt: str | None, file: str | None) -> list[Any]:
    """Texts, or conversations, of the one prompt, of a file or of standard input."""
    if prompt is not None and file is not None:
        raise ValueError(f"expected a prompt or a file, not both: got --prompt and --file {file}")
    if prompt is not None:
        return [prompt]
    if file is None and sys.stdin.isatty():
        raise ValueError("there is nothing to continue: give --prompt TEXT, --file FILE, or prompts on standard input")
    piped = file in (None, "-")
    try:
        text = sys.stdin.read() if piped else Path(str(file)).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{'standard input' if piped else file} is not UTF-8: {error.reason}") from error
    if piped and text.strip() and not text.lstrip().startswith("{"):
        return [text.removesuffix("\n")]
    prompts = _lines(text, "standard input" if piped else str(file))
    if not prompts:
        raise ValueError(
            f'{"standard input" if piped else file} has no prompts: expected JSON lines with a "prompt" each'
        )
    return prompts


def _lines(text: str, source: str) -> list[Any]:
    found: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json_text.loads(line)
        except json_text.JSONDecodeError as error:
            raise ValueError(f"{source}, line {number} is not JSON: {error.msg}") from error
        prompt = record.get("prompt") if isinstance(record, dict) else None
        if not isinstance(prompt, str) and not _turns(prompt):
            raise ValueError(
                f'{source}, line {number}: expected {{"prompt": "…"}}, a text or a list of {{"role", "content"}}, got {line[:60]}'
            )
        found.append(prompt)
    return found


def _turns(prompt: Any) -> bool:
    return (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(
            isinstance(turn, dict) and all(isinstance(turn.get(k), str) for k in ("role", "content")) for turn in prompt
        )
    )
