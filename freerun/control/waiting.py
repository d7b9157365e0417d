"""Ways to wait for others, none of them silent: a long wait says what for, a failure beside us is ours at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

LAST_STEP_S, FAILING_S = 1.0, 20.0
"""How long a run that ends by a failure may take to finish the step it is in, so that what it saves belongs together;
the second where the trainer is most likely well. The failure may be why the step does not end."""

_failing: WeakSet[asyncio.Task[Any]] = WeakSet()
"""Tasks in whose background something has failed."""


async def patiently(work: Coroutine[Any, Any, T], what: str, patience_s: float, say: Callable[[str], None]) -> T:
    """Await `work`. Say so when it is not done after `patience_s` seconds, and whenever that time has doubled."""
    task = asyncio.ensure_future(work)
    waited_s, more_s = 0.0, patience_s
    try:
        while not (await asyncio.wait({task}, timeout=more_s))[0]:
            waited_s += more_s
            more_s = waited_s
            say(f"still waiting for {what} after {waited_s:.0f} s")
        return task.result()
    finally:
        task.cancel()


def was_interrupted(end: BaseException) -> bool:
    """Whether this task ends because somebody has cancelled it, and not by a failure, its own or in its background."""
    return isinstance(end, asyncio.CancelledError) and asyncio.current_task() not in _failing


def last_step_s() -> float | None:
    """How long this task, which is being cancelled, may take to finish what it is in: where it was interrupted, as long
    as that takes (None)."""
    return LAST_STEP_S if asyncio.current_task() in _failing else None


async def unbroken(work: Coroutine[Any, Any, T], grace_s: Callable[[], float | None] = last_step_s) -> T:
    """Await `work`, which should not be left half done: cancelled, it may still come to its end for `grace_s` seconds,
    as asked for then, or for as long as that takes (None). Cancelled once more, it is left.

    If it fails in that time, its failure is raised instead.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_s())
        if task.done() and not task.cancelled():
            task.result()
        raise
    finally:
        task.cancel()


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside the block. Its failure fails the block with the first cause; it ends with the block."""
    block = asyncio.current_task()
    assert block

    async def failing() -> None:
        try:
            await work
        except Exception:
            _failing.add(block)
            raise

    try:
        async with asyncio.TaskGroup() as both:
            beside = both.create_task(failing())
            yield
            beside.cancel()
    except BaseExceptionGroup as errors:
        raise _first_cause(errors) from None
    finally:
        work.close()  # it may not have begun


async def together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """All at the same time. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as all_of_them:
            tasks = [all_of_them.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise _first_cause(errors) from None
    return [task.result() for task in tasks]


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
