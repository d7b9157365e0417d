"""What a program may do and use, how it is tested, and when a sandbox is refused. `test_hostile.py` has the rest."""

import ast
import errno
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.commands import doctor
from freerun.core import ConfigError, RewardError
from freerun.rewards.judges import check
from freerun.sandbox import cgroups as groups
from freerun.sandbox import sandbox as sandboxes
from freerun.sandbox.base import Backend, Ending, Exam, Limits
from freerun.sandbox.container import Container, ContainerError, Report
from freerun.sandbox.inside import codec, proof, seccomp, syscalls
from freerun.sandbox.inside.examiner import same
from freerun.sandbox.sandbox import Sandbox
from freerun.sandbox.usage import descendants
from freerun.sandbox.view import HERE
from tests.rewards.gone import wait_until_gone


@pytest.fixture(scope="module")
def opened() -> Iterator[Sandbox]:
    try:
        with Sandbox() as sandbox:
            yield sandbox
    except ConfigError as refusal:
        pytest.skip(str(refusal))


@pytest.fixture
def sandbox(opened: Sandbox) -> Sandbox:
    return opened


@pytest.fixture(params=list(Backend))
def made_by(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """By each of the ways that this machine has."""
    try:
        with Sandbox(request.param) as sandbox:
            yield sandbox
    except ConfigError as refusal:
        pytest.skip(str(refusal))


def run(sandbox: Sandbox, program: str, stdin: bytes = b"", limits: Limits | None = None) -> str:
    outcome = sandbox.run([textwrap.dedent(program)], stdin, limits)
    assert (outcome.ending, outcome.exit_code, outcome.stderr) == (Ending.EXITED, 0, b"")
    return outcome.stdout.decode()


# What a program may do


def test_a_script_reads_and_prints(sandbox: Sandbox) -> None:
    assert run(sandbox, "print(int(input()) + int(input()))", b"2\n3\n") == "5\n"
    assert run(sandbox, "import sys; print(__name__, sys.argv, 'é')") == "__main__ ['main.py'] é\n"


def test_a_script_ends_as_under_python(sandbox: Sandbox) -> None:
    assert sandbox.run(["import sys; sys.exit(3)"]).exit_code == 3
    assert sandbox.run(["import sys; sys.exit('no')"]).stderr == b"no\n"
    raised = sandbox.run(["def f(): 1 / 0\nf()"])
    assert raised.exit_code == 1
    assert raised.stderr.decode().splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert b"freerun" not in raised.stderr
    assert run(sandbox, "import atexit; atexit.register(print, 'bye'); print('hi')") == "hi\nbye\n"
    threads = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()"
    assert run(sandbox, threads) == "late\n"
    assert sandbox.run(["x ="]).unreadable.startswith("SyntaxError")
    assert sandbox.run(["x =", "print(1)"]).stdout == b"1\n"


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(open('/dev/stdin').read().split())", "['5', '6']\n"),
        ("import sys; sys.stdin = open('/dev/stdin'); print(input())", "5 6\n"),
        ("print('a'); exit()\nprint('b')", "a\n"),
        ("print('a'); quit(0)", "a\n"),
        ("out = open(1, 'w'); out.write('never closed')", "never closed"),
        ("import io, sys; sys.stdout = io.TextIOWrapper(io.FileIO(1, 'w')); print('other')", "other\n"),
        ("import sys; print('x'); sys.stdout.close()", "x\n"),
        (
            "class A:\n    def __init__(s): s.f = open(1, 'w'); s.f.write('in a circle'); s.s = s\na = A()",
            "in a circle",
        ),
        ("class A:\n    def __del__(self): print('gone')\na = A()", "gone\n"),
    ],
)
def test_input_and_output_as_under_python(made_by: Sandbox, program: str, output: str) -> None:
    assert run(made_by, program, b"5 6\n") == output
    plain = subprocess.run([sys.executable, "-c", program], input="5 6\n", text=True, capture_output=True, check=True)
    assert plain.stdout == output


def test_what_innocent_programs_use(sandbox: Sandbox) -> None:
    assert run(sandbox, "import asyncio\nasync def f(): print(1)\nasyncio.run(f())") == "1\n"
    assert run(sandbox, "import subprocess; print(subprocess.check_output(['echo', 'x']).decode())") == "x\n\n"
    pool = "from multiprocessing import Pool\nwith Pool(2) as p: print(p.map(abs, [-1, -2]))"
    assert run(sandbox, pool) == "[1, 2]\n"
    assert run(sandbox, "import sqlite3, xml.dom, http.client, tempfile; print(tempfile.mkdtemp()[:5])") == "/tmp/\n"
    assert run(sandbox, "import numpy as np; print((np.eye(2) @ np.eye(2)).sum())") == "2.0\n"
    deep = "import sys; sys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(15000))"
    assert run(sandbox, deep) == "15000\n"


def test_nothing_goes_from_run_to_run(sandbox: Sandbox) -> None:
    write = "import os\nfor d in ('/tmp', '/dev/shm'): open(d + '/x', 'w').write('x'); print(os.listdir(d))"
    assert run(sandbox, write) == "['x']\n['x']\n"
    assert run(sandbox, write) == "['x']\n['x']\n"
    run(sandbox, "word = 'a word of the run ' + 'before'")
    search = "import gc; print([o for o in gc.get_objects() if isinstance(o, str) and 'a word of the run' in o])"
    assert run(sandbox, search) == "[]\n"


def test_a_program_is_nobody_and_all_is_read_only(made_by: Sandbox) -> None:
    if os.geteuid() == 0:
        assert run(made_by, "import os; print(os.getuid())") != "0\n"
    places = "import os; print([os.statvfs(p).f_flag & 1 for p in ('/', '/usr', '/freerun/inside', os.__file__)])"
    assert run(made_by, places) == "[1, 1, 1, 1]\n"


def test_verdicts_do_not_depend_on_the_cell(sandbox: Sandbox) -> None:
    """Text hashes the same everywhere, so a set of words has one order."""
    words = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    with Sandbox() as another:
        assert run(sandbox, words) == run(another, words)


def test_another_language(sandbox: Sandbox) -> None:
    outcome = sandbox.run(["read x; echo $((x + 1))"], b"41\n", command=("bash", "main.sh"), file="main.sh")
    assert (outcome.exit_code, outcome.stdout) == (0, b"42\n")
    missing = sandbox.run(["x"], command=("no-such-language", "x"), file="x")
    assert (missing.exit_code, missing.stderr) == (127, b"no-such-language: No such file or directory\n")


# What it may use


def test_no_more_processes_than_allowed(sandbox: Sandbox) -> None:
    program = """
        import os, signal
        count = 0
        try:
            while os.fork(): count += 1
            signal.pause()
        except OSError:
            print(count)
    """
    assert 8 <= int(run(sandbox, program, limits=Limits(processes=10))) <= 16


@pytest.mark.parametrize(
    ("program", "ending"),
    [
        ("while True: pass", Ending.CPU),
        ("import os\nfor _ in range(3): os.fork()\nwhile True: pass", Ending.CPU),
        ("import time; time.sleep(100)", Ending.WALL),
        ("while True: print('x' * 1000)", Ending.OUTPUT),
        ("open('x', 'wb').write(bytes(9 << 20))", Ending.OUTPUT),
        ("import os; os.abort()", Ending.SIGNAL),
        ("import os; os.kill(os.getpid(), 9)", Ending.SIGNAL),
        (
            "import os, time\nfor _ in range(4):\n    if not os.fork(): x = bytearray(b'x') * (60 << 20); time.sleep(9)"
            "\ntime.sleep(9)",
            Ending.MEMORY,
        ),
    ],
)
def test_why_a_run_ended(sandbox: Sandbox, program: str, ending: Ending) -> None:
    limits = Limits(cpu_s=0.4, wall_s=1.0 if ending is Ending.WALL else 8.0, memory_mb=128, file_mb=4)
    assert sandbox.run([program], limits=limits).ending is ending


GIVEN_BACK = """
    import mmap, os, time
    for _ in range(6):
        if os.fork() == 0:
            shared = mmap.mmap(-1, 100 << 20)
            for page in range(0, 100 << 20, 4096): shared[page] = 1
            shared.madvise(mmap.MADV_DONTNEED)
            time.sleep(20)
    time.sleep(20)
"""
NOT_WAITED_FOR = """
    import os, signal, time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try: child = os.fork()
        except OSError: continue
        if child == 0:
            while time.process_time() < {seconds}: pass
            os._exit(0)
        time.sleep(0.002)
"""


@pytest.fixture(params=["by its group", "by looking"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Both ways in which what a run uses can be counted."""
    if request.param == "by looking":
        monkeypatch.setattr(groups.Group, "make", lambda: None)
    elif not groups.parents():
        pytest.skip("needs control groups that it may write to")
    before = made_groups()
    try:
        with Sandbox() as sandbox:
            yield sandbox
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    assert made_groups() == before


def made_groups() -> set[Path]:
    return {group for parent in groups.parents() for group in parent.glob(f"freerun-container-{os.getpid()}-*")}


def test_what_is_hidden_counts_too(counting: Sandbox) -> None:
    """Shared memory that no process has mapped in any more, and the time of children that nobody waits for."""
    limits = Limits(cpu_s=8, wall_s=20, memory_mb=256)
    assert counting.run([textwrap.dedent(GIVEN_BACK)], limits=limits).ending is Ending.MEMORY
    for seconds in (0.2, 0.01):
        program = textwrap.dedent(NOT_WAITED_FOR.format(seconds=seconds))
        outcome = counting.run([program], limits=Limits(cpu_s=0.5, wall_s=20))
        assert outcome.ending is Ending.CPU
        assert outcome.cpu_s < 5


def test_memory_that_processes_share_counts_once(counting: Sandbox) -> None:
    program = "import os, time\nx = bytearray(b'x') * (60 << 20)\nfor _ in range(6):\n    if not os.fork(): break\n"
    outcome = counting.run([f"{program}time.sleep(0.2)"], limits=Limits(cpu_s=2, wall_s=8, memory_mb=256))
    assert (outcome.ending, outcome.exit_code) == (Ending.EXITED, 0)


def test_what_the_machine_has_little_of_is_left_to_others(sandbox: Sandbox) -> None:
    program = """
        import ctypes, os
        x86 = os.uname().machine == "x86_64"
        libc, place = ctypes.CDLL(None), ctypes.c_long(0)
        print(libc.syscall(206 if x86 else 0, 60000, ctypes.byref(place)))
    """
    assert run(sandbox, program) == "-1\n"


def test_a_process_may_call_itself_anything(counting: Sandbox) -> None:
    name = "import ctypes, time\nctypes.CDLL(None).prctl(15, bytes([255, 254, 41, 32, 82]), 0, 0, 0)\ntime.sleep(0.1)"
    for _ in range(3):
        assert counting.run([f"{name}\nprint(1)"]).stdout == b"1\n"
        assert counting.run(["print(2)"]).stdout == b"2\n"


def test_a_program_that_breaks_its_sandbox_has_failed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the first time it may have been somebody else."""
    real, broken = Container.run, [2]

    def breaks(self: Container, *args: Any, **named: Any) -> Report:
        if broken[0] > 0:
            broken[0] -= 1
            raise ContainerError("the sandbox broke down")
        return real(self, *args, **named)

    with Sandbox() as mine:
        monkeypatch.setattr(Container, "run", breaks)
        monkeypatch.setattr(sandboxes, "_proven", lambda backend, nested: Container(backend, nested=nested))
        assert mine.run(["print(1)"]).ending is Ending.SIGNAL
        assert mine.run(["print(1)"]).stdout == b"1\n"
        broken[0] = 1
        assert mine.run(["print(1)"]).stdout == b"1\n"
        broken[0] = 2
        examined = mine.examine(["def f(): return 1"], Exam(tests=["assert f() == 1"]))
        assert (examined.finished, examined.detail) == (False, "it broke the sandbox that it ran in, twice")


def test_one_process_cannot_have_more_memory(sandbox: Sandbox) -> None:
    outcome = sandbox.run(["x = bytearray(200 << 20)"], limits=Limits(memory_mb=128))
    assert outcome.stderr.decode().splitlines()[-1] == "MemoryError"


# How it is tested


def examine(sandbox: Sandbox, program: str, exam: Exam) -> tuple[bool, ...]:
    examined = sandbox.examine([textwrap.dedent(program)], exam, Limits(cpu_s=4, wall_s=8))
    assert examined.finished, examined
    return examined.results


def test_asserts_of_many_kinds(sandbox: Sandbox) -> None:
    program = """
        import math
        LIMIT = 10
        class Stack:
            def __init__(self): self.items = []
            def push(self, item): self.items.append(item); return self
            def __len__(self): return len(self.items)
            def __eq__(self, other): return self.items == other.items
            def __iter__(self): return iter(self.items)
        def total(*values, start=0): return sum(values, start)
        def reverse(values): values.reverse()
        def count():
            n = 0
            while True: yield (n := n + 1)
        def apply(function, values): return [function(value) for value in values]
        def fail(): raise KeyError('x')
        def mean(values):
            import numpy
            return numpy.array(values).mean(axis=0), numpy.int64(len(values))
        def pair(): return {(1, 2): {3}, 'x': (None, b'y', 2**100, float('inf'), 1j)}
    """
    right = [
        "assert total(1, 2, start=3) == 6 and LIMIT == 10",
        "s = Stack()\nassert len(s.push(1).push(2)) == 2 and s.items == [1, 2] and list(s) == [1, 2] and 2 in s",
        "assert Stack().push(1) == Stack().push(1) and Stack().push(1) != Stack()",
        "v = [1, 2]\nreverse(v)\nassert v == [2, 1]",
        "c = count()\nassert next(c) == 1 and next(c) == 2\nfor n in c:\n    if n == 5: break",
        "assert apply(lambda x: x * 2, (n for n in (1, 2))) == [2, 4]",
        "try: fail()\nexcept KeyError as e: assert e.args == ('x',)\nelse: assert False",
        "r = pair()\nassert r == {(1, 2): {3}, 'x': (None, b'y', 2**100, math.inf, 1j)} and type(r['x']) is tuple",
        "from solution import total as t\nassert t(1) == 1",
        "def test_one(): assert total(1) == 1",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(total(2), 2)",
        "import numpy as np\nassert np.allclose(total(1, 2), 3) and mean(np.eye(2))[1] == 2",
    ]
    assert examine(sandbox, program, Exam(tests=right)) == (True,) * len(right)
    wrong = [
        "assert total(1) == 2",
        "assert Stack() == []",
        "def test_two(): assert total(1) == 2",
        "import unittest\nclass U(unittest.TestCase):\n    def test_it(self): self.assertEqual(total(2), 3)",
        "fail()",
        "nothing()",
        "raise SystemExit(0)",
    ]
    assert examine(sandbox, program, Exam(tests=wrong)) == (False,) * len(wrong)


def test_setup_and_header(sandbox: Sandbox) -> None:
    header = "import math\ndef twice(x): return 2 * x\ndef f(x):\n    '''Four times x.'''\n"
    exam = Exam("f", header=header, setup="wanted = twice(math.floor(4.5))", tests=["assert f(2) == wanted"])
    assert examine(sandbox, "def f(x): return twice(twice(x))", exam) == (True,)
    assert examine(sandbox, "def twice(x): return 4\ndef f(x): return 4", exam) == (False,)  # the tests have their own


def test_calls(sandbox: Sandbox) -> None:
    calls: list[tuple[list[Any], list[Any]]]
    calls = [([[3, 1, 2]], [[1, 2, 3]]), ([[0.1 + 0.2]], [[0.3]]), ([[]], [[], None]), ([["b", "a"]], [["b", "a"]])]
    assert examine(sandbox, "f = lambda v: tuple(sorted(v))", Exam("f", calls=calls)) == (True, True, True, False)
    solution = "class Solution:\n    def f(self, v): return sorted(v)"
    assert examine(sandbox, solution, Exam("f", calls=calls)) == (True, True, True, False)


def test_what_went_wrong_is_told(sandbox: Sandbox) -> None:
    examined = sandbox.examine(["def f(x): return x"], Exam("f", tests=["\nassert f(1) == 2"]))
    assert examined.detail == "AssertionError (line 2 of the tests)"
    examined = sandbox.examine(["def f(x): return x"], Exam("f", calls=[([1], [2])]))
    assert examined.detail == "AssertionError: f(1) is 1, not 2"
    examined = sandbox.examine(["1 / 0"], Exam("f", calls=[([1], [2])]))
    assert (examined.detail, examined.finished) == ("ZeroDivisionError: division by zero", False)
    examined = sandbox.examine(["def f(:"], Exam("f", calls=[([1], [2])]))
    assert examined.unreadable.startswith("SyntaxError")
    crash = "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSEGV)"
    examined = sandbox.examine([crash], Exam("f", calls=[([1], [2])]))
    assert (examined.ending, examined.exit_code) == (Ending.SIGNAL, -signal.SIGSEGV)
    assert examined.detail == "the program ended before the tests did"


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("assert f(1 ==", "never closed"),
        ("import a_module_that_is_not_there\nassert f(1) == 1", "a_module_that_is_not_there"),
    ],
)
def test_a_task_that_cannot_be_judged_is_not_the_answers_fault(sandbox: Sandbox, test: str, complaint: str) -> None:
    with pytest.raises(RewardError, match=complaint):
        sandbox.examine(["def f(x): return 1"], Exam("f", tests=[test]))


def test_the_answer_cannot_say_that_the_task_is_at_fault(sandbox: Sandbox) -> None:
    for error in ("ImportError", "ModuleNotFoundError", "SyntaxError"):
        exam = Exam(setup="f(1)", tests=["assert f(1) == 1"])
        assert not sandbox.examine([f"def f(x): raise {error}('no')"], exam).finished
        assert examine(sandbox, f"def f(x): raise {error}('no')", Exam(tests=exam.tests)) == (False,)


NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.fractions()
ATOMS = st.none() | st.booleans() | st.text() | st.binary() | NUMBERS | st.decimals(allow_nan=False)


@given(
    st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            *(st.lists(inner).map(kind) for kind in (list, tuple, deque)), st.dictionaries(ATOMS, inner)
        ),
        max_leaves=10,
    )
    | st.sets(ATOMS)
    | st.frozensets(ATOMS)
    | st.just(range(1, 9, 2))
)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    packed = codec.Packer(refuse).pack(value)
    arrived = codec.Unpacker(refuse).unpack(json.loads(json.dumps(packed)))
    assert arrived == value
    assert type(arrived) is type(value)


def test_what_counts_as_the_same() -> None:
    assert same((1, [2.0000001]), [1, [2]])
    assert same({1: "a"}, {"1": "a"})
    assert not same(1000000100.0, 1000000007)
    assert same(1000000007.0, 1000000007)
    assert not same(1, True)
    assert not same("1", 1)
    assert not same([1], [1, 1])
    assert not same(10**400, 1.0)
    assert not same(Decimal(1), "1")
    assert not same(Fraction(1, 2), [1, 2])


# When it is refused, and how it ends


@pytest.mark.skipif(sys.platform != "linux", reason="there is none elsewhere")
def test_a_machine_that_allows_nothing_is_refused() -> None:
    """Really: with our own filter on, no process of ours can make a namespace, by bubblewrap or without."""
    program = """
        from freerun.core import ConfigError
        from freerun.sandbox.inside import seccomp, syscalls
        from freerun.sandbox.sandbox import Sandbox
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install()
        try:
            Sandbox().run(["print('unprotected')"])
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("judging code needs")
    assert "unprotected" not in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_refusal_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "_proven", lambda *_: (_ for _ in ()).throw(ContainerError("no namespaces")))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    line = "judging code needs bubblewrap (without it: namespaces: no namespaces): apt install bubblewrap"
    with pytest.raises(ConfigError) as refusal:
        check(["exact", "code"])  # before a run starts
    assert (str(refusal.value), refusal.value.detail) == (line, "")
    assert doctor._isolation() == doctor.Finding(False, line)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/bwrap")
    with pytest.raises(ConfigError, match=r"none holds here \(bubblewrap: no namespaces; namespaces: .*\): \S+"):
        Sandbox().open()
    monkeypatch.setattr(sandboxes, "python", lambda: "/tmp/mine/bin/python3")
    with pytest.raises(ConfigError, match="needs a Python outside /tmp, which programs find empty: not /tmp/mine"):
        Sandbox().open()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux"):
        Sandbox().open()


def test_a_cell_with_a_way_out_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proof.py").write_text("print('a window')\nprint('a door')")
    monkeypatch.setattr(proof, "__file__", str(tmp_path / "proof.py"))
    before = set(descendants(os.getpid()))
    with pytest.raises(ConfigError) as refusal:
        Sandbox().open()
    assert "it does not hold: a window; a door" in str(refusal.value)
    assert set(descendants(os.getpid())) <= before


def test_the_doctor_knows(sandbox: Sandbox) -> None:
    assert doctor._isolation().what.startswith(f"judging code, isolated by {sandbox.backend}")


def test_a_run_dies_with_its_judge(made_by: Sandbox) -> None:
    program = f"""
        import sys
        from freerun.sandbox.base import Backend, Limits
        from freerun.sandbox.sandbox import Sandbox
        with Sandbox(Backend("{made_by.backend}")) as sandbox:
            print("ready", flush=True)
            sandbox.run(["while True: pass"], limits=Limits(cpu_s=100, wall_s=100))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        while len(inside := list(descendants(judge.pid))) < 4:  # bubblewrap or us, forkserver, init, program
            pass
        pidfds = [os.pidfd_open(pid) for pid in inside]
        judge.send_signal(signal.SIGKILL)
        for pidfd in pidfds:
            wait_until_gone(pidfd)


def test_closing_leaves_nothing(sandbox: Sandbox) -> None:
    before = set(descendants(os.getpid()))
    other = Sandbox(sandbox.backend)
    other.run(["print(1)"])
    other.close()
    other.close()
    assert set(descendants(os.getpid())) <= before
    assert other.run(["print(1)"]).stdout == b"1\n"  # and it opens again
    other.close()


# The filter, read by a machine of our own, so that the other architecture's is tested too


def decide(filter: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would make of a call: 0 if allowed, else the error, or -1 for the end of the process."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = [struct.unpack_from("<HBBI", filter, at) for at in range(0, len(filter), 8)]
    value, at = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                value = int.from_bytes(data[operand : operand + 4], "little")
            case 0x15 | 0x25 | 0x45:
                test = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
                at += if_true if test else if_false
            case 0x06:
                ends = {0x7FFF0000: 0, 0x80000000: -1}
                return ends.get(operand, int(operand & 0xFFFF))
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)])
def test_the_filter(machine: str, architecture: int, column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    filter = seccomp.build()
    assert len(filter) // 8 < 4096  # as many steps as the kernel takes

    def call(name: str, *arguments: int) -> int:
        number = syscalls.NUMBERS[name][column]
        assert number is not None
        return decide(filter, architecture, number, *arguments)

    for name in seccomp.FORBIDDEN:
        if syscalls.NUMBERS[name][column] is not None:
            assert call(name) == errno.EPERM, name
    assert call("socket", socket.AF_UNIX) == 0
    assert call("socket", socket.AF_INET) == call("socketpair", 16) == errno.EAFNOSUPPORT
    assert call("clone", signal.SIGCHLD) == 0
    assert call("clone", syscalls.CLONE_NEWUSER | signal.SIGCHLD) == errno.EPERM
    assert call("clone3") == errno.ENOSYS
    assert call("prlimit64", 0) == 0
    assert call("prlimit64", 1) == errno.EPERM
    assert call("ioctl", 0, 0x5401) == 0
    assert call("ioctl", 0, 0x5412) == errno.EPERM
    assert call("personality", 0xFFFFFFFF) == 0
    assert call("personality", 8) == errno.EPERM
    assert call("close_range") == 0
    assert decide(filter, architecture, 451) == errno.ENOSYS
    assert decide(filter, architecture, 0x40000000) == errno.ENOSYS
    assert decide(filter, 0x40000003, 0) == -1
    forbidden = {syscalls.NUMBERS[name][column] for name in syscalls.NUMBERS}
    assert {decide(filter, architecture, number, 1) for number in set(range(451)) - forbidden} == {0}


def test_numbers_agree_with_the_machines_own_header() -> None:
    header = Path("/usr/include/asm-generic/unistd.h")
    if not header.exists():
        pytest.skip("needs kernel headers: apt install linux-libc-dev")
    pairs = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR"))
    own = {words[1].removeprefix("__NR3264_").removeprefix("__NR_"): words[2] for words in pairs if words[2].isdigit()}
    for name, (_, number) in syscalls.NUMBERS.items():
        assert number is None or own[name] == str(number), name


def test_what_runs_inside_needs_nothing_from_outside() -> None:
    for file in (HERE / "inside").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                ours = name.startswith("freerun.sandbox.inside")
                assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"
