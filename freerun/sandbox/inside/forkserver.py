"""A warm interpreter in a container, of which every run gets a fresh copy: `serve(control, run_as)`.

Consumes orders on its control socket, each with the open files of one run, and produces a report for each. Waits for
the run's init process; unblocked by its end, by a word from outside to kill it, or by the end of the control socket,
which ends the forkserver and with it all of its container.

    forkserver ── init (process 1 of new pid and mount namespaces) ─┬─ program
                                                                └─ examiner (where there are tests)

It never reads what it is given to run, so the copy that runs a program holds nothing of the programs before it. Where
it may not make namespaces (bubblewrap without capabilities) it says so: its container is then good for one run only.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from freerun.sandbox.inside import examiner, program, syscalls
from freerun.sandbox.inside.lockdown import Rules, default_signals, empty_folders, lock_down, name_input

KILL = b"kill"
MOST_FILES = 5
LAST_WORDS_S = 0.2
"""How long a program that hung up on its tests is given to end, to learn how it did."""
WARM = (
    *("abc", "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "io", "itertools", "math", "operator", "queue", "random", "re", "statistics"),
    *("string", "struct", "textwrap", "time", "types", "typing", "unicodedata"),
)
"""What programs import most, imported once."""


def serve(control: socket.socket, run_as: int | None) -> None:
    default_signals()
    if nested := _may_make_namespaces():
        for name in WARM:
            with suppress(ImportError):  # an interpreter may be built without some
                importlib.import_module(name)
        gc.collect()
        gc.freeze()
    control.send(json.dumps({"nested": nested}).encode())
    os.dup2(0, 2)  # until here, for what went wrong
    while True:
        text, files, _, _ = socket.recv_fds(control, 1 << 16, MOST_FILES)
        if not text:
            return
        if text != KILL:  # else it came too late
            order = json.loads(text)
            report = _run(order, files, control, run_as, nested)
            control.send(json.dumps({**json.loads(report), "run": order["run"]}).encode())


def _may_make_namespaces() -> bool:
    try:
        child = _clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    except PermissionError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def _clone(flags: int) -> int:
    """A fork into new namespaces. In the child, 0, where only what `_init` does is safe: Python was not told."""
    return syscalls.syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def _run(order: dict[str, Any], files: list[int], control: socket.socket, run_as: int | None, nested: bool) -> bytes:
    """The report that init left, or an empty one if it was killed."""
    read, write = os.pipe()
    os.set_blocking(read, False)  # without a pid namespace a process may be left that holds the other end
    init = _clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS if nested else 0)
    if init == 0:
        try:
            control.close()
            os.close(read)
            _init(order, files, write, run_as, nested)
        except BaseException as error:  # of a machine that allows less than it seemed to
            os.write(write, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        finally:
            os._exit(1)
    for number in (*files, write):
        os.close(number)
    _wait(init, control)
    try:
        return os.read(read, select.PIPE_BUF) or b"{}"
    except BlockingIOError:
        return b"{}"
    finally:
        os.close(read)


def _wait(init: int, control: socket.socket) -> None:
    ended = os.pidfd_open(init)
    watched = select.poll()
    watched.register(ended, select.POLLIN)
    watched.register(control, select.POLLIN)
    while ended not in [number for number, _ in watched.poll()]:
        word = control.recv(16)
        os.kill(init, signal.SIGKILL)
        if word != KILL:
            os._exit(0)  # nobody is outside any more
        watched.unregister(control)
    os.waitpid(init, 0)
    os.close(ended)


def _init(order: dict[str, Any], files: list[int], report: int, run_as: int | None, nested: bool) -> None:
    """Process 1 of a run: when it ends, the kernel ends all that is left of the run, and unmounts its folders."""
    rules = Rules(**order["rules"])
    os.setsid()
    if nested:
        empty_folders(rules.file_bytes)
    if not order["tests"]:
        name_input(files[2], nested=nested)
    lock_down(rules, run_as)
    status = _run_tests(files) if order["tests"] else _run_script(files)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.write(report, json.dumps({**status, "cpu_s": used.ru_utime + used.ru_stime}).encode())
    os._exit(0)


def _run_script(files: list[int]) -> dict[str, Any]:
    job, report, *streams = files

    def script() -> NoReturn:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        program.run_script(program.read_job(job), lambda line: _write_line(report, line))

    child = _fork(script)
    return {"program": _reap(child)[child]}


def _run_tests(files: list[int]) -> dict[str, Any]:
    job, report, tests = files
    here, there = socket.socketpair()

    def served() -> NoReturn:
        work = program.read_job(job)
        here.detach()
        os.dup2(there.detach(), 3)
        os.closerange(4, 1 << 16)
        program.serve(work, socket.socket(fileno=3))

    def examined() -> NoReturn:
        there.close()
        examiner.examine(program.read_job(tests), here, lambda line: _write_line(report, line))

    tester = _fork(examined)  # first: the program may use up what processes there are
    child = _fork(served)
    here.close()
    there.close()
    statuses = _reap(tester)
    if os.waitstatus_to_exitcode(statuses[tester]) == examiner.PROGRAM_ENDED and child not in statuses:
        statuses.update(_reap_soon(child))
    return {"program": statuses.get(child)}


def _fork(work: Callable[[], NoReturn]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # ours, or the program's that got this far: either way the end of the process
            with suppress(BaseException):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    return child


def _reap(child: int) -> dict[int, int]:
    """Wait for a child. The statuses of all that ended by then: orphans in the namespace are ours too."""
    statuses: dict[int, int] = {}
    while child not in statuses:
        ended, status = os.wait()
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            statuses[ended] = status
    return statuses


def _reap_soon(child: int) -> dict[int, int]:
    waiting = select.poll()
    waiting.register(os.pidfd_open(child), select.POLLIN)
    return _reap(child) if waiting.poll(LAST_WORDS_S * 1000) else {}


def _write_line(descriptor: int, line: dict[str, Any]) -> None:
    os.write(descriptor, (json.dumps(line) + "\n").encode())


def main() -> None:
    """`control`, the user id to run programs as ("-" to stay who we are) and where packages are."""
    number, run_as, packages = sys.argv[1:]
    sys.path.append(packages)
    control = socket.socket(fileno=int(number))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 1 << 16)
    serve(control, None if run_as == "-" else int(run_as))
