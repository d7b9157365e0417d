"""Engines of a run on one machine that are killed, stopped, added and taken away while it goes on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from freerun.bench.run_log import Audited
from freerun.core import ConfigError, ProcessDied, ProcessKilled, Version
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.engines.tracked import TrackedEngine
from freerun.machine.processes import Child, ChildProcess, Processes
from freerun.observe.folder import RunFolder
from freerun.observe.status import read_status
from freerun.run import kept, training
from freerun.run.resume import load_run
from freerun.run.wanted import WantedEngines, want_engines
from tests.run.test_train import prepared

SOON_S = 60.0


@dataclass
class Watched(Observer):
    """Keeps what is said, and when; waits for it."""

    steps: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    evaluated_: list[Version] = field(default_factory=list)
    wanted: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def step(self, record: StepRecord) -> None:
        self.steps = record.step
        self.changed.set()

    def note(self, text: str) -> None:
        self.notes[text] = time.monotonic()
        self.changed.set()

    def doing(self, process: str, what: str) -> None:
        self.did.append(f"{process} {what}")
        self.changed.set()

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self.evaluated_.append(version)
        self.changed.set()

    def engines_wanted(self, machines: Mapping[str, str]) -> None:
        self.wanted = dict(machines)
        self.changed.set()

    def said(self, start: str) -> float | None:
        """When a note that begins so came last."""
        return max((at for text, at in self.notes.items() if text.startswith(start)), default=None)

    def has_said_since(self, start: str, since_s: float) -> bool:
        return (self.said(start) or 0.0) > since_s

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(SOON_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def steps_more(self, count: int) -> None:
        wanted = self.steps + count
        await self.until(lambda: self.steps >= wanted)


class Started:
    """The processes that runs have started, by name."""

    def __init__(self) -> None:
        self.children: dict[str, list[ChildProcess]] = {}
        self.begun_s: dict[str, float] = {}
        """When the last of each was."""

    def alive(self, name: str) -> ChildProcess:
        return self.children[name][-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()

    class Remembered(Processes):
        async def begin(self, name: str, *arguments: Any, **more: Any) -> Child:
            started.begun_s[name] = time.monotonic()
            child = await super().begin(name, *arguments, **more)
            assert isinstance(child, ChildProcess)
            started.children.setdefault(name, []).append(child)
            return child

    monkeypatch.setattr("freerun.run.running.Processes", Remembered)
    return started


@asynccontextmanager
async def going(folder: Path, *overrides: str) -> AsyncIterator[tuple[Watched, "asyncio.Task[training.Outcome]"]]:
    """A run without an end, which is stopped after the block; whose groups are all accounted for then."""
    told = Watched()
    run = prepared(folder, "control.steps=100000", "control.groups_per_step=2", *overrides)
    task = asyncio.create_task(training.train(run, guests=[told]))
    task.add_done_callback(lambda _: told.changed.set())
    try:
        await told.until(lambda: told.steps >= 3 or task.done())
        if not task.done():
            yield told, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    found = Audited.of(Path(run.config.runs) / run.config.name)
    assert (found.lost, found.twice) == (0, 0)


async def killed(name: str, told: Watched, started: Started) -> float:
    """Kill it, and wait until another one is started in its place. When it was killed."""
    alive, killed_s = started.alive(name), time.monotonic()
    alive.process.kill()
    await told.until(lambda: started.alive(name) is not alive)
    assert started.begun_s[name] - killed_s < 1, f"{name} is not started again at once"
    return killed_s


async def test_what_is_killed_before_it_is_ready_is_started_again(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of a run, which has an engine and a trainer only when both are ready."""
    ready, spared = ChildProcess.ready, {"engine 0": 1, "trainer": 2}

    async def killed_at_first(self: ChildProcess) -> str:
        if spared.get(self.name, 0):
            spared[self.name] -= 1
            os.kill(self.process.pid, signal.SIGKILL)
        return await ready(self)

    monkeypatch.setattr(ChildProcess, "ready", killed_at_first)
    async with going(tmp_path) as (told, _):
        assert {name: len(children) for name, children in started.children.items()} == {"engine 0": 2, "trainer": 3}
        assert told.said("the trainer process was killed by SIGKILL before it was ready: it is started again")


async def test_what_is_killed_again_and_again_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ChildProcess.ready

    async def killed_at_once(self: ChildProcess) -> str:
        os.kill(self.process.pid, signal.SIGKILL)
        return await ready(self)

    monkeypatch.setattr(ChildProcess, "ready", killed_at_once)
    with pytest.raises(ProcessKilled, match="was killed by SIGKILL"):
        async with asyncio.timeout(SOON_S):
            await training.train(prepared(tmp_path))


async def test_killed_engines_are_started_again_at_once(tmp_path: Path, started: Started) -> None:
    """The only one of a run, in which the run waits for it; and the evaluator."""
    async with going(tmp_path, "evaluate.every=5") as (told, _):
        killed_s = await killed("engine 0", told, started)
        lost_s = told.said("engine 0 is lost, and the ")
        assert lost_s
        assert lost_s - killed_s < 1, "it is noticed at once"
        assert any(
            "controller waits for an engine: engine 0 is lost: the engine 0 process was killed" in what
            for what in told.did
        )
        await told.until(lambda: told.has_said_since("engine 0 joins, with version", killed_s))
        await told.steps_more(3)
        await killed("evaluator", told, started)
        await told.until(lambda: told.said("evaluator is back"))
        evaluated = len(told.evaluated_)
        await told.until(lambda: len(told.evaluated_) > evaluated)


async def ends_for_good(folder: Path, started: Started) -> None:
    """Kill the only engine until it is not started again."""
    async with going(folder) as (told, task):
        for _ in range(2):
            killed_s = await killed("engine 0", told, started)
            await told.until(partial(told.has_said_since, "engine 0 joins, with version", killed_s))
        started.alive("engine 0").process.kill()
        await asyncio.wait_for(task, SOON_S)


async def test_one_that_ends_again_and_again_ends_the_run(tmp_path: Path, started: Started) -> None:
    with pytest.raises(ProcessDied, match="the engine 0 process was killed by SIGKILL"):
        await ends_for_good(tmp_path, started)
    status = read_status(tmp_path / "runs" / "test")
    assert status
    assert (status.ended or "").startswith("failed: the engine 0 process was killed by SIGKILL")


async def loses_its_model(folder: Path, started: Started) -> None:
    async with going(folder) as (_, task):
        (folder / "model" / "model.safetensors").unlink()
        started.alive("engine 0").process.kill()
        await asyncio.wait_for(task, SOON_S)


async def test_one_that_cannot_be_started_again_ends_the_run(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_TRIES", 2)
    with pytest.raises(ConfigError, match="model"):
        await loses_its_model(tmp_path, started)
    assert len(started.children["engine 0"]) == 3


async def test_engines_that_hang_are_started_again(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two, while the other goes on, and the evaluator."""
    monkeypatch.setattr(TrackedEngine, "LOOK_S", 1.0)
    async with going(tmp_path, "evaluate.every=5", "resources.engines=2") as (told, _):
        stopped_s = time.monotonic()
        os.killpg(started.children["engine 1"][0].process.pid, signal.SIGSTOP)
        await told.until(lambda: told.said("engine 1 is ended, and the "))
        assert time.monotonic() - stopped_s < 10, "two looks of 1.5 s"
        assert any("it has not answered 2 looks in a row" in note for note in told.notes)
        await told.until(lambda: told.has_said_since("engine 1 joins, with version", stopped_s))
        os.killpg(started.children["evaluator"][0].process.pid, signal.SIGSTOP)
        await told.until(lambda: told.said("evaluator is back"))
        evaluated = len(told.evaluated_)
        await told.until(lambda: len(told.evaluated_) > evaluated)
        assert started.children["engine 1"][0].returncode == started.children["evaluator"][0].returncode == -9
        assert len(started.children["engine 0"]) == 1


def engines_of(folder: RunFolder) -> Mapping[str, str]:
    """By its status."""
    status = read_status(folder.path)
    assert status
    return status.engines


async def test_engines_are_added_and_taken_away(tmp_path: Path, started: Started) -> None:
    folder = RunFolder(tmp_path / "runs" / "test")
    async with going(tmp_path) as (told, _):
        want_engines(folder, WantedEngines(3))
        await told.until(lambda: told.said("engine 2 joins, with version") and told.said("engine 1 joins"))
        assert list(told.wanted) == ["engine 0", "engine 1", "engine 2"]
        want_engines(folder, WantedEngines(2, "engine 0"))
        await told.until(lambda: told.said("engine 0 is removed, and the "))
        await asyncio.wait_for(started.children["engine 0"][0].wait(), SOON_S)
        assert list(told.wanted) == ["engine 1", "engine 2"]
        await told.steps_more(3)

        written = folder.config.read_text()
        folder.config.write_text(written.replace("engines: 2 ", "engines: none "))
        await told.until(lambda: told.said(f"{folder.config} has changed, and is not taken: resources.engines"))
        folder.config.write_text(written.replace("engines: 2 ", "engines: 1 ").replace("lr: 0.005", "lr: 0.001"))
        await told.until(lambda: told.said(f"of {folder.config} only resources.engines is taken while"))
        await told.until(lambda: told.said("engine 2 is removed, and the "))
        await told.steps_more(3)
        want_engines(folder, WantedEngines(2))
        await told.until(lambda: len(started.children["engine 0"]) == 2)
        await told.until(lambda: told.said("engine 0 joins, with version"))
        await told.until(lambda: engines_of(folder) == {"engine 0": "local", "engine 1": "local"})
    config, origins = load_run(folder)
    assert (config.resources.engines, origins["resources.engines"]) == (2, "freerun engines")
    assert origins["model.path"] == "command line", "the others are kept"
    with pytest.raises(ConfigError, match=r"resources\.engines"):
        want_engines(folder, WantedEngines(0))
