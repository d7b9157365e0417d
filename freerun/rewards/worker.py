"""What a worker does, once forked: read a request, judge it, write the verdict.

Consumes requests and produces one verdict for each, one at a time. Waits for the next request; unblocked, for good, by
the end of its input, or by the forkserver's death (on Linux, even in the middle of a judgement). The judges may print,
read their input and start processes: none of it can reach the socket.
"""

import math
import os
import traceback
from dataclasses import replace
from numbers import Real
from typing import Any, BinaryIO

from freerun.core import FreerunError
from freerun.core.traces import LONGEST_LINE, in_one_line
from freerun.machine.frames import MARK_BYTES, frame, read_frame, unframed
from freerun.rewards.base import Judged, JudgedSample, JudgeReason, Verdict, total
from freerun.rewards.judges import JudgeFunction, resolve
from freerun.rewards.protocol import Request
from freerun.rewards.spec import JudgeSpec
from freerun.rewards.userfile import SampleJudge

Judges = list[tuple[JudgeSpec, JudgeFunction]]

LONGEST_DETAIL = LONGEST_LINE


def load(parts: list[JudgeSpec]) -> Judges:
    return [(part, resolve(part)) for part in parts]


def sees_samples(judges: Judges) -> bool:
    return any(isinstance(function, SampleJudge) for _, function in judges)


def judge_until_end(requests: BinaryIO, replies: BinaryIO, judges: Judges) -> None:
    own = os.getpid()
    while mark := requests.read(MARK_BYTES):
        if (body := read_frame(requests)) is None:
            return
        verdict = judge_all(judges, unframed(body, Request))
        if os.getpid() != own:
            os._exit(0)  # a child that a judge forked, and that came back as if it were the judge
        replies.write(mark + frame(verdict))
        replies.flush()


def judge_all(judges: Judges, request: Request) -> Verdict:
    """The weighted sum of all parts. The first one that fails is the failure of all."""
    verdicts = []
    for part, function in judges:
        verdict = judge_one(function, request)
        if verdict.reward is None:
            return replace(verdict, detail=f"{part.name}: {verdict.detail}") if len(judges) > 1 else verdict
        verdicts.append(replace(verdict, reward=part.weight * verdict.reward))
    return total(verdicts)


def judge_one(function: JudgeFunction, request: Request) -> Verdict:
    try:
        more = (whole_sample(request),) if isinstance(function, SampleJudge) else ()
        value = function(request.task, request.text, *more)
        if hasattr(value, "__await__"):
            value = finished(value)
        judged = value if isinstance(value, Judged) else Judged(value)
        if not isinstance(judged.reward, Real):
            return Verdict(None, JudgeReason.ERROR, f"a reward must be a number, not {judged.reward!r:.200}")
        reward = float(judged.reward)
    except MemoryError:  # it may hold all it got: another worker is to try
        return Verdict(None, JudgeReason.CRASH, "the judge wants more memory than a worker may have")
    except (Exception, SystemExit) as error:  # the user's function: whatever it raises is this judgement's failure only
        return failure(error)
    if not math.isfinite(reward):
        return Verdict(None, JudgeReason.ERROR, f"a reward must be a finite number, not {reward}")
    return Verdict(reward, judged.reason, judged.detail[:LONGEST_DETAIL])


def whole_sample(request: Request) -> JudgedSample:
    """The sample to judge, with the other samples of its group."""
    sample = replace(request.group[request.index]) if request.group else JudgedSample(request.text)
    sample.index, sample.group = request.index, request.group or [sample]
    return sample


_runners: list[Any] = []


def finished(value: Any) -> Any:
    """What an async judge comes to, in one loop for all its judgements: it may keep connections open."""
    import asyncio

    async def to_its_end() -> Any:
        return await value

    if not _runners:
        _runners.append(asyncio.Runner())
    return _runners[0].run(to_its_end())


def failure(error: BaseException) -> Verdict:
    """One line of what was raised; then, unless it is one of ours and says all, the traceback from the judge's own
    frame."""
    if isinstance(error, FreerunError):
        return Verdict(None, JudgeReason.ERROR, str(error)[:LONGEST_DETAIL])
    line = in_one_line(error)
    frames = "".join(
        traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    )
    return Verdict(None, JudgeReason.ERROR, f"{line}\n{frames}"[:LONGEST_DETAIL])
