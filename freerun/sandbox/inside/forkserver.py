"""A warm interpreter in a container, from which every run is forked: `serve(control, run_as)`.

Consumes orders on its control socket, each with the open files of one run, and produces a report for each. Waits for
the run's init process; unblocked by its end, by an order from outside to kill it, or by the end of the control socket,
which ends the forkserver and its whole container.

    forkserver ── init (process 1 of new pid and mount namespaces) ─┬─ program
                                                                    └─ test runner (if there are tests)

It never reads the files that it passes on, so a run's fork contains nothing from the programs before it. Where it may
not create namespaces (bubblewrap without capabilities) it says so, and its container serves a single run.
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

from freerun.sandbox.inside import script, solution, syscalls, testrunner
from freerun.sandbox.inside.lockdown import (
    KernelLimits,
    lock_down,
    mount_empty_folders,
    provide_stdin,
    reset_signals,
)
from freerun.sandbox.inside.source import read_json

KILL = b"kill"
MAX_FILES = 5
EXIT_GRACE_S = 0.2
"""How long to wait for a program that closed the connection to its tests, to learn how it ended."""
PRELOADED = (
    *("abc", "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "io", "itertools", "math", "operator", "queue", "random", "re", "statistics"),
    *("string", "struct", "textwrap", "time", "types", "typing", "unicodedata"),
)
"""The modules that programs import most, imported once, before the fork."""


def serve(control: socket.socket, run_as: int | None) -> None:
    reset_signals()
    if nested := _may_create_namespaces():
        for name in PRELOADED:
            with suppress(ImportError):  # an interpreter may be built without some of them
                importlib.import_module(name)
        gc.collect()
        gc.freeze()
    control.send(json.dumps({"nested": nested}).encode())
    os.dup2(0, 2)  # standard error was only for failures to start
    while True:
        text, files, _, _ = socket.recv_fds(control, 1 << 16, MAX_FILES)
        if not text:
            return
        if text != KILL:  # a KILL received here came too late: its run has ended
            order = json.loads(text)
            report = _run(order, files, control, run_as, nested)
            control.send(json.dumps({**json.loads(report), "run": order["run"]}).encode())


def _may_create_namespaces() -> bool:
    try:
        child = _clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    except PermissionError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def _clone(flags: int) -> int:
    """Fork into new namespaces; returns 0 in the child. Python's own fork hooks do not run, so the child must do only
    what `_init` does."""
    return syscalls.syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def _run(order: dict[str, Any], files: list[int], control: socket.socket, run_as: int | None, nested: bool) -> bytes:
    """Run one program and return the report that its init process wrote, or an empty one if it was killed."""
    read, write = os.pipe()
    os.set_blocking(read, False)  # without a pid namespace, a leftover process may hold the other end open
    init = _clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS if nested else 0)
    if init == 0:
        try:
            control.close()
            os.close(read)
            _init(order, files, write, run_as, nested)
        except BaseException as error:  # the machine allows less than it seemed to
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
    """Wait for init to end, killing it if so ordered. End the forkserver if the control socket closes meanwhile."""
    pidfd = os.pidfd_open(init)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(control, select.POLLIN)
    while pidfd not in [number for number, _ in poll.poll()]:
        order = control.recv(16)
        os.kill(init, signal.SIGKILL)
        if order != KILL:
            os._exit(0)  # the process outside has ended
        poll.unregister(control)
    os.waitpid(init, 0)
    os.close(pidfd)


def _init(order: dict[str, Any], files: list[int], report: int, run_as: int | None, nested: bool) -> None:
    """Process 1 of a run: when it ends, the kernel ends the rest of the run and unmounts its folders."""
    limits = KernelLimits(**order["limits"])
    os.setsid()
    if nested:
        mount_empty_folders(limits.file_bytes)
    if not order["tests"]:
        provide_stdin(files[2], nested=nested)
    lock_down(limits, run_as)
    status = _run_tests(files) if order["tests"] else _run_script(files)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.write(report, json.dumps({**status, "cpu_s": used.ru_utime + used.ru_stime}).encode())
    os._exit(0)


def _run_script(files: list[int]) -> dict[str, Any]:
    program, report, *streams = files

    def run() -> NoReturn:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        script.run_script(read_json(program), lambda line: _write_line(report, line))

    child = _fork(run)
    return {"program": _wait_for(child)[child]}


def _run_tests(files: list[int]) -> dict[str, Any]:
    program, report, tests = files
    runner_socket, program_socket = socket.socketpair()

    def serve_program() -> NoReturn:
        spec = read_json(program)
        runner_socket.detach()
        os.dup2(program_socket.detach(), 3)
        os.closerange(4, 1 << 16)
        solution.serve(spec, socket.socket(fileno=3))

    def run_tests() -> NoReturn:
        program_socket.close()
        testrunner.run_tests(read_json(tests), runner_socket, lambda line: _write_line(report, line))

    runner = _fork(run_tests)  # first: the program may use up all the processes that a run may have
    child = _fork(serve_program)
    runner_socket.close()
    program_socket.close()
    statuses = _wait_for(runner)
    if os.waitstatus_to_exitcode(statuses[runner]) == testrunner.PROGRAM_ENDED and child not in statuses:
        statuses.update(_wait_briefly_for(child))
    return {"program": statuses.get(child)}


def _fork(work: Callable[[], NoReturn]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # our own error, or one that the program let escape
            with suppress(BaseException):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    return child


def _wait_for(child: int) -> dict[int, int]:
    """Wait for a child and return the statuses of all processes that ended by then; init also reaps orphans."""
    statuses: dict[int, int] = {}
    while child not in statuses:
        ended, status = os.wait()
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            statuses[ended] = status
    return statuses


def _wait_briefly_for(child: int) -> dict[int, int]:
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    return _wait_for(child) if poll.poll(EXIT_GRACE_S * 1000) else {}


def _write_line(descriptor: int, line: dict[str, Any]) -> None:
    os.write(descriptor, (json.dumps(line) + "\n").encode())


def main() -> None:
    """Arguments: the control socket's descriptor, the user id to run programs as ("-" for our own), and the packages'
    folder."""
    number, run_as, packages = sys.argv[1:]
    sys.path.append(packages)
    control = socket.socket(fileno=int(number))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 1 << 16)
    serve(control, None if run_as == "-" else int(run_as))
