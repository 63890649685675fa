r"""Answers in text: numbers, boxed expressions, Countdown equations, code. Text in, verdict out; nothing is executed here.

Where a model writes its final answer, in the order in which it is looked for: ``<answer>…</answer>`` (the last; an opened one
that is never closed counts), ``\boxed{…}`` (the last), ``#### …``, "the answer is …", and for numbers the last number of the
text. What follows a model's end-of-text mark is not part of its answer.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")
ENDS = re.compile(r"<\|endoftext\|>|<\|eot_id\|>|<\|im_end\|>|</s>")
SAYS = re.compile(r"answer\s*(?:is|:|=)\s*", re.IGNORECASE)
FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
LONGEST = 200
"""Characters of an equation beyond which it is not read."""


def before_end(text: str) -> str:
    """The text up to the first mark that ends it."""
    return ENDS.split(text, maxsplit=1)[0]


def boxed(text: str) -> str | None:
    r"""What the last ``\boxed{…}`` that is closed holds, braces counted; ``\boxed 5`` and ``\fbox{…}`` too."""
    for found in reversed(list(re.finditer(r"\\(?:f?boxed|fbox)\s*", text))):
        rest = text[found.end() :]
        if not rest.startswith("{"):
            word = re.match(r"[^\s$]+", rest)
            if word:
                return word.group()
            continue
        depth = 0
        for place, letter in enumerate(rest):
            depth += (letter == "{") - (letter == "}")
            if depth == 0:
                return rest[1:place]
    return None


def tagged(text: str) -> str | None:
    """What stands in the last ``<answer>``, up to its end or the text's."""
    _, opened, rest = text.rpartition("<answer>")
    return rest.split("</answer>")[0].strip() if opened else None


def number_in(text: str, last: bool = True) -> Fraction | None:
    """The last number of a text, or the first."""
    found = NUMBER.findall(text)
    return Fraction(found[-1 if last else 0].replace(",", "")) if found else None


def strict_number(text: str) -> Fraction | None:
    """The number after ``####``, as GSM8K writes it; nothing else counts."""
    found = re.search(r"####\s*\$?\s*(" + NUMBER.pattern + ")", text)
    return Fraction(found.group(1).replace(",", "")) if found else None


def final_number(text: str) -> Fraction | None:
    """The number that a solution ends with, wherever its writer put it."""
    text = before_end(text)
    inside = tagged(text)
    for part in (inside, text):
        if part is None:
            continue
        held = boxed(part)
        if held is not None and (value := _numeric(held)) is not None:
            return value
    if (value := strict_number(text)) is not None:
        return value
    if inside is not None and (value := number_in(inside)) is not None:
        return value
    said = list(SAYS.finditer(text))
    if said and (value := number_in(text[said[-1].end() :].split("\n")[0])) is not None:
        return value
    return number_in(text)


def _numeric(held: str) -> Fraction | None:
    r"""The number in a box: ``\frac{1}{2}``, ``\$1,200``, ``5 \text{ apples}``; of ``3 + 4 = 7`` the right side."""
    right = held.rpartition("=")[2]
    quotient = re.fullmatch(r"\s*(-?)\s*\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}\s*", right)
    if quotient and int(quotient[3]):
        return Fraction(int(f"{quotient[1]}1") * int(quotient[2]), int(quotient[3]))
    return number_in(right.replace("{,}", ",").replace("\\,", "").replace("\\!", ""), last=False)


def number_correct(text: str, truth: str | float | Fraction) -> bool:
    """Whether a solution ends with the true number. ``truth`` may be GSM8K's own answer, with ``####`` in it."""
    wanted = final_number(truth) if isinstance(truth, str) else Fraction(truth)
    return wanted is not None and final_number(text) == wanted


def math_answer(text: str) -> str | None:
    """The expression that a solution ends with: boxed, tagged, or what "the answer is" says."""
    text = before_end(text)
    inside = tagged(text)
    for part in (inside, text):
        if part is not None and (held := boxed(part)) is not None:
            return held
    if inside:
        return inside
    said = list(SAYS.finditer(text))
    return text[said[-1].end() :].split("\n")[0].strip().rstrip(".") if said else None


def math_normal(expression: str) -> str:
    r"""An expression with what does not change its value taken away: spacing, ``\left``, units in ``\text``, degrees, dollars."""
    text = expression.strip().strip("$").strip()
    text = re.sub(r"\\(?:left|right|displaystyle|limits)(?![a-zA-Z])", "", text)
    text = re.sub(r"\\(?:d|t|c)frac", r"\\frac", text)
    text = re.sub(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~", "", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|\\%|%|\\\$", "", text)
    text = text.replace("{,}", ",")
    alone = re.fullmatch(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}", text)
    text = alone[1] if alone else re.sub(r"\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?[23]\}?)?$", "", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac\{([^{}]+)\}\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"^[a-zA-Z](?:\([a-zA-Z]\))?\s*(?:=|\\in)\s*", "", text)
    text = re.sub(r"\s+", "", text).rstrip(".")
    text = re.sub(r"(?<![\d.])\.(\d)", r"0.\1", text)
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    return text.lower() if re.fullmatch(r"\(?[a-zA-Z]+\)?", text) else text


def math_equal(one: str | None, other: str | None) -> bool:
    """Whether two expressions are the same after :func:`math_normal`, or the same number. No algebra is done."""
    if one is None or other is None:
        return False
    first, second = math_normal(one), math_normal(other)
    if first == second:
        return first != ""
    values = [_value(text) for text in (first, second)]
    return values[0] is not None and values[0] == values[1]


def _value(text: str) -> Fraction | None:
    quotient = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?\d+)/(\d+)", text)
    if quotient and quotient[4] is None and int(quotient[3]):
        return Fraction(int(f"{quotient[1]}1") * int(quotient[2]), int(quotient[3]))
    if quotient and quotient[4] is not None and int(quotient[5]):
        return Fraction(int(quotient[4]), int(quotient[5]))
    return Fraction(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def countdown_equation(text: str) -> str | None:
    r"""The expression offered as the answer, in plain signs: ``(87 - 60) * 2``. ``\times``, ``\div`` and ``= 54`` are undone."""
    text = before_end(text)
    inside = tagged(text)
    held = next((found for part in (inside, text) if part is not None and (found := boxed(part)) is not None), inside)
    if held is None:
        return None
    plain = re.sub(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))", held)
    for sign, meant in (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("×", "*"), ("÷", "/"), ("−", "-"), ("\\left", ""),
                        ("\\right", ""), ("\\(", ""), ("\\)", ""), ("\\[", ""), ("\\]", ""), ("$", "")):  # fmt: skip
        plain = plain.replace(sign, meant)
    return plain.partition("=")[0].strip()


def countdown_correct(text: str, numbers: Sequence[int], target: int) -> bool:
    """Whether the answer's expression uses each number exactly once and is worth the target, exactly."""
    equation = countdown_equation(text)
    if not equation or len(equation) > LONGEST:
        return False
    try:
        tree = ast.parse(equation, mode="eval").body
        used: list[int] = []
        return _worth(tree, used) == target and Counter(used) == Counter(numbers)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False


def _worth(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            used.append(value)
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_worth(operand, used)
        case ast.BinOp(left=left, op=operation, right=right):
            one, other = _worth(left, used), _worth(right, used)
            match operation:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div():
                    return one / other
    raise ValueError("expected whole numbers, + - * / and brackets")


def code_in(text: str) -> str:
    """The program of a reply: its first fenced block that is Python or unnamed, ended or not; without a fence, all of it.

    A text that begins inside a fence, as after a prompt that opened one, ends at the next.
    """
    text = before_end(text)
    for mark in ("[DONE]", "[END]"):
        text = text.split(mark)[0]
    text = text.removeprefix("[BEGIN]\n")
    for language, body in FENCE.findall(text):
        if language.lower() in ("", "python", "py", "python3"):
            before = text[: text.index("```")]
            # Code before the first fence means that the fence is the closing one of a block that the prompt opened.
            if not language and re.search(r"^(?:def |import |from |class |    )", before, re.MULTILINE):
                return before.rstrip()
            return body
    return text.split("```")[0] if "```" in text else text
