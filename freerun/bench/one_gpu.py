"""`freerun bench mps`: engine and trainer at the same time on one GPU, against one after the other.

Two processes do nothing but their own: one decodes a full batch, the other takes training steps. Each says after every
step how far it has come, so that what both did in the same seconds can be told. A share is what a process did beside
the other, of what it does alone; taking turns, the two shares add up to one.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from freerun.bench.apart import Job
from freerun.control.waiting import background, together
from freerun.core import ProcessDied
from freerun.machine.gpus import visible_gpus
from freerun.machine.mps import Mps, MpsRefused
from freerun.machine.processes import ChildProcess, describe_exit
from freerun.machine.scratch import scratch_folder

SMALL = Job("4m", rows=8, prompt=32, answer=64, sequences=2, length=128)
"""The default on a CPU."""
LARGE = Job("0.6b", rows=256, prompt=512, answer=1_024, sequences=32, length=1_024)
"""The default on a GPU."""
STDERR = Console(stderr=True, highlight=False)
Environment = dict[str, str]


@dataclass(frozen=True)
class Measured:
    how: str
    decoded_per_s: float
    trained_per_s: float
    shares: float
    """The sum of the two shares."""


class BenchProcess:
    """A process that works until it is ended.

    Consumes the lines it writes, a time and a count after each step once it is warm; produces rates; waits for steps;
    is unblocked by them, or by its end, which is a failure.
    """

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._marks: list[tuple[float, int]] = []
        self._stepped = asyncio.Event()

    async def follow(self) -> None:
        """Never returns: raises when the process has ended."""
        assert self._child.process.stdout
        async for line in self._child.process.stdout:
            time_s, tokens = line.split()
            self._marks.append((float(time_s), int(tokens)))
            self._stepped.set()
        how = describe_exit(await self._child.process.wait())
        raise ProcessDied(f"the {self._child.name} process {how}", self._child.log_tail())

    async def steps(self, count: int, since_s: float = 0.0) -> None:
        """Wait until so many have ended since then."""
        while sum(time_s >= since_s for time_s, _ in self._marks) < count:
            self._stepped.clear()
            await self._stepped.wait()

    def rate(self, since_s: float) -> float:
        """Tokens a second, from the first to the last step that has ended since then."""
        (first_s, first), *_, (last_s, last) = [mark for mark in self._marks if mark[0] >= since_s]
        return (last - first) / (last_s - first_s)


@asynccontextmanager
async def working(name: str, job: Job, environment: Environment, logs: Path) -> AsyncIterator[BenchProcess]:
    """A process at work; it is ended with the block, and with us."""
    child = await ChildProcess.start(
        *(name, "freerun.bench.apart", name, msgspec.json.encode(job).decode()),
        environment={"OMP_NUM_THREADS": str(job.threads)} | environment,
        log=logs / f"{name}.log",
        stdout=asyncio.subprocess.PIPE,
    )
    worker = BenchProcess(child)
    try:
        async with background(worker.follow()):
            yield worker
    finally:
        await child.end(grace_s=0)


async def rates(job: Job, seconds: float, logs: Path, environments: dict[str, Environment]) -> dict[str, float]:
    """The rates of the named processes, all working at the same time, each in its environment."""
    STDERR.print(f"{' and '.join(environments)}: starts, compiles, then {seconds:g} s are measured")
    async with AsyncExitStack() as stack:
        workers = {
            name: await stack.enter_async_context(working(name, job, environment, logs))
            for name, environment in environments.items()
        }
        await together(*(worker.steps(1) for worker in workers.values()))
        start_s = time.monotonic()
        await asyncio.sleep(seconds)
        await together(*(worker.steps(2, start_s) for worker in workers.values()))
        return {name: worker.rate(start_s) for name, worker in workers.items()}


async def bench_mps(model: str | None, rows: int | None, cores: int | None, seconds: float, json_only: bool) -> None:
    on_gpu = bool(visible_gpus())
    base = LARGE if on_gpu else SMALL
    cores = cores or os.cpu_count() or 1
    job = replace(base, model=model or base.model, rows=rows or base.rows)
    job.check()
    with scratch_folder() as place:
        whole = job if on_gpu else replace(job, threads=cores)
        half = job if on_gpu else replace(job, threads=max(cores // 2, 1))
        alone = {name: (await rates(whole, seconds, place, {name: {}}))[name] for name in ("engine", "trainer")}
        runs = [Measured("each alone", alone["engine"], alone["trainer"], 1.0)]
        how = "together, time slices" if on_gpu else "together, half the cores each"
        runs.append(_beside(how, alone, await rates(half, seconds, place, {"engine": {}, "trainer": {}})))
        if on_gpu:
            runs += await _under_mps(job, seconds, place, alone)
    show(job, f"CPU, {cores} core(s)", runs, json_only)


async def _under_mps(job: Job, seconds: float, place: Path, alone: dict[str, float]) -> list[Measured]:
    """Nothing, where there is no MPS; it is said why."""
    try:
        async with Mps(place / "mps") as mps:
            environments = {"engine": mps.environment(high_priority=True), "trainer": mps.environment(False)}
            measured = await rates(job, seconds, place, environments)
    except MpsRefused as why:
        STDERR.print(f"no MPS: {why}")
        return []
    return [_beside("together, MPS, the engine first", alone, measured)]


def _beside(how: str, alone: dict[str, float], measured: dict[str, float]) -> Measured:
    shares = sum(measured[name] / alone[name] for name in alone)
    return Measured(how, measured["engine"], measured["trainer"], shares)


def show(job: Job, cpu: str, runs: list[Measured], json_only: bool) -> None:
    gpus = visible_gpus()
    device = gpus[0].name if gpus else cpu
    console = Console(stderr=json_only, highlight=False)
    table = Table(title=f"{job}; {device}")
    for column in ("", "decoded, tokens/s", "trained, tokens/s", "sum of shares"):
        table.add_column(column, justify="right")
    for run in runs:
        shares = f"{run.shares:.2f}" if run is not runs[0] else "in turns: 1"
        table.add_row(run.how, f"{run.decoded_per_s:,.0f}", f"{run.trained_per_s:,.0f}", shares)
    console.print(table)
    best = max(runs[1:], key=lambda run: run.shares)
    console.print(f"{best.how}: {best.shares:.2f} times what the two do in turns")
    record = {"bench": "mps", "device": device} | asdict(job)
    print(json.dumps(record | {"runs": [asdict(run) for run in runs], "ratio": best.shares}))
