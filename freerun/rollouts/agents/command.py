"""`rollout.command`: an agent that is a program, in any language.

The program finds the policy in its environment, where the SDKs of OpenAI and Anthropic look for it, and the task, the
reference answer included (it is the user's own program), as JSON on its standard input and in the file FREERUN_TASK.
Its reward is the last line of what it prints, if that is a number or {"reward": a number}; otherwise the judge decides.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from freerun.core import FreerunError, Task
from freerun.machine.processes import describe_exit
from freerun.rollouts.agents.session import AgentSession

MOST_BYTES = 1 << 16
"""Kept of the end of what a program prints."""


async def run(task: Task, session: AgentSession, command: Sequence[str]) -> Any:
    given = json.dumps(task_of(task)).encode()
    with tempfile.NamedTemporaryFile(prefix="freerun-task-", suffix=".json") as file:
        file.write(given)
        file.flush()
        printed, errors, code = await _ended(command, environment(session, file.name), given)
    if code:
        last = last_line(errors) or last_line(printed)
        raise FreerunError(f"{command[0]} {describe_exit(code)}{': ' + last if last else ''}")
    return reward_in(printed)


async def _ended(command: Sequence[str], environ: Mapping[str, str], given: bytes) -> tuple[bytes, bytes, int]:
    """The ends of what it printed, which goes to the log as well, and its code."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    printed, errors, _ = await asyncio.gather(_tail(process.stdout), _tail(process.stderr), _feed(process.stdin, given))
    return printed, errors, await process.wait()


def environment(session: AgentSession, task_file: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_AUTH_TOKEN"}
    return {
        **inherited,  # without a token of the user's own, which Anthropic's client would send along
        "OPENAI_BASE_URL": session.base_url,
        "OPENAI_API_BASE": session.base_url,  # older clients
        "OPENAI_API_KEY": session.api_key,
        "OPENAI_MODEL": session.model,
        "ANTHROPIC_BASE_URL": session.anthropic_url,
        "ANTHROPIC_API_KEY": session.api_key,
        "ANTHROPIC_MODEL": session.model,
        "FREERUN_TASK": task_file,
        "FREERUN_SESSION_URL": session.base_url,
    }


def task_of(task: Task) -> dict[str, Any]:
    return {key: value for key, value in asdict(task).items() if key != "prompt_tokens"}


def reward_in(printed: bytes) -> Any:
    """What the last line says. What was meant as a reward and is none, such as NaN, is for the worker to refuse."""
    try:
        value = json.loads(last_line(printed))
    except ValueError:
        return None
    if isinstance(value, dict):
        return value.get("reward")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def last_line(printed: bytes) -> str:
    lines = printed.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


async def _tail(stream: asyncio.StreamReader) -> bytes:
    tail = b""
    while chunk := await stream.read(MOST_BYTES):
        tail = (tail + chunk)[-MOST_BYTES:]
        sys.stderr.buffer.write(chunk)
        sys.stderr.flush()
    return tail


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it does not read its input
        stdin.write(given)
        await stdin.drain()
    stdin.close()
    with contextlib.suppress(ConnectionError):
        await stdin.wait_closed()
