"""A program that knows nothing of us ends with us, and so does all that it starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.contract import is_alive

PROGRAM = """
import mmap, os, signal, subprocess, sys
name, role = sys.argv[1:]
with open(f"/dev/shm/{name}-{role}", "w+b") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
if role == "program":
    subprocess.Popen([sys.executable, *sys.orig_argv[1:3], name, "child"], start_new_session=True)
signal.pause()
"""
"""Starts a child in a session of its own; neither ends when told to, and both leave a file in shared memory."""
PARENT = """
import subprocess, sys
keeper = [sys.executable, "-m", "freerun.machine.keeper", sys.executable, "-c", *sys.argv[1:]]
kept = subprocess.Popen(keeper, stdin=subprocess.PIPE, start_new_session=True)
kept.wait()
"""


@pytest.mark.parametrize("killed", ["parent", "program"])
def test_all_that_a_program_starts_ends(killed: str) -> None:
    """When the parent is killed with -9, and when the program is."""
    name = f"keeper-test-{os.getpid()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, PROGRAM, name, "program"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    program, child = int(parent.stdout.readline()), int(parent.stdout.readline())
    os.kill(parent.pid if killed == "parent" else program, signal.SIGKILL)
    assert parent.stdout.read() == b"", "closed by the last of those who have it"
    parent.wait()
    parent.stdout.close()
    assert not is_alive(program)
    assert not is_alive(child)
    left = {file.name for file in Path("/dev/shm").glob(f"{name}*")}
    (Path("/dev/shm") / f"{name}-program").unlink(missing_ok=True)
    assert left <= ({f"{name}-program"} if killed == "program" else set()), "what was killed by others may leave some"


def test_it_ends_as_the_program_did() -> None:
    for code, program in ((3, "raise SystemExit(3)"), (128 + 9, "import os; os.kill(os.getpid(), 9)")):
        keeper = [sys.executable, "-m", "freerun.machine.keeper", sys.executable, "-c", program]
        with subprocess.Popen(keeper, stdin=subprocess.PIPE) as kept:
            assert kept.wait() == code
