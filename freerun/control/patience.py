"""Nothing hangs silently: a wait that takes long says what it waits for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def patiently(work: Coroutine[Any, Any, T], what: str, patience_s: float, say: Callable[[str], None]) -> T:
    """Await `work`; every `patience_s` seconds that it is not done, say so."""
    task = asyncio.ensure_future(work)
    waited_s = 0.0
    try:
        while not (await asyncio.wait({task}, timeout=patience_s))[0]:
            waited_s += patience_s
            say(f"still waiting for {what} after {waited_s:.0f} s")
        return task.result()
    finally:
        task.cancel()
