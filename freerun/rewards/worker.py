"""The process that judges: `python -m freerun.rewards.worker JUDGE`.

Consumes requests from its standard input and produces one verdict for each on what was its standard output, one at a
time. Waits for the next request; unblocked, for good, by the end of its input, or by its parent's death (on Linux,
even in the middle of a judgement). The judge may print, read its input and start processes: none of it can reach the
pipes. Kept light: nothing heavy is imported but what the judge itself imports.
"""

import ctypes
import math
import os
import signal
import sys
import traceback
from numbers import Real
from typing import BinaryIO

import msgspec

from freerun.core import FreerunError
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import Request, frame, read_frame
from freerun.rewards.verifiers import JudgeFunction, resolve

LONGEST_DETAIL = 20_000
"""Characters. An exception may carry a whole answer in its message."""


def main(judge: str) -> int:
    die_with_parent()
    requests, replies = take_over_pipes()

    def reply(verdict: Verdict) -> None:
        replies.write(frame(verdict))
        replies.flush()

    try:
        function = resolve(judge)
    except FreerunError as error:
        reply(Verdict(None, JudgeReason.ERROR, str(error)))
        return 1
    except (Exception, SystemExit) as error:  # the user's file, being imported
        reply(failure(error))
        return 1
    reply(Verdict(None, JudgeReason.OK))

    decoder = msgspec.msgpack.Decoder(Request)
    while (body := read_frame(requests)) is not None:
        reply(judge_one(function, decoder.decode(body)))
    return 0


def judge_one(function: JudgeFunction, request: Request) -> Verdict:
    try:
        value = function(request.task, request.text)
        if not isinstance(value, Real):
            return Verdict(None, JudgeReason.ERROR, f"a reward must be a number, not {value!r:.200}")
        reward = float(value)
    except (Exception, SystemExit) as error:  # the user's function: whatever it raises is this judgement's failure only
        return failure(error)
    if not math.isfinite(reward):
        return Verdict(None, JudgeReason.ERROR, f"a reward must be a finite number, not {reward}")
    return Verdict(reward, JudgeReason.OK)


def failure(error: BaseException) -> Verdict:
    """One line of what was raised, then the traceback, from the first frame that is not ours."""
    line = traceback.format_exception_only(error)[-1].strip()
    frames = "".join(
        traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    )
    return Verdict(None, JudgeReason.ERROR, f"{line}\n{frames}"[:LONGEST_DETAIL])


def take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for ourselves; give the judge an empty input, and the error stream to print to."""
    requests, replies = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    return open(requests, "rb"), open(replies, "wb")


def die_with_parent() -> None:
    """A judge in a loop never sees the end of its input, so ask the kernel as well (Linux only)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
