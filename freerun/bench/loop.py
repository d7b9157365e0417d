"""The whole loop as benchmarks run it: processes started once, then steps taken on them in one way after another.

What is compared are ways to run the loop, on the same work by the same processes: only the first way pays for start-up
and compiling, and a way begins with the engines empty.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from freerun.bench.gpu_memory import GpuMemory, measured
from freerun.bench.work import Work
from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.waiting import background
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.state import RunState
from freerun.engines.config import OnUpdate
from freerun.engines.http import HttpEngine
from freerun.machine.garbage import freeze_heap
from freerun.machine.gpus import visible_gpus
from freerun.observe.folder import RunFolder
from freerun.observe.live import view
from freerun.run import training
from freerun.run.hosts import hosts_of
from freerun.run.observed import Observed
from freerun.run.prepare import Prepared
from freerun.run.running import RunProcesses, run_processes
from freerun.run.start import Start, create_folder

STDERR = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Way:
    """How the loop is run."""

    max_staleness: int
    on_update: OnUpdate = "recompute"

    def __str__(self) -> str:
        return f"η = {self.max_staleness}, {self.on_update}"


@dataclass(frozen=True)
class Measured:
    """The loop run one way, over the steps after its warm-up."""

    max_staleness: int
    on_update: str
    steps: int
    tokens_per_s: float
    """The lesser of the two that follow. In the long run they are equal; over a few steps the trainer may use up
    answers that were waiting, or the engine make more than are used, and neither lasts."""
    trained_per_s: float
    generated_per_s: float
    step_s: float
    engine_idle_share: float
    trainer_idle_share: float
    staleness_mean: float
    staleness_max: int
    update_s: float
    """From the end of the trainer's step until the engines had its version, mean."""
    pause_s: float
    """How long of that engines stood still, mean."""
    first_token_s: float
    """From the swap until the new version's first tokens were there, mean."""
    recomputed_tokens: float
    """Cache to be rebuilt after an update, mean."""
    effective_samples: float
    """What share of the tokens trained on counts, by how far their ratios are spread; mean over steps."""
    kept_caches: float
    """Share (0 to 1) of running answers whose caches were kept at an update, where the engine chose; mean."""
    cache_error: float
    """Mean |Δ log-probability| of kept caches against a recompute, as last measured, where the engine chose."""

    @property
    def effective_per_s(self) -> float:
        """Tokens a second, as far as they count."""
        return self.tokens_per_s * self.effective_samples

    @classmethod
    def of(cls, way: Way, steps: list[StepRecord], generated_per_s: float) -> "Measured":
        wall_s, tokens = sum(s.step_s for s in steps), sum(s.tokens_trained for s in steps)
        return cls(
            max_staleness=way.max_staleness,
            on_update=way.on_update,
            steps=len(steps),
            tokens_per_s=min(tokens / wall_s, generated_per_s),
            trained_per_s=tokens / wall_s,
            generated_per_s=generated_per_s,
            step_s=wall_s / len(steps),
            engine_idle_share=sum(s.engine_idle_s for s in steps) / wall_s,
            trainer_idle_share=sum(s.trainer_idle_s for s in steps) / wall_s,
            staleness_mean=sum(s.staleness_mean * s.tokens_trained for s in steps) / tokens,
            staleness_max=max(s.staleness_max for s in steps),
            update_s=sum(s.update_s for s in steps) / len(steps),
            pause_s=sum(s.update_pause_s for s in steps) / len(steps),
            first_token_s=sum(s.first_token_s for s in steps) / len(steps),
            recomputed_tokens=sum(s.trainer["recomputed_tokens"] for s in steps) / len(steps),
            effective_samples=sum(s.trainer["effective_samples"] for s in steps) / len(steps),
            kept_caches=sum(s.trainer.get("kept_caches", 0.0) for s in steps) / len(steps),
            cache_error=next((s.trainer["cache_error"] for s in reversed(steps) if "cache_error" in s.trainer), 0.0),
        )


class Enough(Exception):
    """The steps that were to be measured are done."""


class Window(Observer):
    """Watches the settled steps: counts what the engines sampled in those after the warm-up, and ends the loop with the
    last of them, while the engines are still full; but not before they have its version."""

    def __init__(self, engines: list[HttpEngine], run: Run, warm_up: int, steps: int) -> None:
        self._engines = engines
        self._begins, self._delivered = run.version, run.delivered
        self._steps_done: list[StepRecord] = []
        self._warm_up = warm_up
        self._steps = steps
        self._tokens, self._start_s = 0, 0.0
        self.generated_per_s = 0.0

    @property
    def steps(self) -> list[StepRecord]:
        return self._steps_done[self._warm_up :]

    def step(self, record: StepRecord) -> None:
        self._steps_done.append(record)

    async def settled(self, state: RunState) -> None:
        done = state.version - self._begins
        if done == self._warm_up:
            self._tokens, self._start_s = await self._sampled(), time.monotonic()
        if done == self._warm_up + self._steps:
            self.generated_per_s = (await self._sampled() - self._tokens) / (time.monotonic() - self._start_s)
            await self._delivered.wait()
            raise Enough

    def say_what_was_seen(self, way: Way) -> None:
        """When somebody stops it on the way: what it has cost may be minutes of a GPU."""
        if steps := self.steps:
            seen = Measured.of(way, steps, math.inf)
            STDERR.print(
                f"{way}: {seen.tokens_per_s:,.0f} tokens a second in {seen.steps} of {self._steps} steps to be "
                f"measured (trained ones alone), {seen.step_s:.2f} s each; "
                f"updates {1e3 * seen.update_s:,.0f} ms to the swap, "
                f"{1e3 * seen.first_token_s:,.0f} more to first tokens",
                soft_wrap=True,
            )

    async def _sampled(self) -> int:
        return sum([(await engine.stats()).tokens for engine in self._engines])


class Loop:
    """Running processes, and the version that they have come to."""

    def __init__(self, work: Work, prepared: Prepared, running: RunProcesses, memory: GpuMemory | None = None) -> None:
        self.memory = memory
        self._work = work
        self._prepared = prepared
        self._running = running
        self._version = 0

    async def measure(self, way: Way, at_least: int) -> Measured:
        """So many steps after the warm-up, and enough to see the loop's pace repeat.

        It does so every η + 3 steps or so: the bound makes the trainer wait for the oldest long answer; then it learns
        in quick steps from what has come in meanwhile. The warm-up is η + 1 steps, when all that the beginning admitted
        at once is over with.
        """
        warm_up = way.max_staleness + 1
        steps = max(at_least, way.max_staleness + 3) if way.max_staleness else at_least
        last = self._version + warm_up + steps
        folder = RunFolder.create(Path(self._prepared.config.runs), "way")
        live = view(str(way), last, way.max_staleness, STDERR)
        for engine in self._running.engines.values():
            engine.on_update = way.on_update
        prepared, begins = self._as(way, last), RunState(version=self._version)
        observed = Observed.by(prepared, Start(folder, begins), [live])
        with closing(observed.all):
            rollout = self._work.rollout(self._prepared)
            run = training.run_of(prepared, self._running, begins, observed, rollout)
            window = Window(list(self._running.engines.values()), run, warm_up, steps)
            observed.all.add(window)
            observed.meter.begin(await run.fleet.idle_s())
            try:
                with suppress(Enough):
                    async with background(training.watch(run, self._running)):
                        await control_train(run)
            except asyncio.CancelledError:
                window.say_what_was_seen(way)
                raise
        self._version = last
        await self._emptied()
        measured = Measured.of(way, window.steps, window.generated_per_s)
        STDERR.print(f"{way}: {measured.tokens_per_s:,.0f} tokens a second")
        return measured

    def _as(self, way: Way, last: int) -> Prepared:
        """More steps than are taken: admission must not run dry before the last of them. The controller keeps an eighth
        more on their way than run; where the engine would run those too, so many fewer."""
        steps = last + way.max_staleness + 1
        config = self._prepared.config
        control = config.control.model_copy(update={"max_staleness": way.max_staleness, "steps": steps})
        running = self._work.slots if way.max_staleness else self._work.answers
        if way.max_staleness and running < config.engine.max_running:
            running = (8 * running + 7) // 9
        engine = config.engine.model_copy(update={"max_running": running})
        return replace(self._prepared, config=config.model_copy(update={"control": control, "engine": engine}))

    async def _emptied(self) -> None:
        """What was running when the loop ended is cancelled: wait until the engines have seen that."""
        for engine in self._running.engines.values():
            while (stats := await engine.stats()).running + stats.waiting:
                pass


@asynccontextmanager
async def started(work: Work, model: Path, threads: int = 1) -> AsyncIterator[Loop]:
    """Engine, trainer and judge, with so many CPU threads each."""
    prepared = work.prepared(model, threads)
    STDERR.print(f"starts engine and trainer: {work}")
    folder, plan = create_folder(prepared), prepared.plan()
    if work.on_gpu:
        STDERR.print(str(plan.memory), soft_wrap=True)
    with measured(plan.memory.taken(0) if work.on_gpu else 0) as memory:
        async with (
            hosts_of(prepared.config, STDERR.print) as hosts,
            run_processes(hosts, prepared, folder, plan, note=STDERR.print) as running,
        ):
            freeze_heap()
            yield Loop(work, prepared, running, memory)
    if memory:
        STDERR.print(str(memory), soft_wrap=True)


def table(work: Work, runs: dict[str, Measured]) -> Table:
    """A column for each run, under its name."""
    table = Table(title=f"{work}; {device()}")
    for column in ("", *runs):
        table.add_column(column, justify="right")

    def row(name: str, show: Callable[[Measured], str]) -> None:
        table.add_row(name, *(show(run) for run in runs.values()))

    row("tokens trained/s", lambda run: f"{run.trained_per_s:,.0f}")
    row("tokens generated/s", lambda run: f"{run.generated_per_s:,.0f}")
    row("steps", lambda run: str(run.steps))
    row("a step", lambda run: f"{run.step_s:.2f} s")
    row("engine idle", lambda run: f"{run.engine_idle_share:.0%}")
    row("trainer idle", lambda run: f"{run.trainer_idle_share:.0%}")
    row("staleness, mean", lambda run: f"{run.staleness_mean:.2f}")
    row("staleness, most", lambda run: str(run.staleness_max))
    row("update: trained to swapped", lambda run: f"{1e3 * run.update_s:,.0f} ms")
    row("update: engine stands still", lambda run: f"{1e3 * run.pause_s:,.1f} ms")
    row("update: swapped to first tokens", lambda run: f"{1e3 * run.first_token_s:,.0f} ms")
    row("tokens recomputed a step", lambda run: f"{run.recomputed_tokens:,.0f}")
    row("effective samples", lambda run: f"{run.effective_samples:.1%}")
    if any(run.on_update == "auto" for run in runs.values()):
        row("effective tokens/s", lambda run: f"{run.effective_per_s:,.0f}")
        row("caches kept, by choice", lambda run: f"{run.kept_caches:.0%}" if run.on_update == "auto" else "")
        row("their error, measured", lambda run: f"{run.cache_error:.3f} nats" if run.on_update == "auto" else "")
    return table


def record(bench: str, work: Work, runs: list[Measured], memory: GpuMemory | None = None) -> dict[str, Any]:
    """The JSON line, but for the ratios."""
    about = {"bench": bench, "device": device()} | asdict(work) | {"runs": [asdict(run) for run in runs]}
    return about | ({"memory": asdict(memory) | {"taken": memory.taken}} if memory else {})


def device() -> str:
    gpus = visible_gpus()
    return gpus[0].name if gpus else "CPU"
