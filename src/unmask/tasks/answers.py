r"""Extract answers from text: numbers, boxed expressions, code. Nothing is executed here.

A final answer is looked for in this order: ``<answer>…</answer>`` (the last; one that is never closed counts), ``\boxed{…}``
(the last), ``#### …``, "the answer is …", and for numbers the last number of the text. Text behind an end-of-text mark is ignored.
"""

from __future__ import annotations

import re
from fractions import Fraction

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")
MOST_DIGITS = 4000
ENDS = re.compile(r"<\|endoftext\|>|<\|eot_id\|>|<\|im_end\|>|</s>")
ANSWER_IS = re.compile(r"answer\s*(?:is|:|=)\s*", re.IGNORECASE)
FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def cut_at_end(text: str) -> str:
    """The text before the first end-of-text mark."""
    return ENDS.split(text, maxsplit=1)[0]


def find_boxed(text: str) -> str | None:
    r"""The content of the last closed ``\boxed{…}``, with nested braces; ``\boxed 5`` and ``\fbox{…}`` too."""
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


def find_tagged(text: str) -> str | None:
    """The content of the last ``<answer>``, up to its end or the end of the text."""
    _, opened, rest = text.rpartition("<answer>")
    return rest.split("</answer>")[0].strip() if opened else None


def find_number(text: str, last: bool = True) -> Fraction | None:
    """The last number of a text, or the first."""
    found = NUMBER.findall(text)
    return _read_number(found[-1 if last else 0]) if found else None


def _read_number(digits: str) -> Fraction | None:
    """None for a number of thousands of digits, which Python refuses to read and no problem has."""
    return Fraction(digits.replace(",", "")) if len(digits) <= MOST_DIGITS else None


def find_strict_number(text: str) -> Fraction | None:
    """The number after ``####``, as GSM8K writes it; nothing else counts."""
    found = re.search(r"####\s*\$?\s*(" + NUMBER.pattern + ")", text)
    return _read_number(found.group(1)) if found else None


def extract_number(text: str) -> Fraction | None:
    """The final number of a solution."""
    text = cut_at_end(text)
    inside = find_tagged(text)
    for part in (inside, text):
        if part is None:
            continue
        held = find_boxed(part)
        if held is not None and (value := _numeric(held)) is not None:
            return value
    if (value := find_strict_number(text)) is not None:
        return value
    if inside is not None and (value := find_number(inside)) is not None:
        return value
    marks = list(ANSWER_IS.finditer(text))
    if marks and (value := find_number(text[marks[-1].end() :].split("\n")[0])) is not None:
        return value
    return find_number(text)


def _numeric(held: str) -> Fraction | None:
    r"""The number in a box: ``\frac{1}{2}``, ``\$1,200``, ``5 \text{ apples}``; of ``3 + 4 = 7`` the right side."""
    right = held.rpartition("=")[2]
    quotient = re.fullmatch(r"\s*(-?)\s*\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}\s*", right)
    if quotient and len(right) <= MOST_DIGITS and int(quotient[3]):
        return Fraction(int(f"{quotient[1]}1") * int(quotient[2]), int(quotient[3]))
    return find_number(right.replace("{,}", ",").replace("\\,", "").replace("\\!", ""), last=False)


def extract_expression(text: str) -> str | None:
    """The final expression of a solution: boxed, tagged, or after "the answer is"."""
    text = cut_at_end(text)
    inside = find_tagged(text)
    for part in (inside, text):
        if part is not None and (held := find_boxed(part)) is not None:
            return held
    if inside:
        return inside
    marks = list(ANSWER_IS.finditer(text))
    return text[marks[-1].end() :].split("\n")[0].strip().rstrip(".") if marks else None


def normalize_math(expression: str) -> str:
    r"""An expression without spacing, ``\left``, units in ``\text``, degrees and dollars, which do not change its value."""
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
    """Whether two expressions are the same after :func:`normalize_math`, or the same number. No algebra is done."""
    if one is None or other is None:
        return False
    first, second = normalize_math(one), normalize_math(other)
    if first == second:
        return first != ""
    values = [_value(text) for text in (first, second)]
    return values[0] is not None and values[0] == values[1]


def _value(text: str) -> Fraction | None:
    if len(text) > MOST_DIGITS:
        return None
    quotient = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?\d+)/(\d+)", text)
    if quotient and quotient[4] is None and int(quotient[3]):
        return Fraction(int(f"{quotient[1]}1") * int(quotient[2]), int(quotient[3]))
    if quotient and quotient[4] is not None and int(quotient[5]):
        return Fraction(int(quotient[4]), int(quotient[5]))
    return Fraction(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def extract_code(text: str) -> str:
    """The program of a reply: its first fenced block in Python or without a language, closed or not; without a fence, all of it.

    A text that begins inside a fence, as after a prompt that opened one, ends at the next.
    """
    text = cut_at_end(text)
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
