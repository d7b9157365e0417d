"""What a run may use, how that is counted, and how a run that exceeds a limit ends."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError
from freerun.sandbox import cgroups
from freerun.sandbox import sandbox as sandboxes
from freerun.sandbox.base import Ending, FunctionTests, Limits
from freerun.sandbox.container import Container, ContainerError, RunReport
from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import run


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
def test_the_ending_names_the_exceeded_limit(sandbox: Sandbox, program: str, ending: Ending) -> None:
    limits = Limits(cpu_s=0.4, wall_s=1.0 if ending is Ending.WALL else 8.0, memory_mb=128, file_mb=4)
    assert sandbox.run_script([program], limits=limits).ending is ending


UNMAPPED_MEMORY = """
    import mmap, os, time
    for _ in range(6):
        if os.fork() == 0:
            shared = mmap.mmap(-1, 100 << 20)
            for page in range(0, 100 << 20, 4096): shared[page] = 1
            shared.madvise(mmap.MADV_DONTNEED)
            time.sleep(20)
    time.sleep(20)
"""
UNWAITED_CHILDREN = """
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


@pytest.fixture(params=["by its control group", "by reading /proc"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Both ways in which what a run uses can be counted."""
    if request.param == "by reading /proc":
        monkeypatch.setattr(cgroups.ControlGroup, "make", lambda: None)
    elif not cgroups.parents():
        pytest.skip("no control group can be made here")
    before = existing_groups()
    try:
        with Sandbox() as sandbox:
            yield sandbox
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    assert existing_groups() == before


def existing_groups() -> set[Path]:
    return {group for parent in cgroups.parents() for group in parent.glob(f"freerun-container-{os.getpid()}-*")}


def test_unmapped_memory_and_unwaited_children_count(counting: Sandbox) -> None:
    """Shared memory that no process has mapped in any more, and the time of children that nobody waits for."""
    limits = Limits(cpu_s=8, wall_s=20, memory_mb=256)
    assert counting.run_script([textwrap.dedent(UNMAPPED_MEMORY)], limits=limits).ending is Ending.MEMORY
    for seconds in (0.2, 0.01):
        program = textwrap.dedent(UNWAITED_CHILDREN.format(seconds=seconds))
        result = counting.run_script([program], limits=Limits(cpu_s=0.5, wall_s=20))
        assert result.ending is Ending.CPU
        assert result.cpu_s < 5


def test_memory_that_processes_share_counts_once(counting: Sandbox) -> None:
    program = "import os, time\nx = bytearray(b'x') * (60 << 20)\nfor _ in range(6):\n    if not os.fork(): break\n"
    result = counting.run_script([f"{program}time.sleep(0.2)"], limits=Limits(cpu_s=2, wall_s=8, memory_mb=320))
    assert (result.ending, result.exit_code) == (Ending.EXITED, 0)


def test_scarce_kernel_resources_are_refused(sandbox: Sandbox) -> None:
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
        assert counting.run_script([f"{name}\nprint(1)"]).stdout == b"1\n"
        assert counting.run_script(["print(2)"]).stdout == b"2\n"


def test_a_program_that_breaks_its_sandbox_has_failed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the first time it may have been somebody else."""
    real, broken = Container.run, [2]

    def breaks(self: Container, *args: Any, **named: Any) -> RunReport:
        if broken[0] > 0:
            broken[0] -= 1
            raise ContainerError("the sandbox broke down")
        return real(self, *args, **named)

    with Sandbox() as mine:
        monkeypatch.setattr(Container, "run", breaks)
        monkeypatch.setattr(sandboxes, "_checked_container", lambda backend, nested: Container(backend, nested=nested))
        assert mine.run_script(["print(1)"]).ending is Ending.SIGNAL
        assert mine.run_script(["print(1)"]).stdout == b"1\n"
        broken[0] = 1
        assert mine.run_script(["print(1)"]).stdout == b"1\n"
        broken[0] = 2
        examined = mine.run_tests(["def f(): return 1"], FunctionTests(tests=["assert f() == 1"]))
        assert (examined.finished, examined.detail) == (False, "it broke the sandbox it ran in, twice")


def test_one_process_cannot_have_more_memory(sandbox: Sandbox) -> None:
    result = sandbox.run_script(["x = bytearray(200 << 20)"], limits=Limits(memory_mb=128))
    assert result.stderr.decode().splitlines()[-1] == "MemoryError"
