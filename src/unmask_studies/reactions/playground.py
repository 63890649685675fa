"""The playground's tab for models of reactions: type a reaction with gaps, and watch the molecule as its atoms are revealed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.generation.text_canvas import Tokenizer
from unmask.report.playground.tabs import Example, Judgement, Recipe
from unmask.tasks.kinds import Drawing
from unmask_studies.reactions.chemistry import describe_judgement, judge_reaction
from unmask_studies.reactions.drawing import draw_tokens
from unmask_studies.reactions.smiles import expand_range, tokenize
from unmask_studies.reactions.task import label_tokens, open_canvas

PROBE = "CC(=O)O.OCC>>CC(=O)OCC"
"""A model of reactions has one token for each of these."""


class Molecules:
    """The grammar of ``unmask react``; of several lengths the race runs on the one that the first decoding completes best."""

    title = "Molecules"
    heading = "Reaction"
    caption = "reactants>>product as SMILES. ? is an open token, ?9 nine of them, ?7..11 seven to eleven."
    examples: Sequence[Example] = (
        Example(
            "Suzuki coupling: orders disagree",
            "Brc1ccncc1.OB(O)c1ccccc1>>c1ccc(?13",
            ("confidence", "entropy"),
        ),
        Example("Ester: orders agree", "CC(=O)O.OCc1ccccc1>>CC(=O)O?9"),
        Example("Ester of unknown length", "CC(=O)O.OCc1ccccc1>>CC(=O)O?7..11"),
        Example("Acetylation of salicylic acid", "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)O?14"),
        Example("The other reactant", "CC(=O)O.?10>>CC(=O)OCc1ccccc1", ("confidence", "margin", "random")),
    )

    def missing(self) -> str | None:
        return None if find_spec("rdkit") else "molecules need RDKit: pip install unmask[chem]"

    def accepts(self, tokenizer: Tokenizer) -> bool:
        tokens = tokenize(PROBE)
        try:
            ids = tokenizer.encode(PROBE, add_special_tokens=False)
            texts = [tokenizer.decode([token], skip_special_tokens=True) for token in ids]
        except ValueError:  # a tokenizer of characters that knows no such letters
            return False
        return texts == tokens

    def alternatives(self, text: str) -> Sequence[str]:
        return expand_range("".join(text.split()))

    def canvas(self, denoiser: Denoiser, tokenizer: Tokenizer, text: str) -> Canvas:
        return open_canvas(denoiser, tokenizer, text)

    def label_tokens(self, tokenizer: Tokenizer) -> Callable[[int], str]:
        return label_tokens(tokenizer)

    def draw_tokens(
        self, tokenizer: Tokenizer
    ) -> Callable[[Sequence[int], Mapping[int, float], Collection[int]], Drawing | None]:
        return draw_tokens(label_tokens(tokenizer))

    def judge(self, answer: str) -> Judgement:
        judged = judge_reaction(answer)
        good = judged["valid"] and judged["conserved"]
        return Judgement(describe_judgement(**judged), good, (judged["valid"], judged["conserved"]))

    def as_python(self, recipe: Recipe) -> str:
        dtype, device = recipe.settings["dtype"], recipe.settings["device"]
        weights = [repr(recipe.denoiser), *([f"parse_dtype({dtype!r})"] if dtype != "float32" else [])]
        weights += [f"**device_options({device!r})"] if device else []
        placing = [name for name in ("device_options", "parse_dtype") if name in "".join(weights)]
        options = ", ".join(f"{name}={value!r}" for name, value in _options(recipe.decoding).items())
        lines = [
            "from unmask import Decoding, load_denoiser, load_scheduler, unmask",
            "from unmask.decoding.draws import row_seeds",
            *([f"from unmask.denoisers.placement import {', '.join(placing)}"] if placing else []),
            "from unmask.generation.text_canvas import load_tokenizer",
            "from unmask_studies.reactions.task import label_tokens, open_canvas",
            "",
            f"denoiser = load_denoiser({', '.join(weights)})",
            f"tokenizer = load_tokenizer({(recipe.settings['tokenizer'] or recipe.denoiser)!r})",
            f"canvas = open_canvas(denoiser, tokenizer, {recipe.text!r}).seeded(row_seeds({recipe.seed}, [0]))",
            f"scheduler = load_scheduler({recipe.scheduler!r}, denoiser, {recipe.denoiser!r})",
            f"done = unmask(denoiser, scheduler, canvas.to(denoiser.device), Decoding({options}))",
            'print("".join(map(label_tokens(tokenizer), done.tokens[0].tolist())))',
        ]
        return "\n".join(lines)

    def as_command(self, recipe: Recipe) -> str:
        words = ["unmask", "react", recipe.text, "--denoiser", recipe.denoiser, "--schedulers", recipe.scheduler]
        for name, value in _options(recipe.decoding).items():
            option = name.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        return shlex.join([*words, *(["--seed", str(recipe.seed)] if recipe.seed else [])])


def _options(decoding: Decoding) -> dict[str, Any]:
    """The options that differ from their defaults."""
    values = {field.name: getattr(decoding, field.name) for field in fields(Decoding)}
    return {name: value for name, value in values.items() if value != getattr(Decoding(), name)}
