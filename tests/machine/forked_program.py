"""A program whose children are forked: `python -m tests.machine.forked_program WHAT`. With THREADED in its environment
it must not be forked from."""

import json
import os
import sys
import threading
import time

from freerun.machine.parent import announce_ready, end_with_parent
from freerun.machine.preloaded import PRELOADED, fork_children

BORN_S = time.monotonic()


def what_it_finds() -> str:
    whose = [os.getsid(0) == os.getpid(), os.getcwd(), sys.path]
    return json.dumps([BORN_S, os.getppid(), dict(os.environ), *whose])


if __name__ == "__main__":
    if (arguments := sys.argv[1:])[0] == PRELOADED:
        if "THREADED" in os.environ:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        arguments = fork_children(int(arguments[1]), ["colorsys"])
    end_with_parent()
    print(f"begins {arguments}", flush=True)
    announce_ready(what_it_finds())
    if arguments[0] == "ends":
        sys.exit(int(arguments[1]))
    while True:
        time.sleep(60)
