"""`python -m freerun.machine.keeper PROGRAM ARGUMENTS`: a program of somebody else's, with all that it starts, for as
long as our parent lives.

Such a program knows nothing of `parent.py`, and may start processes of its own that outlive it. So this process stands
between: its standard input is the lifeline to our parent, it adopts what the program's processes leave behind, and when
the lifeline closes or the program ends, it kills all that is below it. It ends as the program did.

Python's resource trackers are killed last: each removes what its program has left in shared memory, once that is gone.
What no tracker knows of, and the program's temporary files, we remove.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from freerun.machine.descendants import descendants
from freerun.machine.parent import adopt_orphans, kill_with_parent
from freerun.machine.shared_files import SharedFiles

SIGNALLED = 128
"""A program that was killed by a signal is reported as this and the signal's number, as a shell does."""
_TRACKERS_S, _END_S = 2.0, 4.0
"""How long resource trackers have, and how long the kernel has to end what was killed."""
_LOOK_S = 0.02
_NOTE_S = 10.0
"""How often we note which files in shared memory the program has: once it has ended, nobody can tell."""


def main(argv: list[str]) -> int:
    """The exit code to end with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is our parent's to act on
    adopt_orphans()
    shared = SharedFiles()
    with tempfile.TemporaryDirectory(prefix="freerun-", ignore_cleanup_errors=True) as temporary:
        environment = os.environ | {"TMPDIR": temporary}
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment, preexec_fn=kill_with_parent)
        ended = os.pidfd_open(program.pid)
        signal.signal(signal.SIGTERM, lambda *_: program.kill())
        while not (ready := select.select([0, ended], [], [], _NOTE_S)[0]):
            shared.note(descendants(os.getpid()))
        shared.note(descendants(os.getpid()))
        code = program.wait() if ended in ready else 0
        _kill_all()
        shared.remove()
    return code if code >= 0 else SIGNALLED - code


def _kill_all() -> None:
    """Again and again, since what is killed may have started another process in the last moment."""
    start_s = time.monotonic()
    while (below := list(descendants(os.getpid()))) and (spent_s := time.monotonic() - start_s) < _END_S:
        for pid in below:
            if spent_s > _TRACKERS_S or not _is_tracker(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LOOK_S)


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
