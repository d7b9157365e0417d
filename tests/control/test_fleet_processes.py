"""Engines that are processes, behind HTTP: one falls silent in mid-run, one is killed, one comes back."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from freerun.bench.controller import EveryOther
from freerun.bench.scripted_child import PROMPT, Settings
from freerun.control.config import ControlConfig
from freerun.control.controller import Run, train
from freerun.control.task_queue import TaskQueue
from freerun.control.waiting import together
from freerun.core import Batch, Task
from freerun.core.groups import GroupEvent, Stage
from freerun.core.observer import Observer, Observers
from freerun.core.reports import StepResult, UpdateReport
from freerun.data.stream import TaskStream
from freerun.engines.base import Sampling
from freerun.engines.http import HttpEngine
from freerun.machine.parent import RUN_KEY
from freerun.machine.processes import Child, ChildProcess, Processes
from freerun.rollouts.single_turn import SingleTurn
from freerun.train.remote import RemoteTrainer
from tests.control.test_promises import Letters

TOKENS, GROUP, GROUPS, STEPS = 32, 4, 8, 12

KEY = "the key of this run"


class Watched(Observer):
    """Does something when a version is there, and keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.then: dict[int, Callable[[], None]] = {}
        self.updates: list[list[str]] = []
        self.ended: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stepped(self, result: StepResult) -> None:
        self.then.get(result.version, lambda: None)()

    def updated(self, updates: list[UpdateReport]) -> None:
        self.updates.append([update.engine for update in updates])

    def group(self, event: GroupEvent) -> None:
        if event.stage is Stage.TRAINED:
            self.ended.append(event.group)


class Counting(RemoteTrainer):
    """The process behind it compares every token with the script."""

    tokens = 0

    async def step(self, batch: Batch) -> StepResult:
        result = await super().step(batch)
        self.tokens += int(result.metrics["tokens"])
        return result


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[tuple[Counting, dict[str, tuple[Child, HttpEngine]]]]:
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(Processes("freerun.bench.scripted_child", folder, fork=False))
        settings = Settings(TOKENS, endpoint=f"ipc://{folder}/trainer")
        names = {"trainer": "trainer", **{f"engine {index}": "engines" for index in range(3)}}
        key = {RUN_KEY: KEY}
        children = {
            name: await started.begin(name, kind, settings, 1, key, vital=False) for name, kind in names.items()
        }
        where = dict(zip(names, await together(*(child.ready() for child in children.values())), strict=True))
        trainer = stack.enter_context(Counting(where["trainer"], KEY))
        engines = {}
        for name in list(names)[1:]:
            engines[name] = children[name], await stack.enter_async_context(HttpEngine(where[name], KEY))
        yield trainer, engines


def process_of(child: Child) -> int:
    assert isinstance(child, ChildProcess)
    return child.process.pid


async def test_a_run_goes_on_with_the_engines_that_are_left(tmp_path: Path) -> None:
    async with processes(tmp_path) as (trainer, engines), AsyncExitStack() as stack:
        told = Watched()
        silent, killed = process_of(engines["engine 0"][0]), process_of(engines["engine 1"][0])
        tasks = [Task(f"task {index}", "", [index] * PROMPT) for index in range(GROUPS)]
        run = Run(
            config=ControlConfig(steps=STEPS, groups_per_step=GROUPS, max_staleness=1),
            group_size=GROUP,
            seed=0,
            tasks=TaskQueue(TaskStream(tasks, seed=0, shuffle=False, epochs=None)),
            rollout=SingleTurn(Letters(), Sampling(max_new_tokens=TOKENS, ignore_eos=True), GROUP),
            judge=EveryOther(),
            engines={name: engine for name, (_, engine) in engines.items()},
            trainer=trainer,
            observer=Observers([told]),
            engines_may_join=True,
        )
        going: list[asyncio.Task[None]] = []
        back = await stack.enter_async_context(HttpEngine(engines["engine 0"][1].url, KEY))

        def fall_silent() -> None:
            """As by a cut cable: nothing comes, and no connection is closed. Whoever watches the machine says so."""
            os.killpg(silent, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.3, run.remove, "engine 0", "its cable was cut")

        def come_back() -> None:
            os.killpg(silent, signal.SIGCONT)
            going.append(asyncio.create_task(run.join("engine 0", back)))

        told.then = {2: fall_silent, 5: lambda: os.killpg(killed, signal.SIGKILL), 8: come_back}
        try:
            await asyncio.wait_for(train(run), 60)
        finally:
            os.killpg(silent, signal.SIGCONT)
        await asyncio.gather(*going)
        assert trainer.tokens == STEPS * GROUPS * GROUP * TOKENS
        assert sorted(told.ended) == list(range(STEPS * GROUPS)), "every group is trained on once"
        assert run.load.samples == 0
        assert any(re.fullmatch(r"engine 0 is lost, and the \d+ groups .*: its cable was cut", n) for n in told.notes)
        assert any(note.startswith("engine 1 is out, and is looked at again: it ") for note in told.notes)
        assert any(note.startswith("engine 0 joins, with version") for note in told.notes)
        assert told.updates[0] == ["engine 0", "engine 1", "engine 2"]
        assert told.updates[3] == ["engine 1", "engine 2"]
        assert told.updates[4] == ["engine 2"]
        assert set(told.updates[-1]) == {"engine 0", "engine 2"}
