"""Machines made of real network namespaces: reachable, apart, cut and mended, and gone with whoever made them."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from freerun.bench import namespaces
from freerun.bench.namespaces import MachineNamespace, machines, unavailable
from freerun.core import FreerunError

if why := unavailable():
    pytest.skip(why, allow_module_level=True)

ECHO = """
import socket
listening = socket.create_server(("", 7000))
print("listening", flush=True)
connection, _ = listening.accept()
while said := connection.recv(100):
    connection.sendall(said)
"""
ASK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
for line in sys.stdin:
    what, patience_s = line.split()
    if what != "wait":
        connection.sendall(what.encode())
    connection.settimeout(float(patience_s))
    try:
        print(connection.recv(100).decode(), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
"""
TAKE = """
import socket, time
listening = socket.create_server(("", 7000))
print("listening", flush=True)
connection, _ = listening.accept()
began_s = time.monotonic()
while connection.recv(100_000):
    pass
print(time.monotonic() - began_s, flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as connection:
    connection.sendall(bytes(1_000_000))
"""
MAKER = """
import subprocess, time
from freerun.bench.namespaces import machines
with machines("one") as (one,):
    sleeps = subprocess.Popen(one.command("sleep", "1000"))
    while one.processes() != [sleeps.pid] or not open(f"/proc/{sleeps.pid}/cmdline").read().startswith("sleep"):
        time.sleep(0.01)
    print(one.pid, sleeps.pid, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def pair(private: Path) -> Iterator[list[MachineNamespace]]:
    with machines("one", "two", private=[private]) as made:
        yield made


@contextmanager
def python(machine: MachineNamespace, script: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = machine.command(sys.executable, "-c", script, *arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return heard(process)


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def on(machine: MachineNamespace, *argv: str) -> str:
    return subprocess.run(machine.command(*argv), capture_output=True, text=True, check=True).stdout.strip()


def gone(processes: Sequence[int], within_s: float = 10.0) -> bool:
    """Whether all end in that time."""
    for process in processes:
        try:
            watched = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        with os.fdopen(watched):
            if not select.select([watched], [], [], within_s)[0]:
                return False
    return True


def test_a_cut_cable_loses_what_is_sent_and_a_mended_one_brings_it(pair: list[MachineNamespace]) -> None:
    one, two = pair
    with python(one, ECHO) as echo:
        assert heard(echo) == "listening"
        with python(two, ASK, one.address) as asks:
            assert say(asks, "first 5") == "first"
            one.cut()
            assert say(asks, "second 0.3") == "nothing"
            one.mend()
            assert say(asks, "wait 10") == "second", "no connection was reset"
            assert say(asks, "third 5") == "third"


def test_machines_have_names_addresses_and_folders_of_their_own(pair: list[MachineNamespace], private: Path) -> None:
    one, two = pair
    assert [on(machine, "hostname") for machine in pair] == ["one", "two"]
    assert [machine.address for machine in pair] == ["10.77.0.2", "10.77.0.3"]
    for folder in (Path("/dev/shm"), private):
        on(one, "touch", str(folder / "of-one"))
        assert on(one, "ls", str(folder)) == "of-one"
        assert on(two, "ls", str(folder)) == ""
        assert not (folder / "of-one").exists()
    assert on(one, "pwd") == str(Path.cwd())
    assert on(one, "cat", __file__) == Path(__file__).read_text().strip(), "all other files are everybody's"


def test_a_signal_reaches_the_process_itself(pair: list[MachineNamespace]) -> None:
    script = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint(1, flush=True)\ninput()"
    with python(pair[0], script) as process:
        assert heard(process) == "1"
        assert pair[0].processes() == [process.pid]
        process.terminate()
        assert process.wait(10) == 7
        assert pair[0].processes() == []


def test_two_sets_of_machines_have_nothing_to_do_with_each_other(pair: list[MachineNamespace]) -> None:
    with python(pair[0], ECHO) as echo, ExitStack() as stack:
        with machines("one") as (other,):
            assert other.address == pair[0].address
            same_port = stack.enter_context(python(other, ECHO))
            assert heard(echo) == heard(same_port) == "listening"
            assert other.processes() == [same_port.pid]
        assert same_port.wait(10) == -signal.SIGKILL, "it ended with its machine"
        assert gone([other.pid])
        with pytest.raises(FreerunError, match=r"^`ip -batch -` failed in a network namespace: "):
            other.cut()


def test_nothing_is_left_of_a_maker_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True) as maker:
        try:
            made = [int(process) for process in heard(maker).split()]
        finally:
            maker.kill()
    assert len(made) == 2
    assert gone(made)


def test_a_cable_carries_no_more_than_its_limit(pair: list[MachineNamespace]) -> None:
    one, two = pair
    two.limit(20)
    with python(one, TAKE) as takes:
        assert heard(takes) == "listening"
        with python(two, SEND, one.address):
            assert float(heard(takes)) > 0.25, "a MB takes 0.4 s, less what may come at once"


def test_where_machines_cannot_be_made_one_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    namespaces.unavailable.cache_clear()
    try:
        with pytest.raises(FreerunError, match=r"^no machines can be made .*: this needs root"), machines("one"):
            pass
    finally:
        namespaces.unavailable.cache_clear()
