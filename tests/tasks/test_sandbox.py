"""Escapes from the sandbox, each tried for real against something of the test's own: a file, a listener, a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.forks import Fork
from unmask.tasks.sandbox import sandbox
from unmask.tasks.sandbox.sandbox import Limits, Outcome, find_missing_protection, run_python

pytestmark = pytest.mark.skipif(
    bool(find_missing_protection()), reason=f"this machine cannot confine code: it lacks {find_missing_protection()}"
)
FALSE = "assert False, 'the tests were run'"
# Roomy by the clock, since whatever else runs on this machine counts; the processor's time is the program's own.
QUICK = Limits(seconds=2.0, wall=60.0, memory=2**28)


def attempt(program: str, tests: str = "", limits: Limits = QUICK) -> Outcome:
    return run_python(program, tests, limits)


def test_passing_and_failing_programs() -> None:
    good = "import collections, math, re\ndef f(x):\n    return math.floor(x) + 1"
    assert attempt(good, "assert f(1.5) == 2").status == "passed"
    wrong = attempt(good, "assert f(1.5) == 3, 'not three'")
    assert (wrong.status, wrong.error) == ("failed", "AssertionError: not three")
    assert "SyntaxError" in attempt("def f(:", "").error
    assert attempt("open('mine', 'w').write('x')\nassert open('mine').read() == 'x'").passed
    assert attempt("import threading\nt = threading.Thread(target=len, args=('',))\nt.start(); t.join()").passed


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "import builtins, sys\nbuiltins.AssertionError = ValueError\nsys.exit = lambda *a: None\nbuiltins.exec = lambda *a: None",
        "import builtins, os\nos.write = lambda *a: 0\nbuiltins.print = lambda *a: None\nbuiltins.__build_class__ = None",
        "import atexit, os\natexit.register(os._exit, 0)\nraise KeyboardInterrupt",
        "import os\nfor n in range(3, 30):\n    try: os.write(n, b'a' * 64)\n    except OSError: pass\nos._exit(0)",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'pass'])",
        "import threading, os\nthreading.Thread(target=lambda: os._exit(0)).start()\nimport time; time.sleep(5)",
    ],
)
def test_early_exit_is_not_a_pass(program: str) -> None:
    assert attempt(program, FALSE).status == "failed"


CHECK = "def check(candidate):\n    assert candidate(1) == 5\ncheck(f)"
TRACER = """
import sys
def tracer(frame, event, argument):
    if 'check' in frame.f_globals:
        frame.f_globals['check'] = lambda *a: None
    return tracer
sys.settrace(tracer)
f = len
"""
NATIVE = """
import glob, sys
from importlib import machinery, util
path = [found for place in sys.path for found in glob.glob(place + '/_ctypes*.so')][0]
spec = util.spec_from_file_location('_ctypes', path, loader=machinery.ExtensionFileLoader('_ctypes', path))
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules['_ctypes'] = module
import ctypes
f = lambda x: 0
"""
ANYTHING = "class Anything:\n    __eq__ = __lt__ = __contains__ = lambda *a: True\n    __hash__ = lambda self: 1\n"


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (TRACER, CHECK),
        (NATIVE, CHECK),
        (f"{ANYTHING}f = lambda x: Anything()", CHECK),
        (f"{ANYTHING}f = lambda x: [Anything()]", "assert f(1) == [5]"),
        (f"{ANYTHING}class Whole(int):\n    __eq__ = Anything.__eq__\nf = lambda x: Whole(3)", CHECK),
        (f"{ANYTHING}f = lambda x: Anything()", "assert f(1) in (5, 6)"),
        (f"{ANYTHING}f = lambda x: Anything()", "assert abs(f(1) - 5) < 1e-6"),
        ("f = lambda x: 0\nabs = lambda x: 0", "assert abs(f(1) - 5) < 1e-6"),
        ("import math\nmath.isclose = lambda *a: True\nf = lambda x: 0", "assert math.isclose(f(1), 5)"),
        ("class math:\n    isclose = lambda *a: True\nf = lambda x: 0", "assert math.isclose(f(1), 5)"),
        ("def f(x):\n    raise StopIteration", "assert all(map(f, [1, 2]))"),
        ("def f(x):\n    raise SystemExit(0)", CHECK),
        ("def check(c): pass\nf = len", CHECK),
        ("import builtins\nbuiltins.AssertionError = builtins.Exception = ()\nf = lambda x: 0", CHECK),
        (
            "import os\nfor n in range(3, 64):\n    try: os.write(n, b'passed:')\n    except OSError: pass\nf = len",
            CHECK,
        ),
        ("import gc\nf = lambda x: [o for o in gc.get_objects() if o == 5] or 0", CHECK),
        ("import sys\nf = lambda x: max(sys._getframe(n).f_lineno for n in range(3))", "assert f(1) == -5"),
    ],
)
def test_a_wrong_answer_never_passes(program: str, tests: str) -> None:
    """Whatever the program does to its own interpreter: the tests are in another."""
    outcome = attempt(program, tests)
    assert outcome.status == "failed", outcome


def test_what_crosses_between_program_and_tests() -> None:
    program = """
import collections, decimal, fractions
Pair = collections.namedtuple('Pair', 'a b')
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def __len__(self): return 7
    def __getitem__(self, key): return key * 2
    def __str__(self): return 'a node'
echo = lambda *a, **k: (a, k)
def total(node): return node.value + (total(node.next) if node.next else 0)
def count(n): yield from range(n)
def fail(x): raise KeyError(x)
class Own(Exception): pass
def fail_own(): raise Own('mine')
def fail_unicode(): b'\\xff'.decode()
rational = lambda: (fractions.Fraction(1, 3), decimal.Decimal('1.10'), 1 + 2j)
pairs = lambda: [Pair(1, 2), collections.Counter('aab')]
constant = 3
"""
    tests = """
import decimal, fractions, math
values = [None, True, 0, -1, 2**64, -10**5000, 1.5, -0.0, '', 'a\\x00\\n\\ud800', b'\\xff', bytearray(b'1'), (), (1,), [], [[1]],
          {}, {1: 'a', (1, 2): [3]}, set(), {1, 2}, frozenset({3})]
for value in values:
    (back,), named = echo(value, key=value)
    assert back == value and type(back) is type(value) and named == {'key': value}, value
(odd,), _ = echo(math.inf)
assert odd == math.inf
(odd,), _ = echo(math.nan)
assert odd != odd
first = Node(1)
first.next = Node(2)
assert total(first) == 3 and first.next.value == 2 and len(first) == 7 and first[4] == 8 and str(first) == 'a node'
assert first == first and first != Node(1) and first in [first] and {first: 1}[first] == 1
assert echo(first)[0][0] == first
assert list(count(3)) == [0, 1, 2] and sum(count(4)) == 6 and [*zip(count(2), 'ab')] == [(0, 'a'), (1, 'b')]
for call, kind, text in (
    (lambda: fail('x'), KeyError, 'x'), (fail_own, Exception, 'mine'), (fail_unicode, Exception, 'utf-8'),
    (lambda: echo(len), TypeError, 'plain'),
):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        assert False, kind
assert rational() == (fractions.Fraction(1, 3), decimal.Decimal('1.10'), 1 + 2j)
assert pairs() == [(1, 2), {'a': 2, 'b': 1}]
assert constant == 3
"""
    outcome = attempt(program, tests)
    assert outcome.passed, outcome.error


def test_an_infinite_loop_and_a_long_sleep() -> None:
    assert attempt("while True: pass", limits=Limits(seconds=1.0, wall=60.0)).status == "timeout"
    began = time.monotonic()
    assert attempt("import time; time.sleep(600)", limits=Limits(wall=2.0)).status == "timeout"
    assert time.monotonic() - began < 60
    stubborn = (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except Exception: pass\n"
    )
    # SIGXCPU can be ignored once; at the hard limit the kernel kills.
    assert attempt(stubborn + "while True: pass", limits=Limits(seconds=1.0, wall=60.0)).status == "timeout"


def test_memory_output_and_files() -> None:
    assert attempt("x = bytearray(2**30)").status == "memory"
    assert attempt("print('x' * 10**8)").passed  # discarded
    assert attempt("open('big', 'wb').write(bytes(2**24))").status in ("files", "failed")
    many = "import time\nfor n in range(2000): open(str(n), 'w').close()\ntime.sleep(30)"
    assert attempt(many).status == "files"
    full = "for n in range(40): open(str(n), 'wb').write(bytes(2**20 - 1))\nimport time; time.sleep(30)"
    assert attempt(full).status == "files"
    limits = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))"
    assert attempt(limits).status == "failed"


NESTED = "import os\nfor n in range(3000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n    open('f', 'wb').write(bytes(2**19))"
HIDDEN = "import os, time\nos.mkdir('d', 0o300)\nfor n in range(400): open(f'd/{n}', 'wb').write(bytes(2**18))\ntime.sleep(30)"


def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> None:
    """As on a kernel that lacks something."""
    source = sandbox.GUARD.read_text()
    assert old in source
    (tmp_path / "guard.py").write_text(source.replace(old, new))
    monkeypatch.setattr(sandbox, "GUARD", tmp_path / "guard.py")


NO_NAMESPACES = ("            enter_namespaces(libc, payload", "            (lambda *a: None)(libc, payload")


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize("program", [NESTED, HIDDEN])
def test_files_deep_or_out_of_sight_count(
    program: str, namespaces: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Folders past the greatest length of a path, and folders that cannot be listed; nothing is left of either."""
    place = tmp_path / "place"
    place.mkdir()
    if not namespaces:
        without(monkeypatch, tmp_path, *NO_NAMESPACES)
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(place))
    assert attempt(program).status == "files"
    assert os.listdir(place) == []


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which only root may")
def test_what_its_owner_may_not_read_counts_and_is_removed() -> None:
    """Root reads everything; this is how it is for others."""
    place = Path(tempfile.mkdtemp())
    os.chown(place, 65534, 65534)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.makedirs(place / "a" / "b")
            (place / "a" / "b" / "file").write_text("x")
            (place / "link").symlink_to("/etc")
            for folder in (place / "a" / "b", place / "a"):
                folder.chmod(0o300)
            code = 0 if sandbox._too_full(str(place), Limits()) else 2
            sandbox._remove(str(place / "a"))
            code = code or (3 if (place / "a").exists() else 0)
        finally:
            os._exit(code)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shutil.rmtree(place)


def test_installed_packages_cannot_be_read() -> None:
    import numpy

    file = numpy.__file__
    assert attempt(f"open({file!r})").status == "failed"
    assert attempt("import numpy").status == "failed"
    hunt = """
import glob, os
found = []
for place in ('/usr/lib/python3/dist-packages', os.path.dirname(os.__file__) + '/site-packages'):
    for path in glob.glob(place + '/**/*.py', recursive=True)[:50]:
        try:
            open(path).read()
            found.append(path)
        except OSError:
            pass
assert not found, found[0]
"""
    outcome = attempt(hunt)
    assert outcome.passed, outcome.error
    assert attempt("import email, sqlite3, ssl, zoneinfo, xml.etree.ElementTree, unittest, multiprocessing").passed


@pytest.mark.parametrize("landlock", ["as it is", "without scopes"])
def test_the_kernel_sends_no_signals_for_a_program(
    landlock: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the owner of a file (``F_SETOWN``), which older kernels' Landlock does not cover."""
    if landlock == "without scopes":
        without(
            monkeypatch, tmp_path, "version = landlock_version(libc)\n", "version = min(5, landlock_version(libc))\n"
        )
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program = f"""
import fcntl, os, struct, time
reading, writing = os.pipe()
done = []
for word, value in ((8, {victim.pid}), (10, 10), (15, struct.pack('ii', 1, {victim.pid}))):
    try:
        fcntl.fcntl(reading, word, value)
        done.append(word)
    except OSError:
        pass
try:
    fcntl.ioctl(reading, 0x8901, struct.pack('i', {victim.pid}))
    done.append('ioctl')
except OSError:
    pass
fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)
os.write(writing, b'x')
time.sleep(0.2)
assert not done, done
"""
    try:
        outcome = attempt(program)
        assert outcome.passed, outcome.error
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_attributes_of_files_cannot_be_set(tmp_path: Path) -> None:
    """``file_setattr`` (Linux 6.17) and the calls before it, on a file that can be read."""
    program = """
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
attributes = (ctypes.c_uint64 * 4)()
assert libc.syscall(469, -100, os.__file__.encode(), attributes, 32, 0) == -1
assert ctypes.get_errno() == 1, ctypes.get_errno()
with open(os.__file__) as file:
    for request in (0x40086602, 0x401C5820, 0x5412, 0x541C):
        try:
            fcntl.ioctl(file, request, bytes(32))
        except PermissionError:
            continue
        raise AssertionError(request)
"""
    outcome = attempt(program)
    assert outcome.passed, outcome.error


def test_no_processes() -> None:
    for program in (
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=len).start()",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    ):
        assert attempt(program).status == "failed"
    bomb = """
import os
made = 0
for n in range(20):
    try:
        if os.fork() == 0:
            os._exit(0)
        made += 1
    except OSError:
        pass
assert made == 0
"""
    assert attempt(bomb).passed


def test_nothing_outlives_the_run(tmp_path: Path) -> None:
    """A daemon would touch its own folder's neighbour; there is neither a daemon nor a way to the neighbour."""
    before = set(os.listdir("/proc"))
    program = """
import os, time
try:
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
except OSError:
    pass
"""
    attempt(program)
    mine = [pid for pid in set(os.listdir("/proc")) - before if pid.isdigit() and _is_ours(pid)]
    assert mine == []


def test_a_killed_parent_leaves_no_program(tmp_path: Path) -> None:
    """Both confined processes end with the process that started them, which has no time to end them itself."""
    parent = Fork(lambda: attempt("while True: pass", limits=Limits(60.0, 60.0, 2**28)), tmp_path)
    assert parent.until(lambda: len([pid for pid in _children(parent.pid) if _is_inside(pid)]) == 2)
    confined = _children(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    _until(lambda: not any(map(_is_running, confined)))


def _until(reached: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_inside(pid: int | str) -> bool:
    """Whether the guard has confined it."""
    return b"the two confined interpreters" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _is_ours(pid: str) -> bool:
    try:
        return (
            _is_inside(pid)
            and (os.stat(f"/proc/{pid}").st_uid == os.getuid())
            and Path(f"/proc/{pid}/stat").read_text().split()[3] in (str(os.getpid()), "1")
        )
    except OSError:
        return False


def test_no_access_to_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    for program in (
        f"assert 'secret' not in open({str(secret)!r}).read()",
        f"import os; os.unlink({str(secret)!r})",
        f"import os; os.rename({str(secret)!r}, 'mine')",
        f"import os; os.link({str(secret)!r}, 'mine')",
        f"import os; os.symlink({str(secret)!r}, 'mine'); open('mine').read()",
        f"import os; os.chmod({str(secret)!r}, 0)",
        f"import os; os.truncate({str(secret)!r}, 0)",
        f"import os; os.utime({str(secret)!r}, (0, 0))",
        f"import os; os.listdir({str(tmp_path)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"import os; os.mkdir({str(tmp_path / 'new')!r})",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        f"import os; os.chdir({str(tmp_path)!r}); open('secret')",
        "open('/etc/passwd')",
        "open('/proc/1/environ')",
        "open('/dev/shm/x', 'w')",
    ):
        assert attempt(program).status == "failed", program
    assert secret.read_text() == "the secret"
    assert secret.stat().st_mode & 0o777 != 0 and secret.stat().st_mtime > 0
    assert os.listdir(tmp_path) == ["secret"]


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    assert attempt("import os; assert 'A_TOKEN' not in os.environ and 'secret' not in str(os.environ)").passed


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(0.2)
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)"
        assert attempt(program).status == "failed"
        assert attempt("import socket\nsocket.socket(socket.AF_UNIX, socket.SOCK_STREAM)").status == "failed"
        with pytest.raises(TimeoutError):
            listener.accept()


def test_signals_stay_inside() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for program in (
            f"import os; os.kill({victim.pid}, 9)",
            f"import os; os.kill({os.getpid()}, 9)",
            "import os; os.kill(os.getppid(), 9)",
            "import os; os.kill(-1, 9)",
            "import os; os.killpg(0, 9)",
        ):
            assert attempt(program).status == "failed"
        assert victim.poll() is None
        own = "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: None)\nsignal.raise_signal(signal.SIGUSR1)"
        assert attempt(own).passed
    finally:
        victim.kill()
        victim.wait()


def test_the_same_program_scores_the_same() -> None:
    program = "found = str(list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))\nraise ValueError(found)"
    assert attempt(program).error == attempt(program).error


def test_the_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    deep = "import os\nfor n in range(200):\n    os.mkdir('d'); os.chdir('d')"
    attempt(deep)
    assert os.listdir(tmp_path) == []


def test_untrusted_code_is_refused_without_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "find_missing_protection", lambda: "Landlock")
    with pytest.raises(ValueError, match="cannot confine untrusted code here: it needs Landlock"):
        run_python("pass", "")
    assert run_python("x = 1", "assert x == 1", confined=False).passed
    assert run_python("import os; os._exit(0)", FALSE, confined=False).status == "failed"


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="memory must be a number above 0, got 0"):
        Limits(memory=0)


def test_seccomp_filter_refuses_by_default() -> None:
    """The BPF program, interpreted: sockets and forks are refused, threads and everything else allowed."""
    from unmask.tasks.sandbox.guard import ARCHITECTURES, NUMBERS, filter_for

    def answer(machine: str, number: int, *words: int) -> int:
        data = {0: number, 4: ARCHITECTURES[machine], **{16 + 4 * n: word for n, word in enumerate(words)}}
        program, place, held = filter_for(machine, 77), 0, 0
        while True:
            code, yes, no, value = program[place]
            place += 1
            if code == 0x06:
                return value
            if code == 0x20:
                held = data.get(value, 0)
            else:
                holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
                place += yes if holds else no

    allow, refuse = 0x7FFF0000, 0x00050001
    for machine, numbers in NUMBERS.items():
        assert len(set(numbers.values())) == len(numbers)
        for name in ("socket", "ptrace", "truncate", "mount", "setrlimit"):
            assert answer(machine, numbers[name]) == refuse
        assert answer(machine, numbers["clone"], 0x10000) == allow
        assert answer(machine, numbers["clone"], 17) == refuse
        assert answer(machine, numbers["kill"], 77) == allow
        assert answer(machine, numbers["kill"], 78) == refuse
        assert answer(machine, numbers["prlimit64"], 0, 0, 9, 0, 0, 0) == allow
        assert answer(machine, numbers["prlimit64"], 0, 0, 9, 0, 1, 0) == refuse
        assert answer(machine, numbers["prlimit64"], 0, 0, 9, 0, 0, 1) == refuse
        assert answer(machine, 435) == 0x00050000 | 38
        for command, expected in (
            (1, allow),
            (2, allow),
            (4, allow),
            (1030, allow),
            (8, refuse),
            (10, refuse),
            (15, refuse),
            (1026, refuse),
        ):
            assert answer(machine, numbers["fcntl"], 0, 0, command) == expected
        for command, expected in (
            (0x5401, allow),
            (0x5451, allow),
            (0x5412, refuse),
            (0x8901, refuse),
            (0x40086602, refuse),
        ):
            assert answer(machine, numbers["ioctl"], 3, 0, command) == expected
        assert answer(machine, 0x40000000 + 41) == refuse
        assert answer(machine, 63 if machine == "aarch64" else 0) == allow  # read
