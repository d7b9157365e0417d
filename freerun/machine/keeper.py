"""`python -m freerun.machine.keeper PROGRAM ARGUMENTS`: a program of somebody else's, with all that it starts, for as
long as our parent lives.

Such a program knows nothing of `parent.py`, and may start processes of its own that outlive it. So this process stands
between: its standard input is the lifeline to our parent, it adopts what the program's processes leave behind, and when
the lifeline closes or the program ends, it kills all that is below it. It ends as the program did.

What its processes have in shared memory goes with them. Python's resource trackers are killed last, since each removes
what its program has left there; files that nobody tracks are those that a process had mapped when it was killed.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from freerun.machine.descendants import descendants
from freerun.machine.parent import adopt_orphans, kill_with_parent

SIGNALLED = 128
"""A program that was killed by a signal is reported as this and the signal's number, as a shell does."""
_TRACKERS_S, _END_S = 2.0, 4.0
"""How long resource trackers have, and how long the kernel has to end what was killed."""
_LOOK_S = 0.02
_SHARED = re.compile(r" (/dev/shm/[^/\n]+)$", re.MULTILINE)
"""A file of shared memory in the list of what a process has mapped; folders there are somebody's own."""


def main(argv: list[str]) -> int:
    """The exit code to end with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is our parent's to act on
    adopt_orphans()
    program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=kill_with_parent)
    ended = os.pidfd_open(program.pid)
    signal.signal(signal.SIGTERM, lambda *_: program.kill())
    ready, _, _ = select.select([0, ended], [], [])
    code = program.wait() if ended in ready else 0
    _kill_all()
    return code if code >= 0 else SIGNALLED - code


def _kill_all() -> None:
    """Again and again, since what is killed may have started another process in the last moment."""
    start_s, shared = time.monotonic(), set[str]()
    while (below := list(descendants(os.getpid()))) and (spent_s := time.monotonic() - start_s) < _END_S:
        for pid in below:
            shared |= _shared_memory(pid)
            if spent_s > _TRACKERS_S or not _is_tracker(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LOOK_S)
    for file in shared:
        Path(file).unlink(missing_ok=True)


def _shared_memory(pid: int) -> set[str]:
    try:
        return set(_SHARED.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    except OSError:
        return set()


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
