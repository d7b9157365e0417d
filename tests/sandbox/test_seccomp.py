"""The filter of system calls, evaluated by a small interpreter so that both architectures are tested."""

import errno
import platform
import signal
import socket
import struct
from pathlib import Path

import pytest

from freerun.sandbox.inside import seccomp, syscalls


def decide(filter: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would make of a call: 0 if allowed, else the error, or -1 for the end of the process."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = [struct.unpack_from("<HBBI", filter, at) for at in range(0, len(filter), 8)]
    value, at = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                value = int.from_bytes(data[operand : operand + 4], "little")
            case 0x15 | 0x25 | 0x45:
                test = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
                at += if_true if test else if_false
            case 0x06:
                ends = {0x7FFF0000: 0, 0x80000000: -1}
                return ends.get(operand, int(operand & 0xFFFF))
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)])
def test_the_filter(machine: str, architecture: int, column: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    filter = seccomp.build()
    assert len(filter) // 8 < 4096  # as many steps as the kernel takes

    def call(name: str, *arguments: int) -> int:
        number = syscalls.NUMBERS[name][column]
        assert number is not None
        return decide(filter, architecture, number, *arguments)

    for name in seccomp.FORBIDDEN:
        if syscalls.NUMBERS[name][column] is not None:
            assert call(name) == errno.EPERM, name
    assert call("socket", socket.AF_UNIX) == 0
    assert call("socket", socket.AF_INET) == call("socketpair", 16) == errno.EAFNOSUPPORT
    assert call("clone", signal.SIGCHLD) == 0
    assert call("clone", syscalls.CLONE_NEWUSER | signal.SIGCHLD) == errno.EPERM
    assert call("clone3") == errno.ENOSYS
    assert call("prlimit64", 0) == 0
    assert call("prlimit64", 1) == errno.EPERM
    assert call("ioctl", 0, 0x5401) == 0
    assert call("ioctl", 0, 0x5412) == errno.EPERM
    assert call("personality", 0xFFFFFFFF) == 0
    assert call("personality", 8) == errno.EPERM
    assert call("close_range") == 0
    assert decide(filter, architecture, 451) == errno.ENOSYS
    assert decide(filter, architecture, 0x40000000) == errno.ENOSYS
    assert decide(filter, 0x40000003, 0) == -1
    forbidden = {syscalls.NUMBERS[name][column] for name in syscalls.NUMBERS}
    assert {decide(filter, architecture, number, 1) for number in set(range(451)) - forbidden} == {0}


def test_numbers_agree_with_the_machines_own_header() -> None:
    header = Path("/usr/include/asm-generic/unistd.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    pairs = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR"))
    own = {words[1].removeprefix("__NR3264_").removeprefix("__NR_"): words[2] for words in pairs if words[2].isdigit()}
    for name, (_, number) in syscalls.NUMBERS.items():
        assert number is None or own[name] == str(number), name
