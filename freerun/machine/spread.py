"""Work on many items by several forked processes: each has all that this one has in memory, and sends back its part.

Consumes a list; produces what is made of it, part by part, in its order. Where there are few items, one processor, or
other threads (a lock that one of them holds would be held for ever in a fork), it is done here.
"""

import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, TypeVar

from freerun.core import FreerunError
from freerun.machine.host import processors
from freerun.machine.parent import kill_with_parent

T = TypeVar("T")
U = TypeVar("U")

_PART = 1_024
"""Items that are sent back together."""
_MOST = 16
_LENGTH = struct.Struct("<Q")


def spread(make: Callable[[Sequence[T]], list[U]], items: Sequence[T]) -> Generator[list[U], None, None]:
    """`make` of each part of the items. What it raises is raised here, that of the first part first."""
    parts = [items[start : start + _PART] for start in range(0, len(items), _PART)]
    workers = min(processors(), len(parts) // 2, _MOST)
    if workers < 2 or other_threads() or sys.platform != "linux":
        yield from map(make, parts)
        return
    with ExitStack() as stack:
        pipes = [stack.enter_context(_forked(make, parts[first::workers], stack)) for first in range(workers)]
        for index in range(len(parts)):
            yield _received(pipes[index % workers])


def other_threads() -> bool:
    return threading.active_count() > 1


def _forked(make: Callable[[Sequence[T]], list[U]], parts: Sequence[Sequence[T]], stack: ExitStack) -> BinaryIO:
    """A process that sends what it makes of each of these parts; it ends with the stack, and with us."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            kill_with_parent()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is our parent's to act on
            with os.fdopen(writing, "wb") as pipe:
                for part in parts:
                    _send(pipe, _outcome(make, part))
        finally:
            os._exit(0)
    os.close(writing)
    stack.callback(os.waitpid, child, 0)
    stack.callback(os.kill, child, signal.SIGKILL)
    return os.fdopen(reading, "rb")


def _outcome(make: Callable[[Sequence[T]], list[U]], part: Sequence[T]) -> tuple[list[U], Exception | None]:
    try:
        return make(part), None
    except Exception as error:  # it is raised where the parts are put together
        return [], error


def _send(pipe: BinaryIO, outcome: Any) -> None:
    told = pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(told)))
    pipe.write(told)
    pipe.flush()


def _received(pipe: BinaryIO) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise FreerunError("a process that read a part of the data was killed, most likely for want of memory")
    made, error = pickle.loads(pipe.read(*_LENGTH.unpack(head)))
    if error:
        raise error
    return made
