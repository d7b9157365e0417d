"""What a judge is to the rest of Freerun."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from freerun.core import Task


class JudgeReason(StrEnum):
    """How a judgement ended."""

    OK = "ok"
    """There is a reward."""
    TIMEOUT = "timeout"
    """It ran past its deadline, and its process was killed."""
    CRASH = "crash"
    """Its process died."""
    ERROR = "error"
    """The reward function raised, or returned something that is not a finite number."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """A reward, or None and the reason why there is none. A failure is never silently a zero."""

    reward: float | None
    reason: JudgeReason
    detail: str = ""
    """The traceback, or the last words of a process that died."""


class Judge(Protocol):
    async def judge(self, task: Task, text: str) -> Verdict: ...
