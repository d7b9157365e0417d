"""The last steps before a program runs: empty folders, limits, no privileges, few system calls."""

import os
import resource
import signal
from typing import NamedTuple

from freerun.sandbox.inside import seccomp, syscalls

INPUT = "/dev/stdio"
MAX_OPEN_FILES = 64
MAX_RESERVED_BYTES = 64 << 30
"""The address space of a program with `reserves_memory`."""
OWN_PROCESSES = 6
"""Our own processes, counted with the program's: forkserver, bubblewrap's two, init, test runner, and one to spare."""
KEPT_CAPABILITIES = {
    *(syscalls.CAP_SYS_ADMIN, syscalls.CAP_SETUID, syscalls.CAP_SETGID, syscalls.CAP_SETPCAP, syscalls.CAP_KILL)
}
"""What a forkserver needs to create namespaces, to lock its children down and to kill them."""


class KernelLimits(NamedTuple):
    """The limits that the kernel itself enforces, some for each process and some for all of a run's."""

    cpu_s: int
    memory_bytes: int
    reserves_memory: bool
    """Its address space is far larger than what it uses (V8, the JVM), so only the memory it writes to is limited."""
    processes: int
    file_bytes: int


def mount_empty_folders(file_bytes: int) -> None:
    """Mount new writable folders in this mount namespace. They disappear with the last process in it."""
    syscalls.mount("none", "/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for folder in ("/tmp", "/dev/shm"):
        syscalls.mount("tmpfs", folder, flags, f"size={file_bytes},nr_inodes=4096,mode=1777")


def provide_stdin(descriptor: int, *, nested: bool) -> None:
    """Copy a script's input to the file that `/dev/stdin` links to; there is no `/proc` for it to link to."""
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


def lock_down(limits: KernelLimits, run_as: int | None) -> None:
    """Lock down this process and its descendants for good. `run_as` is the user id to switch to if we are root."""
    os.chdir("/tmp")
    os.umask(0o022)
    _set_limits(limits)
    try:
        syscalls.keep_in_bounding_set(set())
    except PermissionError:
        if run_as is not None:
            raise  # otherwise bubblewrap left us no capabilities, and set_capabilities below has nothing to drop
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    if run_as is not None:
        os.setgroups([])
        os.setresgid(run_as, run_as, run_as)
        os.setresuid(run_as, run_as, run_as)
    syscalls.set_capabilities(0)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install()


def _set_limits(limits: KernelLimits) -> None:
    resources = {
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_AS: MAX_RESERVED_BYTES if limits.reserves_memory else limits.memory_bytes,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_NPROC: limits.processes + OWN_PROCESSES,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 1,  # with 0, a machine that pipes core dumps to a program would still do so
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    for kind, limit in resources.items():
        _, hard = resource.getrlimit(kind)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


def reset_signals() -> None:
    """Handle signals as a new process does: our parents may have ignored or blocked some."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
