"""What runs in the two confined interpreters of ``sandbox.py``. It imports nothing of this package.

``answer`` executes the program under test and answers calls from a pipe; ``examine`` runs the tests, for which the program's names
are stand-ins that call through the pipe. What crosses it is plain data, rebuilt on the other side: an object of a class of the
program's own is a number there, equal only to itself. The program's code is never in the interpreter that compares.

The first argument is the role; then the file descriptors to read from, to write to and, for the tests, to report to.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

SHOWN, MISSING = 2000, object()
CONTAINERS: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
AS_TEXT: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),  # in decimal it would take quadratic time, and Python refuses long ones
    "float": float,  # not finite
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "Decimal": lambda text: importlib.import_module("decimal").Decimal(text),
    "Fraction": lambda text: importlib.import_module("fractions").Fraction(text),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, arguments, named: target(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "item": lambda target, key: target[key],
    "length": len,
    "begin": iter,
    "next": lambda target: [] if (item := next(target, Ended)) is Ended else [item],
    "text": str,
    "truth": bool,
}


class Ended(Exception):
    """The program's process is gone."""


class Raised(Exception):
    """An error of the program's that is none of Python's own."""


class Pipe:
    """JSON lines to and from the other interpreter."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")

    def send(self, message: Any) -> None:
        self.writing.write(json.dumps(message).encode() + b"\n")
        self.writing.flush()

    def receive(self) -> Any:
        line = self.reading.readline()
        if not line.endswith(b"\n"):
            raise Ended
        return json.loads(line)


def encode(value: Any, refer: Callable[[Any], int]) -> Any:
    """Plain data as JSON; anything else as the number that ``refer`` gives it. A subclass of a plain type is its plain part."""
    if isinstance(value, list):
        return [encode(item, refer) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key, refer), encode(item, refer)] for key, item in value.items()]}
    for name, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return {name: [encode(item, refer) for item in value]}
    scalar = _encode_scalar(value)
    return {"object": refer(value)} if scalar is MISSING else scalar


def _encode_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        whole = int(value)
        return whole if whole.bit_length() < 64 else {"int": hex(whole)}
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if isinstance(value, bytes | bytearray):
        return {"bytes" if isinstance(value, bytes) else "bytearray": value.hex()}
    name, module = type(value).__name__, type(value).__module__
    known = (module, name) in (("builtins", "complex"), ("decimal", "Decimal"), ("fractions", "Fraction"))
    return {name: str(value)} if known else MISSING


def decode(data: Any, find: Callable[[int], Any]) -> Any:
    if isinstance(data, list):
        return [decode(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "object":
        return find(content)
    if kind == "dict":
        return {decode(key, find): decode(item, find) for key, item in content}
    if kind in AS_TEXT:
        return AS_TEXT[kind](content)
    return CONTAINERS[kind](decode(item, find) for item in content)


def answer(pipe: Pipe) -> None:
    """The program's side: execute it, then do what the tests ask for."""
    names: dict[str, Any] = {"__name__": "__main__"}
    objects: list[Any] = []
    numbers: dict[int, int] = {}

    def refer(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)  # which also keeps its id from another's use
        return numbers[id(value)]

    def reply(work: Callable[..., Any], *arguments: Any) -> None:
        try:
            message = {"value": encode(work(*arguments), refer)}
        except BaseException as error:
            message = {"raised": [type(error).__name__, _text_of(error)]}
        pipe.send(message)

    def do(what: str, target: int, arguments: Any) -> Any:
        return OPERATIONS[what](objects[target], *decode(arguments, objects.__getitem__))

    reply(lambda: exec(compile(sys.stdin.buffer.read().decode(), "<program>", "exec"), names))
    while True:
        request = pipe.receive()
        if "name" in request:
            reply(names.__getitem__, request["name"])
        else:
            reply(do, request["do"], request["object"], request["with"])


def examine(pipe: Pipe, report: int) -> NoReturn:
    """The tests' side: run them with stand-ins for the program's names, and report how they ended."""
    try:
        answered(pipe)
        given = json.loads(sys.stdin.buffer.read())
        tests = ast.parse(given["tests"], "<tests>")
        names: dict[str, Any] = {"__name__": "__main__", **stand_ins(tests, pipe, given["names"])}
        exec(compile(tests, "<tests>", "exec"), names)
        end = "passed:"
    except Ended:
        end = "ended:the program ended before its tests did"
    except BaseException as error:
        full = isinstance(error, OSError) and getattr(error, "shown", "").startswith(
            ("OSError: [Errno 27]", "OSError: [Errno 28]")
        )
        status = "memory" if isinstance(error, MemoryError) else "files" if full else "failed"
        end = f"{status}:{getattr(error, 'shown', None) or f'{type(error).__name__}: {_text_of(error)}'}"
    os.write(report, end[:SHOWN].encode("utf-8", "replace"))
    os._exit(0)


def stand_ins(tests: ast.Module, pipe: Pipe, names: list[str] | None) -> dict[str, Any]:
    """For every name that the tests read: what the program calls so, if it is one of ``names``, or the library's own module.

    Without ``names``, Python's own functions are never the program's, nor is a module that has the name of one of the library's.
    """
    read = {node.id for node in ast.walk(tests) if isinstance(node, ast.Name)}
    owners = {
        node.value.id
        for node in ast.walk(tests)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    modules = (owners & sys.stdlib_module_names) - set(names or ())
    made: dict[str, Any] = {name: importlib.import_module(name) for name in sorted(modules)}
    for name in sorted(read - modules - set(dir(builtins)) if names is None else read & set(names)):
        pipe.send({"name": name})
        try:
            made[name] = answered(pipe)
        except KeyError:  # a variable of the tests' own, or a mistake that running them will show
            continue
    return made


def answered(pipe: Pipe) -> Any:
    """The answer to what was sent: a value, or an error, which is raised here."""
    message = pipe.receive()
    if "raised" not in message:
        return decode(message["value"], lambda number: StandIn(pipe, number))
    name, text = message["raised"]
    kind = getattr(builtins, str(name), None)
    known = (
        isinstance(kind, type) and issubclass(kind, Exception) and "Iteration" not in name
    )  # which would end a loop of the tests
    try:
        error = kind(text) if known else Raised(text)  # type: ignore[misc]
    except Exception:  # one that is made from more than a text
        error = Raised(text)
    error.shown = f"{name}: {text}"  # type: ignore[attr-defined]
    raise error


class StandIn:
    """An object of the program's. What is done to it is done there; it is equal to nothing but itself."""

    def __init__(self, pipe: Pipe, number: int) -> None:
        self.__dict__.update(_pipe=pipe, _number=number)

    def _do(self, what: str, *arguments: Any) -> Any:
        sent = encode(list(arguments), _number_of)
        self._pipe.send({"do": what, "object": self._number, "with": sent})
        return answered(self._pipe)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._do("call", arguments, named)

    def __getattr__(self, name: str) -> Any:
        return self._do("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._do("item", key)

    def __len__(self) -> int:
        return self._do("length")

    def __iter__(self) -> Any:
        return self._do("begin")

    def __next__(self) -> Any:
        found = self._do("next")
        if not found:
            raise StopIteration
        return found[0]

    def __bool__(self) -> bool:
        return self._do("truth")

    def __str__(self) -> str:
        return str(self._do("text"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)


def _number_of(value: Any) -> int:
    if type(value) is not StandIn:
        raise TypeError(f"expected plain data for the program under test, got a {type(value).__name__}")
    return value._number


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN]
    except BaseException:
        return "an error that cannot be written"


if __name__ == "__main__":
    role, reading, writing, *rest = sys.argv[1:]
    if role == "answer":
        answer(Pipe(int(reading), int(writing)))
    else:
        examine(Pipe(int(reading), int(writing)), int(rest[0]))
