"""The first program that runs in a new container: it tries to escape and prints everything that it could do.

Standard input: the number of processes it may start, then a line with the names that the root folder may contain.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

ATTACH = 16
CALLS: dict[str, tuple[dict[str, int], tuple[int, ...]]] = {
    "unshare": ({"x86_64": 272, "aarch64": 97}, (0,)),
    "ptrace": ({"x86_64": 101, "aarch64": 117}, (ATTACH, 1, 0, 0)),
    "mount": ({"x86_64": 165, "aarch64": 40}, (0, 0, 0, 0, 0)),
}
"""The numbers are repeated here instead of taken from `syscalls.py`: a check must not rely on what it checks."""
PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39


def open_escapes(max_processes: int, shown: set[str]) -> Iterator[str]:
    yield from _network()
    yield from _files(shown)
    yield from _kernel()
    yield from _processes(max_processes)
    try:
        bytearray(8 << 30)
        yield "8 GB of memory"
    except MemoryError:
        pass
    try:
        import wave  # noqa: F401
    except ImportError as error:
        yield f"too restrictive: {error}"


def _network() -> Iterator[str]:
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        try:
            socket.socket(family, socket.SOCK_DGRAM).close()
            yield f"a socket of family {int(family)}"
        except OSError:
            pass


def _files(shown: set[str]) -> Iterator[str]:
    for path in ("/etc/passwd", "/proc/self", "/sys/kernel", "/dev/sda", "/dev/tty"):
        if os.path.exists(path):
            yield f"{path} is there"
    for name in set(os.listdir("/")) - shown:
        yield f"/{name} is there"
    for folder in ("/", "/usr", "/dev", "/freerun/inside", os.path.dirname(os.__file__)):
        try:
            with open(f"{folder}/freerun-escape-check", "w"):
                yield f"{folder} can be written to"
        except OSError:
            pass


def _kernel() -> Iterator[str]:
    libc = ctypes.CDLL(None)
    for name, (numbers, arguments) in CALLS.items():
        if libc.syscall(ctypes.c_long(numbers[os.uname().machine]), *map(ctypes.c_long, arguments)) != -1:
            yield f"the system call {name}"
    if libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 2:
        yield "system calls are not filtered"
    if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        yield "programs that gain privileges"
    own = ctypes.create_string_buffer(24)
    libc.capget(ctypes.create_string_buffer(b"\x22\x05\x08\x20" + bytes(4)), own)
    if any(own.raw):
        yield "capabilities"


def _processes(limit: int) -> Iterator[str]:
    started = []
    for _ in range(limit + 20):
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            while True:
                signal.pause()
        started.append(child)
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if len(started) > limit + 10:
        yield f"{len(started)} processes"
    if len(started) < 2:
        yield "too restrictive: programs cannot start processes (Linux 5.14 or newer is needed)"
    try:
        threading.Thread(target=bool).start()
    except RuntimeError:
        yield "too restrictive: programs cannot start threads"


if __name__ == "__main__":
    print("\n".join(open_escapes(int(sys.stdin.readline()), set(sys.stdin.readline().split()))))
