"""`freerun bench staleness`: what the age of data does to learning, with plain PPO and with decoupled PPO, the paper's
and ours.

A run paces itself so that its data is no older than need be, so what staleness does is seen only where it is held. Here
the real engine samples every batch with the weights of exactly η versions ago, and the real learner takes a step on it:
one process a run (staleness_run.py), the two taking turns. All runs of a seed start from the same weights and see the
same tasks in the same order; they differ in η and in the objective alone.

The sweep has a folder: `sweep.json` (what all runs share), `tasks`, the warm model, and `runs`, a file for each run
that is over. The same command goes on where it was stopped; η, objectives and seeds may be added.
"""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev

import msgspec
from rich.console import Console
from rich.table import Table

from freerun.bench.staleness_page import page
from freerun.bench.staleness_run import CHANGES, OBJECTIVES, Outcome, Run, WarmUp
from freerun.bench.staleness_tasks import Lesson, find_lesson
from freerun.commands.progress import counting
from freerun.control.waiting import together
from freerun.core import ConfigError, ProcessDied
from freerun.core.files import atomic_folder, write_atomically
from freerun.core.text import counted, did_you_mean
from freerun.machine.gpus import visible_gpus
from freerun.machine.mps import Mps, MpsRefused
from freerun.machine.processes import ChildProcess
from freerun.machine.scratch import scratch_folder
from freerun.models.hub import find_model
from freerun.models.shape import read_shape

STDERR = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Sweep:
    """What all runs share. A folder has the runs of one sweep."""

    task: str
    model: str | None
    data: str | None
    steps: int
    lr: float
    settings: list[str]
    device: str

    @property
    def lesson(self) -> Lesson:
        return find_lesson(self.task)


@dataclass(frozen=True)
class Asked:
    """Which runs, and how many at a time."""

    etas: list[int]
    objectives: list[str]
    seeds: list[int]
    workers: int
    within_s: float = float("inf")
    """No run begins later than that: what is left is for the next time."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def in_time(self) -> bool:
        return time.monotonic() - self.began_s < self.within_s


def parse_etas(text: str) -> list[int]:
    try:
        etas = sorted({int(part) for part in text.replace(",", " ").split()})
    except ValueError:
        raise ConfigError(f"--etas {text} is not a list of whole numbers, such as 0,1,4,16") from None
    if not etas:
        raise ConfigError("--etas is empty; give whole numbers, such as 0,1,4,16")
    if etas[0] < 0:
        raise ConfigError(f"--etas {text}: data cannot come from {-etas[0]} versions ahead; leave {etas[0]} out")
    return etas


def parse_objectives(text: str) -> list[str]:
    names = list(dict.fromkeys(text.replace(",", " ").split()))
    for name in names:
        if name not in CHANGES:
            raise ConfigError(
                f"--objectives {name} is not known{did_you_mean(name, CHANGES)}; it is {', '.join(CHANGES)}"
            )
    if not names:
        raise ConfigError(f"--objectives is empty; give some of {', '.join(CHANGES)}")
    return names


def sweep_of(
    task: str | None, model: str | None, data: str | None, steps: int | None, lr: float | None, settings: Sequence[str]
) -> Sweep:
    """With the task's own values for what is not said."""
    task = task or ("chain_sum-hard" if model else "reverse")
    lesson = find_lesson(task)
    if lesson.own_model and model:
        raise ConfigError(f"--task {task} makes its own models; leave --model {model} out, or choose another task")
    if not lesson.own_model and not model:
        raise ConfigError(f"--task {task} needs a model: give its folder, or its name on the hub, by --model")
    gpus = visible_gpus()
    device = gpus[0].name if gpus else f"CPU, {os.cpu_count()} core(s)"
    return Sweep(task, model, data, steps or lesson.steps, lr or lesson.lr, list(settings), device)


async def bench_staleness(sweep: Sweep, asked: Asked, out: Path, json_only: bool) -> None:
    if sweep.steps <= 2 * max(asked.etas):
        least = 2 * max(asked.etas)
        raise ConfigError(f"--steps {sweep.steps} is too few for η = {max(asked.etas)}: make it more than {least}")
    if sweep.model:
        read_shape(find_model(sweep.model).folder)
    folder = SweepFolder(out, sweep)
    async with sharing_the_gpu(asked.workers) as environment:
        workers = Workers(asked, environment, folder.logs)
        await folder.warm_up(workers)
        failures = await folder.run_all(workers)
    show(folder, asked, json_only)
    if failures:
        raise failures[0]


@asynccontextmanager
async def sharing_the_gpu(workers: int) -> AsyncIterator[dict[str, str]]:
    """The environment for processes that are to use one GPU at the same time."""
    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // workers, 1) if visible_gpus() else 1)}
    if not visible_gpus() or workers == 1:
        yield threads
        return
    with scratch_folder() as place:
        mps = Mps(place / "mps")
        try:
            await mps.__aenter__()
        except MpsRefused as why:
            STDERR.print(f"no MPS, so that the processes take turns on the GPU: {why}")
            yield threads
            return
        try:
            yield threads | mps.environment(high_priority=True)
        finally:
            await mps.__aexit__(None, None, None)


class Workers:
    """Processes that work side by side, as many as were asked for."""

    def __init__(self, asked: Asked, environment: dict[str, str], logs: Path) -> None:
        self.asked, self._environment, self._logs = asked, environment, logs
        self._room = asyncio.Semaphore(asked.workers)

    async def work(self, job: WarmUp | Run, name: str, stepped: Callable[[], None]) -> bytes | None:
        """The last line that the job's process writes, which writes an empty one for each step before; None if there
        was no time left to begin."""
        async with self._room:
            if not self.asked.in_time:
                return None
            child = await ChildProcess.start(
                *(name, "freerun.bench.staleness_run", type(job).__name__, msgspec.json.encode(job).decode()),
                environment=self._environment,
                log=self._logs / f"{name}.log",
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                return await _last_line(child, stepped)
            finally:
                await child.end(grace_s=0)


async def _last_line(child: ChildProcess, stepped: Callable[[], None]) -> bytes:
    assert child.process.stdout
    last = b""
    async for line in child.process.stdout:
        last = line.strip()
        if not last:
            stepped()
    if await child.process.wait():
        raise child.died()
    return last


class SweepFolder:
    """Where a sweep lies, and what of it there is already."""

    def __init__(self, path: Path, sweep: Sweep) -> None:
        self.path, self.sweep = path, sweep
        self.logs, self._runs = path / "logs", path / "runs"
        for folder in (path, self.logs, self._runs):
            folder.mkdir(parents=True, exist_ok=True)
        self._check_same()

    def _check_same(self) -> None:
        """Runs of another model or learning rate would be no comparison."""
        file = self.path / "sweep.json"
        begun = any(self._runs.iterdir()) or any(self.path.glob("warm*"))
        for tasks in () if begun else self.path.glob("tasks*"):
            shutil.rmtree(tasks)  # perhaps another task's
        if not file.exists() or not begun:
            write_atomically(file, json.dumps(asdict(self.sweep), indent=2) + "\n")
            return
        there = json.loads(file.read_bytes())
        for key, value in asdict(self.sweep).items():
            if there.get(key) != value:
                raise ConfigError(
                    f"{self.path} has runs with {key} {there.get(key)}, not {value}: name another folder by --out"
                )

    async def warm_up(self, workers: "Workers") -> None:
        """Makes the tasks, and the models that runs start from, where they are not there yet."""
        lesson, jobs = self.sweep.lesson, list[WarmUp]()
        for seed in workers.asked.seeds if lesson.own_model else [0]:
            tasks = self._tasks(seed)
            if not tasks.exists():
                with atomic_folder(tasks) as unfinished:
                    lesson.write(unfinished, self.sweep.data, seed)
            if lesson.warm_up and not self._start(seed).exists():
                plan, settings = lesson.warm_up, tuple(self.sweep.settings)
                model = self.sweep.model
                jobs.append(WarmUp(self.sweep.task, str(tasks), str(self._start(seed)), seed, plan, model, settings))
        if jobs:
            with counting("warm-up, at most", sum(job.plan.steps for job in jobs), STDERR) as stepped:
                starts = await together(*(workers.work(job, Path(job.warm).name, stepped) for job in jobs))
            told = ", ".join(f"{float(start):.3f}" for start in starts if start is not None)
            STDERR.print(f"the warm-up is over: reward {told}")

    async def run_all(self, workers: "Workers") -> list[ProcessDied]:
        """What is not there yet. A run that fails is no reason to stop the others."""
        missing = [run for run in self._jobs(workers.asked) if not self._file(run).exists()]
        if there := len(self._jobs(workers.asked)) - len(missing):
            STDERR.print(f"{counted(there, 'run')} there already, {len(missing)} to go")
        if not missing:
            return []
        with counting("steps", sum(run.steps for run in missing), STDERR) as stepped:
            failures = await together(*(self._run(workers, run, stepped) for run in missing))
        return [failure for failure in failures if failure]

    async def _run(self, workers: "Workers", run: Run, stepped: Callable[[], None]) -> ProcessDied | None:
        start_s = time.monotonic()
        try:
            line = await workers.work(run, run.name, stepped)
        except ProcessDied as failure:
            STDERR.print(f"{run.name} failed: {failure}")
            return failure
        if line is None:
            return None
        outcome = msgspec.json.decode(line, type=Outcome)
        write_atomically(self._file(run), line + b"\n")
        self.write_page()
        STDERR.print(
            f"{OBJECTIVES[run.objective]}, η {run.eta}, seed {run.seed}: {outcome.checks[0].reward:.3f} -> "
            f"{outcome.reward:.3f}, after {time.monotonic() - start_s:.0f} s"
        )
        return None

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of all runs that are over, whenever that was."""
        found = [msgspec.json.decode(file.read_bytes(), type=Outcome) for file in self._runs.glob("*.json")]
        order = list(OBJECTIVES)
        return sorted(found, key=lambda outcome: (outcome.eta, order.index(outcome.objective), outcome.seed))

    def write_page(self) -> None:
        write_atomically(self.path / "index.html", page(self.sweep, self.outcomes))

    def _jobs(self, asked: Asked) -> list[Run]:
        """Seed by seed, so that what is there when time is over can be compared."""
        sweep = self.sweep
        return [
            Run(
                *(sweep.task, str(self._tasks(seed)), str(self._start(seed)), seed, eta, objective),
                *(sweep.steps, sweep.lr, tuple(sweep.settings)),
            )
            for seed in asked.seeds
            for eta in asked.etas
            for objective in asked.objectives
        ]

    def _file(self, run: Run) -> Path:
        return self._runs / f"{run.name}.json"

    def _tasks(self, seed: int) -> Path:
        return self.path / (f"tasks-{seed}" if self.sweep.lesson.own_model else "tasks")

    def _start(self, seed: int) -> Path:
        lesson = self.sweep.lesson
        if lesson.warm_up is None:
            assert self.sweep.model is not None
            return Path(self.sweep.model)
        return self.path / (f"warm-{seed}" if lesson.own_model else "warm")


def show(folder: SweepFolder, asked: Asked, json_only: bool) -> None:
    outcomes, sweep = folder.outcomes, folder.sweep
    console = Console(stderr=json_only, highlight=False)
    if not outcomes:
        console.print(f"no run is over yet: the same command goes on in {folder.path}")
        return
    folder.write_page()
    console.print(_table(outcomes, sweep))
    wanted = len(asked.etas) * len(asked.objectives) * len(asked.seeds)
    left = wanted - sum(
        (o.eta in asked.etas) and (o.objective in asked.objectives) and (o.seed in asked.seeds) for o in outcomes
    )
    if left:
        console.print(f"{counted(left, 'run')} left: the same command goes on with them")
    console.print(f"page: {folder.path / 'index.html'}")
    head = {"bench": "staleness"} | asdict(sweep)
    print(json.dumps(head | {"runs": [asdict(outcome) for outcome in outcomes]}))


def _table(outcomes: list[Outcome], sweep: Sweep) -> Table:
    seeds = len({outcome.seed for outcome in outcomes})
    title = (
        f"{sweep.task}: held-out reward after {sweep.steps} steps, lr {sweep.lr:g}, {seeds} seed(s), mean ± deviation"
    )
    table = Table(title=title)
    for column in (
        "η",
        "objective",
        "reward",
        "worst",
        "drift",
        "outside ±0.2",
        "effective",
        "kept",
        "clipped",
        "entropy",
    ):
        table.add_column(column, justify="right")
    cells: dict[tuple[int, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.eta, outcome.objective), []).append(outcome)
    for (eta, objective), found in cells.items():
        rewards = [outcome.reward for outcome in found]
        spread = stdev(rewards) if len(rewards) > 1 else 0.0
        table.add_row(
            str(eta),
            OBJECTIVES[objective],
            f"{fmean(rewards):.3f} ± {spread:.3f}",
            f"{min(rewards):.3f}",
            f"{fmean(o.drift for o in found):.3f}",
            f"{fmean(o.outside_share for o in found):.1%}",
            f"{fmean(o.effective_samples for o in found):.0%}",
            f"{fmean(o.kept_share for o in found):.0%}",
            f"{fmean(o.clip_share for o in found):.1%}",
            f"{fmean(o.entropy for o in found):.3f}",
        )
    return table


def workers_here() -> int:
    return 4 if visible_gpus() else os.cpu_count() or 1
