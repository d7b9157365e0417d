"""No hostile program gets out, passes, stalls the others, or leaves anything behind. See `hostile.py` for the programs.

Everything runs by the isolation that this machine would choose. Ways out are tried in the others as well, and of the
rest a few.
"""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from freerun.core import ConfigError, Task
from freerun.machine.descendants import children, descendants
from freerun.rewards.code import judge as judging
from freerun.rewards.code.judge import Code
from freerun.sandbox.base import Backend, Ending, FunctionTests, Limits
from freerun.sandbox.sandbox import Sandbox, available
from tests.sandbox.hostile import BOMBS, CHEATS, ESCAPES, FORGERIES

VARIANTS = {
    "bubblewrap": (Backend.BUBBLEWRAP, True),
    "alone": (Backend.BUBBLEWRAP, False),
    "namespaces": (Backend.NAMESPACES, True),
}
"""`alone` is bubblewrap as it is where a program in it may make no namespaces: one run a container."""
FIRST = "bubblewrap" if Backend.BUBBLEWRAP in available() else "namespaces"

TIGHT = Limits(cpu_s=0.3, wall_s=0.7, memory_mb=256, processes=16, file_mb=4)
STRICT = Code(cpu_s=0.3, wall_s=0.7, memory_mb=256)
OTHERS: set[int] = set()
"""Processes that other tests have left, such as one of multiprocessing's."""
RIGHT = "def square(n): return n * n"
CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(-4) == 16\n"
MARK = f"freerun-hostile-{os.getpid()}"
SECRET = "the secret of this machine"

IN_ALL_VARIANTS = {
    *("tcp to the host", "udp", "dns", "a unix socket of the host", "an abstract socket of the host", "a secret file"),
    *("writing to /usr", "writing to /dev", "writing to the harness", "a disk", "the parent's environment", "ptrace"),
    *("all processes", "killing a process of the host", "taking another's files", "becoming root", "mount", "chroot"),
    *("a user namespace", "another's namespaces", "raising its limits", "what a run before left", "the environment"),
    *("a fork bomb", "a daemon", "memory in many processes", "output without end", "killing everybody", "sleeping"),
    *("many large files", "loops in many processes", "stopping itself", "closing all files"),
    *("leaving at once", "killing its tests", "stopping its tests", "equal to everything", "saying so everywhere"),
    *("a fork bomb while loading", "hanging up", "reading the tests in its memory"),
}


def everywhere(programs: dict[str, object], selected_in: tuple[str, ...] = ("alone",)) -> pytest.MarkDecorator:
    cases = [
        pytest.param(variant, name, id=f"{variant}-{name}")
        for variant in VARIANTS
        for name in programs
        if variant == FIRST or variant not in selected_in or name in IN_ALL_VARIANTS
    ]
    return pytest.mark.parametrize(("variant", "name"), cases)


@pytest.fixture(scope="module")
def sandboxes(host: Callable[[str], str]) -> Iterator[dict[str, Sandbox]]:
    """Those opened so far."""
    opened: dict[str, Sandbox] = {}
    OTHERS.update(descendants(os.getpid()))
    os.environ["FREERUN_HOSTILE"] = SECRET
    yield opened
    for sandbox in opened.values():
        sandbox.close()
    del os.environ["FREERUN_HOSTILE"]
    assert processes() == set()


@pytest.fixture
def sandbox(variant: str, sandboxes: dict[str, Sandbox]) -> Sandbox:
    backend, nested = VARIANTS[variant]
    sandbox = sandboxes.get(variant) or Sandbox(backend, nested=nested)
    try:
        sandbox.open()
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    sandboxes[variant] = sandbox
    return sandbox


@pytest.fixture(autouse=True)
def _nothing_remains(sandbox: Sandbox, sandboxes: dict[str, Sandbox]) -> Iterator[None]:
    mounts = Path("/proc/self/mountinfo").read_text()
    yield
    assert sandbox.run_tests([RIGHT], FunctionTests("square", tests=[CHECK])).results == (True,), "the next run suffers"
    idle = {pid for other in sandboxes.values() for pid in idle_processes(other)}
    assert processes() == idle
    assert Path("/proc/self/mountinfo").read_text() == mounts
    for folder in ("/", "/tmp", "/dev/shm", "/usr", "/dev", "/var/tmp", os.path.dirname(os.__file__)):
        assert not [name for name in os.listdir(folder) if MARK in name], folder


def idle_processes(sandbox: Sandbox) -> set[int]:
    """Those of the container that waits for a run. Where it serves many, its forkserver has no children then."""
    container = sandbox._container
    assert container is not None
    container.ready()
    if container.nested:
        assert container._meter is not None
        assert children(container._meter._top) == []
    return {container._process.pid, *descendants(container._process.pid)}


def processes() -> set[int]:
    """All that these tests have started, but for the victim."""
    ours = set(descendants(os.getpid())) - OTHERS
    return {pid for pid in ours if Path(f"/proc/{pid}/comm").read_text() != "sleep\n"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Things of this machine that a program must not reach; fills their names into a program."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text(SECRET)
    victim = subprocess.Popen(["sleep", "1000"])
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(str(folder / "socket"))
        abstract.bind(f"\0{MARK}")
        names = {"SECRET": folder / "secret", "PORT": tcp.getsockname()[1], "SOCKET": folder / "socket"}
        names |= {"VICTIM": victim.pid, "MARK": MARK}
        for listening in (tcp, unix, abstract):
            listening.listen()
            listening.setblocking(False)

        def fill(program: str) -> str:
            for name, value in names.items():
                program = program.replace(f"@{name}@", str(value))
            return program

        yield fill
        for listening in (tcp, unix, abstract):
            with pytest.raises(BlockingIOError):  # nobody came
                listening.accept()
        assert victim.poll() is None
        victim.kill()
        victim.wait()
        assert (folder / "secret").read_text() == SECRET
        assert MARK not in socket.gethostname()


@everywhere(dict(ESCAPES))
def test_no_program_escapes(sandbox: Sandbox, host: Callable[[str], str], name: str) -> None:
    result = sandbox.run_script([host(ESCAPES[name])], SECRET[:3].encode())
    assert result.ending is Ending.EXITED, result
    assert result.stdout == b"held\n", result
    assert SECRET.encode() not in result.stdout + result.stderr


@everywhere(dict(BOMBS), selected_in=tuple(VARIANTS))
def test_limits_hold_against_hostile_programs(sandbox: Sandbox, name: str) -> None:
    began = time.monotonic()
    result = sandbox.run_script([dedent(BOMBS[name])], b"", TIGHT)
    assert time.monotonic() - began < 10
    harmless = {"a daemon", "killing its init"}  # the one dies with its run, the other has no effect
    assert name in harmless or (result.ending, result.exit_code) != (Ending.EXITED, 0), result
    assert len(result.stdout) <= TIGHT.file_mb << 20
    assert len(result.stderr) <= TIGHT.file_mb << 20


@everywhere(dict(FORGERIES), selected_in=tuple(VARIANTS))
def test_no_reward_for_a_forgery(sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_sandbox", lambda: sandbox)
    task = Task("t", "", [], extra={"test": CHECK, "entry_point": "square"})
    judged = STRICT(task, dedent(FORGERIES[name]))
    assert judged.reward == 0.0
    assert judged.detail


@everywhere(dict(CHEATS), selected_in=tuple(VARIANTS))
def test_tests_share_nothing_with_the_program(sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_sandbox", lambda: sandbox)
    check, program = CHEATS[name]
    task = Task("t", "", [], extra={"test": f"def check(candidate):\n{check}\n", "entry_point": "square"})
    assert STRICT(task, program).reward == 0.0
