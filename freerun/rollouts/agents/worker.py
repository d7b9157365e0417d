"""What an agent's worker does, once forked: run a session, say what came of it, clean up, run the next.

Consumes requests and produces a result for each, then what is left of the session, one session at a time. Waits for
the next request; unblocked, for good, by the end of its input or by the forkserver's death. All sessions of a worker
share an event loop, so that clients which the agent's file made at its top level stay usable; between two sessions the
loop stands still, and nothing of the agent's runs.
"""

import asyncio
import contextlib
import faulthandler
import os
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

from freerun.core import FreerunError, Task
from freerun.core.traces import describe, raised_at
from freerun.machine.forkserver import flush_standard_streams
from freerun.machine.frames import MARK_BYTES, frame, read_frame, unframed
from freerun.rollouts.agents.leftovers import Surroundings
from freerun.rollouts.agents.number import reward_of
from freerun.rollouts.agents.protocol import Left, SessionRequest
from freerun.rollouts.agents.session import AgentSession
from freerun.rollouts.agents.spec import AgentResult, SessionFailure

AgentFunction = Callable[[Task, AgentSession], Awaitable[Any]]


def run_sessions(agent: AgentFunction, requests: BinaryIO, replies: BinaryIO) -> None:
    faulthandler.enable()  # a crash in a library's C code then says which line of the agent it came from
    prefer_for_the_oom_killer()
    own, loop = os.getpid(), asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    surroundings = Surroundings.now()
    while mark := requests.read(MARK_BYTES):
        if (body := read_frame(requests)) is None:
            return
        result, broken = run_one(loop, agent, unframed(body, SessionRequest))
        if os.getpid() != own:
            os._exit(0)  # a child that the agent forked, and that came back as if it were the agent
        flush_standard_streams()
        replies.write(mark + frame(result))
        replies.flush()
        left = broken or surroundings.restore(loop)
        replies.write(frame(left))
        replies.flush()
        if left.what:
            return


def run_one(
    loop: asyncio.AbstractEventLoop, agent: AgentFunction, request: SessionRequest
) -> tuple[AgentResult, Left | None]:
    """Its result; and what is broken beyond repair, if anything is."""
    try:
        return loop.run_until_complete(ended(agent, request)), None
    except BaseException as error:  # another task's SystemExit or KeyboardInterrupt, or the loop was stopped
        return failed(error), Left(f"an event loop that was broken off ({type(error).__name__})")


async def ended(agent: AgentFunction, request: SessionRequest) -> AgentResult:
    await asyncio.sleep(0)  # connections that were closed between two sessions are found out first
    try:
        value = await agent(request.task, AgentSession(request.access))
    except BaseException as error:  # SystemExit, KeyboardInterrupt and a CancelledError of its own making included
        return failed(error)
    try:
        return AgentResult(None if value is None else reward_of(value))
    except Exception as error:
        said = f"returned {error}: an agent returns a number or None"
        return AgentResult(failure=SessionFailure.BAD_RESULT, detail=said)


def failed(error: BaseException) -> AgentResult:
    said = f"{raised_at(error)}{error}" if isinstance(error, FreerunError) else describe(error)
    return AgentResult(failure=SessionFailure.ERROR, detail=said)


def prefer_for_the_oom_killer() -> None:
    """Where memory runs out, an agent goes, and not the run."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
