"""The filter of system calls for programs in the sandbox.

It forbids access to other processes' memory, mounts and namespaces, sockets other than AF_UNIX, keys, BPF, io_uring,
tracing, setting clocks, kernel modules, and memory that belongs to no process. Calls newer than `LAST_KNOWN` fail as if
the kernel did not have them.
"""

import ctypes
import errno
import platform
import struct

from freerun.sandbox.inside import syscalls

FORBIDDEN = (
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise", "process_mrelease"),
    *("perf_event_open", "migrate_pages", "move_pages"),
    # namespaces, mounts, access to files other than by their paths
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark"),
    *("quotactl", "quotactl_fd", "sysfs", "ustat", "lookup_dcookie", "nfsservctl"),
    # the kernel and the machine
    *("bpf", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module"),
    *("query_module", "get_kernel_syms", "reboot", "syslog", "swapon", "swapoff", "acct", "vhangup", "iopl", "ioperm"),
    *("modify_ldt", "uselib", "_sysctl", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
    *("sethostname", "setdomainname", "seccomp"),
    # what outlives a process, or uses memory that no limit counts
    *("add_key", "request_key", "keyctl", "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl"),
    *("semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive"),
    *("mq_notify", "mq_getsetattr", "memfd_create", "memfd_secret", "inotify_init", "inotify_init1"),
    # what the machine has a fixed amount of, or what stalls the whole machine
    *("io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents", "sync", "syncfs"),
    # known for kernel bugs, and not needed by programs here
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "vmsplice", "mbind", "set_mempolicy"),
    *("set_mempolicy_home_node",),
)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_AF_UNIX, _SO_SNDBUF = 1, 7
_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_ASK_PERSONALITY = 0xFFFFFFFF
_MAP_HUGETLB = 0x40000

# Instructions of classic BPF, and what a filter may return.
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's struct seccomp_data


def install() -> None:
    """Install the filter for this process and all its descendants, for good. no_new_privs must be set."""
    program = build()
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    syscalls.prctl(syscalls.PR_SET_SECCOMP, syscalls.SECCOMP_MODE_FILTER, ctypes.addressof(header))


def build() -> bytes:
    rules = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, _AUDIT_ARCH[platform.machine()], 1, 0),
        _step(_RETURN, _KILL),  # 32-bit calls, which have other numbers
        _step(_LOAD, _NUMBER),
    ]
    for name in FORBIDDEN:
        if (number := syscalls.number(name)) is not None:
            rules += [_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    rules += _when("clone", 0, _ANY_BIT, _NAMESPACES, refused=True, code=errno.EPERM)
    rules += _when("socket", 0, _EQUAL, _AF_UNIX, refused=False, code=errno.EAFNOSUPPORT)
    rules += _when("socketpair", 0, _EQUAL, _AF_UNIX, refused=False, code=errno.EAFNOSUPPORT)
    rules += _when("prlimit64", 0, _EQUAL, 0, refused=False, code=errno.EPERM)  # only its own limits
    rules += _when("personality", 0, _EQUAL, _ASK_PERSONALITY, refused=False, code=errno.EPERM)
    rules += _when("setsockopt", 2, _EQUAL, _SO_SNDBUF, refused=True, code=errno.EPERM)  # uses uncounted memory
    rules += _when("mmap", 3, _ANY_BIT, _MAP_HUGETLB, refused=True, code=errno.EPERM)  # huge pages are few
    rules += _when("ioctl", 1, _EQUAL, _TIOCSTI, refused=True, code=errno.EPERM)
    rules += _when("ioctl", 1, _EQUAL, _TIOCLINUX, refused=True, code=errno.EPERM)
    # clone3 hides its flags behind a pointer; where it does not exist, C libraries use clone.
    rules += [_step(_EQUAL, syscalls.number("clone3") or 0, 0, 1), _refuse(errno.ENOSYS)]
    rules += [_step(_ABOVE, syscalls.LAST_KNOWN, 0, 1), _refuse(errno.ENOSYS)]  # the x32 numbers too
    return b"".join([*rules, _step(_RETURN, _ALLOW)])


def _when(name: str, argument: int, test: int, value: int, *, refused: bool, code: int) -> list[bytes]:
    """Refuse a call if the low half of its argument passes the test, or (`refused=False`) if it does not."""
    steps = [
        _step(_LOAD, _ARGUMENTS + 8 * argument),
        _step(test, value, 0, 1) if refused else _step(test, value, 1, 0),
        _refuse(code),
        _step(_LOAD, _NUMBER),
    ]
    return [_step(_EQUAL, syscalls.number(name) or 0, 0, len(steps)), *steps]


def _refuse(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
