"""What a program that runs as a script may do: as much as under plain Python."""

import os
import subprocess
import sys

import pytest

from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import run


def test_a_script_reads_and_prints(sandbox: Sandbox) -> None:
    assert run(sandbox, "print(int(input()) + int(input()))", b"2\n3\n") == "5\n"
    assert run(sandbox, "import sys; print(__name__, sys.argv, 'é')") == "__main__ ['main.py'] é\n"


def test_a_script_ends_as_under_python(sandbox: Sandbox) -> None:
    assert sandbox.run_script(["import sys; sys.exit(3)"]).exit_code == 3
    assert sandbox.run_script(["import sys; sys.exit('no')"]).stderr == b"no\n"
    raised = sandbox.run_script(["def f(): 1 / 0\nf()"])
    assert raised.exit_code == 1
    assert raised.stderr.decode().splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert b"freerun" not in raised.stderr
    assert run(sandbox, "import atexit; atexit.register(print, 'bye'); print('hi')") == "hi\nbye\n"
    threads = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()"
    assert run(sandbox, threads) == "late\n"
    assert sandbox.run_script(["x ="]).unreadable.startswith("SyntaxError")
    assert sandbox.run_script(["x =", "print(1)"]).stdout == b"1\n"


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
def test_input_and_output_as_under_python(any_sandbox: Sandbox, program: str, output: str) -> None:
    assert run(any_sandbox, program, b"5 6\n") == output
    plain = subprocess.run([sys.executable, "-c", program], input="5 6\n", text=True, capture_output=True, check=True)
    assert plain.stdout == output


def test_ordinary_programs_work(sandbox: Sandbox) -> None:
    assert run(sandbox, "import asyncio\nasync def f(): print(1)\nasyncio.run(f())") == "1\n"
    assert run(sandbox, "import subprocess; print(subprocess.check_output(['echo', 'x']).decode())") == "x\n\n"
    pool = "from multiprocessing import Pool\nwith Pool(2) as p: print(p.map(abs, [-1, -2]))"
    assert run(sandbox, pool) == "[1, 2]\n"
    assert run(sandbox, "import sqlite3, xml.dom, http.client, tempfile; print(tempfile.mkdtemp()[:5])") == "/tmp/\n"
    assert run(sandbox, "import numpy as np; print((np.eye(2) @ np.eye(2)).sum())") == "2.0\n"
    deep = "import sys; sys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(15000))"
    assert run(sandbox, deep) == "15000\n"


def test_runs_leave_nothing_for_the_next(sandbox: Sandbox) -> None:
    write = "import os\nfor d in ('/tmp', '/dev/shm'): open(d + '/x', 'w').write('x'); print(os.listdir(d))"
    assert run(sandbox, write) == "['x']\n['x']\n"
    assert run(sandbox, write) == "['x']\n['x']\n"
    run(sandbox, "word = 'a word of the run ' + 'before'")
    search = "import gc; print([o for o in gc.get_objects() if isinstance(o, str) and 'a word of the run' in o])"
    assert run(sandbox, search) == "[]\n"


def test_programs_are_unprivileged_and_files_read_only(any_sandbox: Sandbox) -> None:
    if os.geteuid() == 0:
        assert run(any_sandbox, "import os; print(os.getuid())") != "0\n"
    places = "import os; print([os.statvfs(p).f_flag & 1 for p in ('/', '/usr', '/freerun/inside', os.__file__)])"
    assert run(any_sandbox, places) == "[1, 1, 1, 1]\n"


def test_verdicts_do_not_depend_on_the_container(sandbox: Sandbox) -> None:
    """Text hashes the same everywhere, so a set of words has one order."""
    words = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    with Sandbox() as another:
        assert run(sandbox, words) == run(another, words)


def test_another_language(sandbox: Sandbox) -> None:
    result = sandbox.run_script(["read x; echo $((x + 1))"], b"41\n", command=("bash", "main.sh"), file="main.sh")
    assert (result.exit_code, result.stdout) == (0, b"42\n")
    missing = sandbox.run_script(["x"], command=("no-such-language", "x"), file="x")
    assert (missing.exit_code, missing.stderr) == (127, b"no-such-language: No such file or directory\n")
