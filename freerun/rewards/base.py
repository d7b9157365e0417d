"""What a judge is to the rest of Freerun."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from freerun.core import FinishReason, Task
from freerun.core.task import Message


class JudgeReason(StrEnum):
    """How a judgement ended."""

    OK = "ok"
    """There is a reward."""
    TIMEOUT = "timeout"
    """It ran past its deadline, and its process was killed."""
    CRASH = "crash"
    """Its process died."""
    ERROR = "error"
    """The reward function raised, or returned something that is not a finite number, or too large a one."""
    UNPARSEABLE = "unparseable"
    """There is a reward, of an answer in which nothing could be read."""
    OWN = "own"
    """There is a reward: the rollout brought it, and nobody was asked."""
    NO_ANSWER = "no_answer"
    """The rollout failed this sample, so there was nothing to judge."""


@dataclass(slots=True, frozen=True)
class Judged:
    """What a judge function may return instead of a number: a reward, and what there is to say about it."""

    reward: float
    reason: JudgeReason = JudgeReason.OK
    """OK or UNPARSEABLE: a judgement that failed has no reward, and raises."""
    detail: str = ""


@dataclass(slots=True, frozen=True)
class Verdict:
    """A reward, or None and the reason why there is none. A failure is never silently a zero."""

    reward: float | None
    reason: JudgeReason
    detail: str = ""
    """The traceback, or the last words of a process that died."""


LARGEST = 3.4e38
"""What training computes with holds nothing larger: 32 bits."""


def total(verdicts: Sequence[Verdict]) -> Verdict:
    """The sum of several: of a failure, if there is one, none; unparseable if one of them is. A sum beyond all measure
    is a failure too."""
    for verdict in verdicts:
        if verdict.reward is None:
            return verdict
    reward = sum(verdict.reward or 0.0 for verdict in verdicts)
    if not abs(reward) <= LARGEST:
        return Verdict(None, JudgeReason.ERROR, f"a reward must be a number of at most {LARGEST:g}, not {reward:g}")
    unparseable = any(verdict.reason is JudgeReason.UNPARSEABLE for verdict in verdicts)
    return Verdict(
        reward,
        JudgeReason.UNPARSEABLE if unparseable else JudgeReason.OK,
        "\n".join(verdict.detail for verdict in verdicts if verdict.detail),
    )


@dataclass(slots=True)
class JudgedSample:
    """One answer, as a judge sees it that asks for the whole `sample`."""

    text: str
    """What the policy said last."""
    messages: list[Message] = field(default_factory=list)
    """The whole conversation, the policy's turns included."""
    finish: FinishReason = FinishReason.STOP
    num_tokens: int = 0
    """Tokens that the policy sampled."""
    index: int = 0
    """Its place in the group."""
    group: list["JudgedSample"] = field(default_factory=list, repr=False, compare=False)
    """All answers to the same task, this one included; their own `group` is empty."""


class Judge(Protocol):
    """What a user writes: a function, or a class with this method. A parameter named `sample` gets a JudgedSample."""

    def __call__(self, task: Task, text: str) -> Any:
        """A number, or a Judged; or something to await that comes to one."""
        ...


class GroupJudge(Protocol):
    """The judge of a run: whatever judges the answers of a group, wherever it does."""

    @property
    def waiting(self) -> int:
        """Answers that nobody has begun to judge."""
        ...

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        """A verdict on each of these answers to a task. A plain text is enough where no judge asks for more."""
        ...
