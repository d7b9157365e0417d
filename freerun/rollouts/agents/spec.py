"""Which code a session runs, as plain data: it travels to the process that runs it.

Whatever the user writes (`rollout.agent`, `command`, `env`, `kind: tools`) comes to the same: an async function
`run(task, session, **options)` that talks to the policy at `session.base_url`, and returns a reward, or None for the
judge to decide.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentSpec:
    reference: str
    """`FILE.py:run` or `package.module:run`."""
    called: str
    """For messages: `the agent my_agent.py:run`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""


class SessionFailure(StrEnum):
    """Why a try of a member came to nothing. It is tried again, then left out of its group; it is never a 0."""

    ERROR = "error"
    """The agent raised, or its program ended with a code other than 0."""
    DEADLINE = "deadline"
    """It was not done in `rollout.deadline_s`, and was killed."""
    CRASH = "crash"
    """Its process died."""
    BAD_RESULT = "bad_result"
    """It returned what is no reward: a text, NaN."""
    NO_CALL = "no_call"
    """It never asked the policy for anything, so there is nothing to learn from."""


@dataclass(frozen=True, slots=True)
class Access:
    """How an agent's process reaches the policy."""

    base_url: str
    """Where the OpenAI dialects are, such as `http://127.0.0.1:4711/KEY/v1`. It ends in the session's key and /v1, so
    that clients that send no key work too; Anthropic's client is given it without the /v1."""
    api_key: str
    """The session's: nobody can guess it, and it is worth nothing once the session has ended."""
    member: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What a try came to."""

    reward: float | None = None
    """What it returned; None: it left that to `session.reward`, or to the judge."""
    failure: SessionFailure | None = None
    detail: str = ""
    """For a failure, one line: `my_agent.py:3: KeyError: 'answer'`."""
