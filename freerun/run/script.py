"""A run that is started by a script or from a notebook, with Python objects where a file would name them.

A rollout and observers run in this process, so any object will do. A judge runs in worker processes, which find it as
the configuration would name it: a function or class at the top level of a module or of the script. The workers then
import the script, as far as its call of `train`; what must not run twice goes under `if __name__ == "__main__":`.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from freerun.config.load import config_of
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.core.observer import Observer
from freerun.core.options import with_options
from freerun.core.resolve import ScriptReached, is_loading, reference_to
from freerun.machine.gpus import name_by_uuid
from freerun.machine.host import allow_many_files
from freerun.rewards.spec import JudgeSetting
from freerun.rollouts.base import Rollout
from freerun.rollouts.load import checked
from freerun.run import training
from freerun.run.begin import begin
from freerun.run.guests import guest_of
from freerun.run.prepare import prepare
from freerun.run.resume import how_to_go_on
from freerun.run.training import Outcome

Config = RunConfig | Mapping[str, Any] | str | Path
"""A run's YAML file, its keys and values, or a configuration that is made already."""
JudgeChoice = JudgeSetting | Callable[..., Any]


def train(
    config: Config,
    *,
    rollout: Rollout | type | None = None,
    judge: JudgeChoice | None = None,
    observers: Iterable[Observer | type[Observer]] = (),
) -> Outcome:
    """Train a policy: the whole run, with all its processes. Ctrl-C ends it cleanly, and it can be resumed.

    Where an event loop runs already, as in a notebook, the run has a loop and a thread of its own; `train_async` is for
    those who would rather await it.
    """

    if is_loading():
        raise ScriptReached

    def work() -> Coroutine[Any, Any, Outcome]:
        return train_async(config, rollout=rollout, judge=judge, observers=observers)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _to_its_end(work)
    return _in_a_thread(work)


async def train_async(
    config: Config,
    *,
    rollout: Rollout | type | None = None,
    judge: JudgeChoice | None = None,
    observers: Iterable[Observer | type[Observer]] = (),
) -> Outcome:
    """`train` as a coroutine. Cancelling it ends the run cleanly."""
    if is_loading():
        raise ScriptReached
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    allow_many_files()
    name_by_uuid()
    guests = [guest_of(observer) for observer in observers]
    changes: dict[str, Any] = {}
    if judge is not None:
        changes["reward__judge"] = judge_setting(judge)
    if rollout is not None:
        changes |= rollout_setting(rollout)
    resolved, origins = config_of(config, **changes)
    prepared = prepare(resolved, origins, _instance(rollout, resolved) if rollout is not None else None)
    start = begin(prepared)
    try:
        return await training.train(prepared, start, guests)
    except asyncio.CancelledError:
        print(how_to_go_on(start.folder), file=sys.stderr)
        raise


def judge_setting(judge: Any) -> Any:
    """As a run's file would have it: worker processes find the judge by that."""
    match judge:
        case str():
            return judge
        case list() | tuple():
            return [judge_setting(one) for one in judge]
        case dict():
            named = judge_setting(judge.get("name"))
            return judge | (named if isinstance(named, dict) else {"name": named})
    reference, options = _named(judge)
    if reference is None:
        raise ConfigError(
            f"worker processes cannot import the judge {_called(judge)}: it is a lambda, inside of a function, or in a "
            "notebook; define it at the top level of a file, and pass it or 'FILE.py:NAME'"
        )
    return {"name": reference, **options} if options else reference


def rollout_setting(rollout: Any) -> dict[str, Any]:
    """What the run's folder remembers of it. One that cannot be found by its name can still be used, though not by
    `freerun resume`."""
    reference, options = _named(rollout)
    name = reference or f"<{_called(rollout)}>"
    if isinstance(rollout, type):  # its options, if any, are the configuration's
        return {"rollout__kind__name": name}
    return {"rollout__kind": {"name": name, **options} if options else name}


def _instance(rollout: Any, config: RunConfig) -> Rollout:
    called = f"the rollout {_called(rollout)}"
    made = with_options(rollout, config.rollout.options, called) if isinstance(rollout, type) else rollout
    return checked(made, called)


def _named(thing: Any) -> tuple[str | None, dict[str, Any]]:
    """By what it can be had again: a name, and the options of an instance. Those of a dataclass are known, and that an
    object without any state has none."""
    kind = type(thing)
    if isinstance(thing, type) or hasattr(thing, "__qualname__"):
        return reference_to(thing), {}
    if is_dataclass(thing):
        return reference_to(kind), {one.name: getattr(thing, one.name) for one in fields(thing) if one.init}
    if kind.__init__ is object.__init__ and not getattr(thing, "__dict__", None):
        return reference_to(kind), {}
    return None, {}


def _called(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    code = getattr(thing, "__code__", None)
    line = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{named.__qualname__}{line}"


def _to_its_end(work: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
    """Ctrl-C cancels it and is raised when all has ended; so does SIGTERM, which then ends the script."""
    terminated: list[bool] = []

    async def stoppable() -> Outcome:
        us = asyncio.current_task()
        assert us is not None

        def stop() -> None:
            terminated.append(True)
            us.cancel()

        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work()

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise SystemExit(128 + signal.SIGTERM) from None


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
    """Ctrl-C comes to the thread that waits here."""
    outcome: Future[Outcome] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def told() -> Outcome:
        us = asyncio.current_task()
        assert us is not None
        running.set_result((asyncio.get_running_loop(), us))
        return await work()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(told()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="freerun")
    thread.start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        loop, task = running.result()
        loop.call_soon_threadsafe(task.cancel)
        try:
            thread.join()
        except KeyboardInterrupt:  # a second time: the step that it is in need not be saved
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
        raise
