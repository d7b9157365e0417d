"""A program whose children are forked: `python -m tests.machine.forked_program WHAT`. With THREADED in its environment
it must not be forked from: at once, or from when it gets SIGUSR1 on."""

import json
import os
import signal
import sys
import threading
import time

from freerun.machine.parent import announce_ready, end_with_parent
from freerun.machine.preloaded import PRELOADED, fork_children

BORN_S = time.monotonic()


def start_a_thread(*_: object) -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def what_it_finds() -> str:
    whose = [os.getsid(0) == os.getpid(), os.getcwd(), sys.path]
    return json.dumps([BORN_S, os.getppid(), dict(os.environ), *whose])


if __name__ == "__main__":
    if (arguments := sys.argv[1:])[0] == PRELOADED:
        if os.environ.get("THREADED") == "at once":
            start_a_thread()
        signal.signal(signal.SIGUSR1, start_a_thread)
        arguments = fork_children(int(arguments[1]), ["colorsys"])
    end_with_parent()
    print(f"begins {arguments}", flush=True)
    announce_ready(what_it_finds())
    if arguments[0] == "ends":
        sys.exit(int(arguments[1]))
    while True:
        time.sleep(60)
