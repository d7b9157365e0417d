"""`python -m freerun.machine.keeper PROGRAM ARGUMENTS`: a program of somebody else's, with all that it starts, for as
long as our parent lives.

Such a program knows nothing of `parent.py`, and may start processes of its own that outlive it. So this process stands
between: its standard input is the lifeline to our parent, it adopts what the program's processes leave behind, and when
the lifeline closes or the program ends, it kills all that is below it, and removes what that leaves behind: temporary
files, and files in shared memory. It ends as the program did.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

from freerun.machine.descendants import descendants
from freerun.machine.parent import adopt_orphans, kill_with_parent
from freerun.machine.shared_files import SharedFiles

SIGNALLED = 128
"""A program that was killed by a signal is reported as this and the signal's number, as a shell does."""
_ROUNDS = 1_000
"""What is killed may have started another process in the last moment, so we look again after each that is gone. A
program that wins this race so often is left to the kernel."""
_LOOK_S = 10.0
"""How often we look which files in shared memory the program has: of processes that have ended it cannot be seen."""


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
        while not (ready := select.select([0, ended], [], [], _LOOK_S)[0]):
            shared.note(descendants(os.getpid()))
        shared.note(descendants(os.getpid()))
        code = program.wait() if ended in ready else 0
        _kill_all()
        shared.remove()
    return code if code >= 0 else SIGNALLED - code


def _kill_all() -> None:
    for _ in range(_ROUNDS):
        below = list(descendants(os.getpid()))
        if not below:
            return
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
