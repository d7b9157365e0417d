"""What a user's code raises, as data. An engine's failure is none of theirs, and goes on up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from freerun.core import EngineError
from freerun.core.traces import describe

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    """`mine.py:3: KeyError: 'answer'`."""


async def guarded(work: Callable[[], Awaitable[T]]) -> T | Failure:
    """What it comes to, or what it raised. Being cancelled is neither; a cancellation of its own making, which would
    vanish without a trace, is a failure."""
    try:
        return await work()
    except EngineError:
        raise
    except asyncio.CancelledError as error:
        us = asyncio.current_task()
        if us is not None and us.cancelling():
            raise
        return Failure(describe(error))
    except (Exception, SystemExit) as error:
        return Failure(describe(error))
