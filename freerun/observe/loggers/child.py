"""The process of a logger: `python -m freerun.observe.loggers.child MESSAGES_FD REPLIES_FD`.

Consumes messages; produces what the logger's library makes of them, and a reply to each; waits for the library as long
as it takes. It is unblocked by the controller's end: when that is gone, whatever the reason, the logger has a few
seconds to finish with what it was given.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from freerun.core import FreerunError
from freerun.core.options import with_options
from freerun.core.traces import in_one_line
from freerun.machine.parent import when_parent_ends
from freerun.observe.folder import encode
from freerun.observe.loggers.base import LoggedRun, Logger
from freerun.observe.loggers.known import OBSERVERS
from freerun.observe.loggers.messages import (
    FINISH_S,
    Begin,
    Done,
    End,
    Evaluated,
    Failed,
    Message,
    Note,
    Reply,
    Says,
    Step,
)

_NICER = 5
_LONGEST = 2000
"""Characters of what a library says about its failure."""

_decode = msgspec.json.Decoder(Message)


class Process:
    """A logger, its run, and what is told of them."""

    def __init__(self, begin: Begin, reply: Callable[[Reply], None]) -> None:
        self._reply = reply
        folder = Path(begin.folder)
        kept_in = folder / "loggers" / f"{begin.called}.json"
        self._run = LoggedRun(begin.run, folder, begin.config, begin.step, kept_in, lambda text: reply(Says(text)))
        target = OBSERVERS.find(begin.logger).load()
        self._logger: Logger = with_options(target, begin.options, f"the logger {begin.called}")
        again = not self._logger.replaces
        self._logged_step: int = self._run.kept.get("step", 0) if again else 0
        self._logged_evaluation: int = self._run.kept.get("evaluations", [{}])[-1].get("eval/step", -1) if again else -1
        self._has_failed = False

    def begin(self) -> bool:
        try:
            where = self._logger.begin(self._run)
        except Exception as error:
            traceback.print_exc()
            self._reply(Failed(_told(error), ends=True))
            return False
        self._reply(Says(where))
        self._reply(Done())
        return True

    def take(self, message: Message) -> None:
        try:
            self._tell(message)
        except Exception as error:
            traceback.print_exc()
            if not self._has_failed:
                self._reply(Failed(_told(error), ends=False))
            self._has_failed = True
        self._reply(Done())

    def _tell(self, message: Message) -> None:
        match message:
            case Step(step, figures, samples) if step > self._logged_step:
                self._logger.step(step, figures, samples[: self._logger.samples])
                self._run.keep(step=step)
            case Evaluated(step, figures) if step > self._logged_evaluation:
                before = [row for row in self._run.kept.get("evaluations", []) if row["eval/step"] < step]
                self._run.keep(evaluations=[*before, figures])
                self._logger.evaluated(step, figures, self._run.kept["evaluations"])
            case Note(step, text):
                self._logger.note(step, text)
            case End(outcome):
                self._logger.end(outcome)


def serve(messages: Iterable[bytes], reply: Callable[[Reply], None]) -> int:
    """All messages, the last of which is `End`; when it is missing, whoever wrote them is gone."""
    lines = iter(messages)
    first = _decode.decode(next(lines))
    assert isinstance(first, Begin)
    process = Process(first, reply)
    if not process.begin():
        return 1
    for line in lines:
        message = _decode.decode(line)
        process.take(message)
        if isinstance(message, End):
            return 0
    process.take(End("killed"))
    return 1


def _replies(file: BinaryIO) -> Callable[[Reply], None]:
    def reply(said: Any) -> None:
        with suppress(OSError):  # nobody is there to read it
            file.write(encode(said) + b"\n")

    return reply


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, FreerunError) else in_one_line(error)[:_LONGEST]


def _end_soon() -> None:
    time.sleep(FINISH_S)
    os._exit(1)


def _make_way() -> None:
    """Engines, trainer and controller come first. As a batch job (Linux) it does not take a core from whoever wakes it:
    a controller that feeds five loggers on two cores otherwise stands still for 2 ms a step."""
    os.nice(_NICER)
    if sys.platform == "linux":
        with suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    messages_fd, replies_fd = map(int, sys.argv[1:])
    when_parent_ends(_end_soon)
    for fd in (messages_fd, replies_fd):
        os.set_inheritable(fd, False)  # a library may start processes, too
    _make_way()
    with os.fdopen(messages_fd, "rb") as messages, os.fdopen(replies_fd, "wb", buffering=0) as replies:
        sys.exit(serve(messages, _replies(replies)))


if __name__ == "__main__":
    main()
