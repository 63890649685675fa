"""Coverage-guided fuzzing: python fuzz/run.py NAME… [libFuzzer's options], each target in its own process. See fuzz/README.md."""

import os
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris  # pyright: ignore[reportMissingImports]

COMPILED = [f"unmask.tasks.sudoku.{name}" for name in ("canonical", "eliminations", "generate", "solver", "techniques")]
"""Numba compiles these, which it cannot do with what the fuzzer puts into their bytecode."""
LARGEST = 2048
"""Bytes of an input that is kept in the repository."""
LOGS = Path(tempfile.mkdtemp(prefix="fuzz-logs-"))
"""What each target printed; findings are written beside it."""
with atheris.instrument_imports(include=["unmask", "json", "csv", "tomllib"], exclude=COMPILED):
    import targets


def fuzz(name: str, options: list[str], corpora: Path) -> None:
    """Never returns: libFuzzer ends the process, with a code other than 0 if it has found something."""
    corpus = corpora / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate([*targets.seeds()[name], *targets.read_corpora()[name]]):
        (corpus / str(number)).write_bytes(content)
    targets.place.cache_clear()  # files of its own: targets run side by side
    targets.place()
    atheris.Setup(
        [sys.argv[0], f"-artifact_prefix={LOGS}/{name}-", *options, str(corpus)], lambda content: once(name, content)
    )
    atheris.Fuzz()


def once(name: str, content: bytes) -> None:
    try:
        targets.TARGETS[name](content)
    except targets.REFUSALS as error:
        assert len(str(error)) < 10_000, "a refusal must not be as long as the input"


def pack(corpora: Path) -> None:
    """Write what a folder of corpora holds beyond the good inputs into ``corpora.zip``, small files in an order of their own."""
    with zipfile.ZipFile(targets.CORPORA, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, seeds in targets.seeds().items():
            found = {file.read_bytes() for file in (corpora / name).glob("*")} - set(seeds)
            small = sorted(content for content in found if len(content) <= LARGEST)
            for number, content in enumerate(small):
                archive.writestr(zipfile.ZipInfo(f"{name}/{number:04}"), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    if sys.argv[1:2] == ["--pack"]:
        pack(Path(sys.argv[2]))
        return
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(targets.TARGETS)
    kept = [word.removeprefix("--corpora=") for word in sys.argv[1:] if word.startswith("--corpora=")]
    corpora = Path(kept[-1] if kept else tempfile.mkdtemp(prefix="fuzz-corpora-"))
    options = [word for word in sys.argv[1:] if word.startswith("-") and not word.startswith("--corpora=")]
    if unknown := set(names) - set(targets.TARGETS):
        sys.exit(f"no target {', '.join(sorted(unknown))}: expected some of {', '.join(targets.TARGETS)}")
    for name in names:  # what is compiled is compiled once, outside the time limit
        for content in targets.seeds()[name]:
            once(name, content)
    children = {}
    for name in names:  # forks, since importing torch takes longer than many a run
        child = os.fork()
        if child == 0:
            log = os.open(LOGS / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            fuzz(name, options, corpora)
            os._exit(0)
        children[child] = name
    failed = []
    while children:
        child, status, used = os.wait4(-1, 0)
        name = children.pop(child)
        lines = (LOGS / f"{name}.log").read_text(errors="replace").splitlines()
        ended = f"found something, see {LOGS}/{name}.log" if status else next(iter(lines[-1:]), "")
        print(f"{name}: {ended} ({used.ru_utime + used.ru_stime:.0f} s of processor time)", flush=True)
        failed += [name] if status else []
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
