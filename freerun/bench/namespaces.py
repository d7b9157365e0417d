"""Network namespaces as machines: several of them on one Linux machine, with a switch between them and cables that can
be cut.

    with machines("controller", "engine", "trainer") as (controller, engine, trainer):
        subprocess.Popen(engine.command("freerun", "node", "--join", f"{controller.address}:7411"))
        engine.cut()

A machine has an address of its own, a loopback interface, a host name, its own shared memory (/dev/shm), and its own of
each folder that is named as `private`. All else (files, processes, the clock, cores) it shares with the others.

Nothing here has a name that another run could take: namespaces live as long as the processes in them, and one of them,
the holder, is ours. It ends when whoever made the machines does, kill -9 included, and kills what else runs there.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from freerun.core.errors import FreerunError

NETWORK = "10.77.0"
"""The first machine is 10.77.0.2; each set of machines has a network of its own."""
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
_TRIAL = "mount -t tmpfs none /dev/shm && ip link add one type bridge && ip link add two type veth"
_UNSHARE = ("unshare", "--net", "--mount", "--uts")
_INSIDE = "eth0"
_HELD = "held"
_END_S = 5.0
_CLONE_NEWNET = 0x40000000


@cache
def unavailable() -> str | None:
    """Why no machines can be made here, in one line; None if they can."""
    if sys.platform != "linux":
        return "needs Linux for network namespaces"
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    folders = [Path(folder) for folder in os.get_exec_path()]
    for tool, package in _TOOLS.items():
        if not any(os.access(folder / tool, os.X_OK) for folder in folders):
            return f"needs {tool} for network namespaces: apt install {package}"
    tried = subprocess.run([*_UNSHARE, "sh", "-c", _TRIAL], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"needs a kernel that lets us make network namespaces ({_last_line(tried.stderr)})"
    return None


@dataclass(frozen=True)
class MachineNamespace:
    name: str
    address: str
    pid: int
    """The process that holds its namespaces."""
    _switch: int
    """The process that holds the namespace of the switch."""
    _port: str
    """The switch's end of its cable."""

    def command(self, *argv: str, folder: Path | None = None) -> list[str]:
        """What to start in order to run `argv` on this machine, in that folder or else in the current one. The process
        that is started becomes it, so signals reach it."""
        at = str(folder or Path.cwd())
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "env", f"--chdir={at}", *argv]

    def processes(self) -> list[int]:
        """All that run on it, but for its holder."""
        return [process for process in _processes_beside(self.pid) if process != self.pid]

    def cut(self) -> None:
        """Pull the cable, at the switch: what is sent is lost, and nobody is told."""
        _ip(self._switch, f"link set {self._port} down")

    def mend(self) -> None:
        _ip(self._switch, f"link set {self._port} up")

    def limit(self, mbit_per_s: float) -> None:
        """The cable carries no more than so much, each way."""
        self._shape(f"tbf rate {mbit_per_s}mbit burst 256kb latency 100ms")

    def delay(self, ms: float) -> None:
        """All that goes through the cable takes so much longer, each way. Few small kernels can."""
        self._shape(f"netem delay {ms}ms limit 100000")

    def _shape(self, how: str) -> None:
        for pid, end in ((self._switch, self._port), (self.pid, _INSIDE)):
            _in_network(pid, ["tc", "qdisc", "replace", "dev", end, "root", *how.split()])


@contextmanager
def machines(*names: str, private: Sequence[Path] = ()) -> Iterator[list[MachineNamespace]]:
    """A machine for each name, joined by a switch; all gone on leaving, with what runs on them."""
    if why := unavailable():
        raise FreerunError(f"no machines can be made of network namespaces: this {why}")
    with ExitStack() as stack:
        switch, *holders = [stack.enter_context(_held(name, private)) for name in ("switch", *names)]
        made = [
            MachineNamespace(name, f"{NETWORK}.{number + 2}", holder, switch, f"port{number}")
            for number, (name, holder) in enumerate(zip(names, holders, strict=True))
        ]
        _ip(switch, "link add switch type bridge", "link set switch up", *(line for one in made for line in _port(one)))
        for machine in made:
            inside = (f"addr add {machine.address}/24 dev {_INSIDE}", f"link set {_INSIDE} up", "link set lo up")
            _ip(machine.pid, *inside)
        yield made


def enter_network(pid: int) -> None:
    """From now on this thread, and the threads and processes that it starts, are in the network of that process."""
    with open(f"/proc/{pid}/ns/net") as network:
        _enter(network.fileno())


@contextmanager
def in_network(pid: int) -> Iterator[None]:
    """The same, until we leave. Sockets stay in the network that they were made in."""
    with open("/proc/thread-self/ns/net") as before:
        enter_network(pid)
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(network: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _port(machine: MachineNamespace) -> Iterator[str]:
    yield f"link add {machine._port} type veth peer name {_INSIDE} netns {machine.pid}"
    yield f"link set {machine._port} master switch up"


@contextmanager
def _held(name: str, private: Sequence[Path]) -> Iterator[int]:
    """Namespaces that live until we leave, or end; the process that holds them."""
    command = [*_UNSHARE, sys.executable, "-m", "freerun.bench.namespaces", name, *map(str, private)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline().strip() != _HELD:
                raise FreerunError(f"the network namespace {name} could not be made: see above")
            yield holder.pid
        finally:
            _kill_beside(holder.pid)
            holder.kill()


def _hold(name: str, private: Sequence[str]) -> None:
    """The holder's side. Its standard input closes when whoever started it ends, in whatever way."""
    socket.sethostname(name)
    for folder in ("/dev/shm", *private):
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    print(_HELD, flush=True)
    os.read(0, 1)
    _kill_beside(os.getpid())


def _kill_beside(holder: int) -> None:
    """All processes on the machine but the holder, and those that they start meanwhile. One that the kernel cannot end
    is left to it."""
    give_up_s = time.monotonic() + _END_S
    while found := [process for process in _processes_beside(holder) if process != holder]:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.01)


def _processes_beside(holder: int) -> list[int]:
    """All that are in the same network namespace, itself too; what has ended and is not yet reaped is in none."""
    network = _network_of(holder)
    every = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in every if network and _network_of(process) == network]


def _network_of(process: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{process}/ns/net")
    return None


def _ip(pid: int, *lines: str) -> None:
    _in_network(pid, ["ip", "-batch", "-"], "\n".join(lines))


def _in_network(pid: int, argv: list[str], given: str = "") -> None:
    """Run it in the network namespace of that process, and in all else as we are."""
    command = ["nsenter", f"--target={pid}", "--net", *argv]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FreerunError(f"`{' '.join(argv)}` failed in a network namespace: {done.stderr.splitlines()[0]}", given)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    _hold(sys.argv[1], sys.argv[2:])
