"""`freerun bench weights`: how fast weights get from one machine to another by TCP, against a plain stream.

The machines are network namespaces; where none can be made, two processes on loopback, which is said. Streams and
weights take turns, so that whatever else the machine does meets both.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from freerun.bench.figures import Figures, show
from freerun.bench.namespaces import machines, unavailable
from freerun.core import FreerunError
from freerun.machine.machines import LOOPBACK
from freerun.machine.scratch import memory_folder

_ENGINES = 4
_DELTA_MIB = 64
"""At most: to learn takes memory."""


class Process:
    """One of `weights_child.py`."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *command: Any) -> Any:
        self.begin(*command)
        return self.answer()

    def begin(self, *command: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        if not (line := self.process.stdout.readline()):
            raise FreerunError("a process of the benchmark ended: see above")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def _processes() -> Iterator[tuple[Process, list[Process]]]:
    """A trainer on one machine, and engines on another, which share its memory."""
    child = [sys.executable, "-m", "freerun.bench.weights_child"]
    with ExitStack() as stack:
        if unavailable():
            folders = [stack.enter_context(TemporaryDirectory(dir=memory_folder())) for _ in range(2)]
            commands = [[*child, "trainer", LOOPBACK, folders[0]]] + _ENGINES * [
                [*child, "engine", LOOPBACK, folders[1]]
            ]
        else:
            trainer, engine = stack.enter_context(machines("trainer", "engine"))
            shared = "/dev/shm"
            commands = [trainer.command(*child, "trainer", trainer.address, shared)]
            commands += _ENGINES * [engine.command(*child, "engine", engine.address, shared)]
        started = []
        for command in commands:
            started.append(Process(command))
            stack.callback(started[-1].end)
        for process in started:
            process.answer()
        yield started[0], started[1:]


def bench_weights(mib: int, rounds: int, json_only: bool) -> dict[str, Figures]:
    console = Console(stderr=json_only, highlight=False)
    with console.status("moves weights between machines"), _processes() as (trainer, engines):
        measured = {
            "stream": _streams(trainer, engines[0], mib, rounds, 1),
            **_taking_turns(trainer, engines[0], mib, rounds),
            f"{_ENGINES} engines of a machine": _together(trainer, engines),
            "bf16, a step of Adam at 1e-6": _deltas(trainer, engines[0], min(mib, _DELTA_MIB)),
        }
    show(measured, console)
    if why := unavailable():
        console.print(f"between processes on loopback, since this {why}")
    streams, weights = measured["stream pair"]["MiB/s"], measured["weights by TCP"]["MiB/s"]
    console.print(f"weights: {weights / streams:.2f} of what a pair of plain streams gives between the same machines")
    print(json.dumps({"bench": "weights", "mib": mib, "ratio": weights / streams, "measured": measured}))
    return measured


def _streams(trainer: Process, engine: Process, mib: int, rounds: int, connections: int) -> Figures:
    took = [_stream(trainer, engine, mib, connections) for _ in range(rounds)]
    return {"connections": connections, "MiB/s": mib / median(took)}


def _stream(trainer: Process, engine: Process, mib: int, connections: int) -> float:
    seconds: float = engine.ask("receive", trainer.ask("stream", mib, connections), mib, connections)
    return seconds


def _taking_turns(trainer: Process, engine: Process, mib: int, rounds: int) -> dict[str, Figures]:
    """After two versions that nobody counts: memory is there from then on."""
    trainer.ask("prepare", mib, False)
    streams, pulls, fetches = [], [], []
    for round in range(rounds + 2):
        streams.append(_stream(trainer, engine, mib, 2))
        handle = trainer.ask("publish", False)
        pulls.append(engine.ask("pull", handle))
        fetches.append(engine.ask("fetch", handle)[0])
        if round < 2:
            streams, pulls, fetches = [], [], []
    return {
        "stream pair": {"connections": 2, "MiB/s": mib / median(streams)},
        "weights by TCP": {"MiB/s": mib / median(pulls), "seconds": median(pulls)},
        "until an engine has them": {"seconds": median(fetches)},
    }


def _together(trainer: Process, engines: list[Process]) -> Figures:
    before, handle = trainer.ask("sent"), trainer.ask("publish", False)
    for engine in engines:
        engine.begin("fetch", handle)
    answers = [engine.answer() for engine in engines]
    received = sum(size for _, size in answers)
    return {
        "transfers": (trainer.ask("sent") - before) / max(size for _, size in answers),
        "received MiB": received / 2**20,
        "seconds": max(seconds for seconds, _ in answers),
    }


def _deltas(trainer: Process, engine: Process, mib: int) -> Figures:
    trainer.ask("prepare", mib, True)
    whole_s, whole = engine.ask("fetch", trainer.ask("publish", False))
    steps = [engine.ask("fetch", trainer.ask("publish", True)) for _ in range(3)]
    sizes = [size for _, size in steps]
    return {
        "whole MiB": whole / 2**20,
        "delta MiB": median(sizes) / 2**20,
        "share": median(sizes) / whole,
        "whole s": whole_s,
        "delta s": median(seconds for seconds, _ in steps),
    }
