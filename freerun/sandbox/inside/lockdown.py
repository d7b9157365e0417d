"""The last steps before a program runs: its own empty folder, its limits, no privileges, few system calls."""

import os
import resource
import signal
from typing import NamedTuple

from freerun.sandbox.inside import seccomp, syscalls

INPUT = "/dev/stdio"
OPEN_FILES = 64
RESERVED_BYTES = 64 << 30
"""What a program may reserve that reserves more than it uses."""
OWN_PROCESSES = 6
"""Of ours, counted with the program's: the forkserver, bubblewrap's two, init and examiner, and one to spare."""
KEPT_CAPABILITIES = {
    *(syscalls.CAP_SYS_ADMIN, syscalls.CAP_SETUID, syscalls.CAP_SETGID, syscalls.CAP_SETPCAP, syscalls.CAP_KILL)
}
"""What a forkserver needs to make namespaces, to lock its children down and to kill them."""


class Rules(NamedTuple):
    """What the kernel itself enforces, of one process or of all."""

    cpu_s: int
    memory_bytes: int
    reserves_memory: bool
    """Its address space is far larger than what it uses (V8, the JVM): only what it may write to is limited."""
    processes: int
    file_bytes: int


def empty_folders(file_bytes: int) -> None:
    """In a mount namespace of our own: what is written to is new, and gone with the last process in it."""
    syscalls.mount("none", "/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for folder in ("/tmp", "/dev/shm"):
        syscalls.mount("tmpfs", folder, flags, f"size={file_bytes},nr_inodes=4096,mode=1777")


def name_input(descriptor: int, *, nested: bool) -> None:
    """Put what a script reads where `/dev/stdin` leads to: there is no `/proc` that it could lead to instead."""
    size = os.fstat(descriptor).st_size
    if nested:
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("tmpfs", INPUT, flags, f"size={size + (1 << 16)},nr_inodes=8,mode=755")
    file = os.open(f"{INPUT}/in", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    sent = 0
    while sent < size:
        sent += os.sendfile(file, descriptor, sent, size - sent)
    os.close(file)
    file = os.open(f"{INPUT}/in", os.O_RDONLY)
    os.dup2(file, descriptor)
    os.close(file)


def lock_down(rules: Rules, run_as: int | None) -> None:
    """This process and its descendants, for good. `run_as` is a user id where we are root, and to be so no longer."""
    os.chdir("/tmp")
    os.umask(0o022)
    _limit(rules)
    try:
        syscalls.keep_in_bounding_set(set())
    except PermissionError:
        if run_as is not None:
            raise  # else bubblewrap left us no capabilities at all, and set_capabilities below has nothing to take
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    if run_as is not None:
        os.setgroups([])
        os.setresgid(run_as, run_as, run_as)
        os.setresuid(run_as, run_as, run_as)
    syscalls.set_capabilities(0)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install()


def _limit(rules: Rules) -> None:
    limits = {
        resource.RLIMIT_CPU: rules.cpu_s,
        resource.RLIMIT_AS: RESERVED_BYTES if rules.reserves_memory else rules.memory_bytes,
        resource.RLIMIT_DATA: rules.memory_bytes,
        resource.RLIMIT_NPROC: rules.processes + OWN_PROCESSES,
        resource.RLIMIT_FSIZE: rules.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 1,  # with 0, a machine that pipes dumps to a program would still do so
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


def default_signals() -> None:
    """As a fresh process has them: our parents may have ignored or blocked some."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
