"""The server of another maker as a child process: its output in our log, its end noticed, and ended with us.

`machine/keeper.py` stands between: whatever the server starts ends with this process, killed with -9 or not.
"""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from typing import Never, Self

from freerun.core import ProcessDied
from freerun.engines.external.base import Command
from freerun.machine.keeper import SIGNALLED
from freerun.machine.processes import ChildProcess, describe_exit

_END_S = 5.0
_LAST_WORDS_S = 1.0
_TAIL_LINES = 2_000
"""Between a server's error and its end there may be one for each request."""
_SHOWN_LINES = 30
_CHUNK_BYTES = 2**16
_CAUSE = re.compile(
    r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): (?!.*root cause).*|(?<=Value error, ).*?(?= \[type=|$))"
)
"""How Python ends a traceback, and pydantic's line below it. A server of several processes repeats in each that another
one failed."""


class Program:
    """An async context manager; leaving it ends the server and all that it started.

    Consumes the server's output; produces it in our own, where it goes to the log.
    """

    def __init__(self, name: str, command: Command) -> None:
        self._name = name
        self._command = command
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    async def __aenter__(self) -> Self:
        self._child = await ChildProcess.start(
            *(self._name, "freerun.machine.keeper", *self._command.argv),
            environment=self._command.environment,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._copying = asyncio.create_task(self._copy_output())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._child.end(self._child.close_lifeline, _END_S)
        self._copying.cancel()

    async def watch(self) -> Never:
        """Never returns: raises when the server has ended."""
        code = await self._child.process.wait()
        await asyncio.wait({self._copying}, timeout=_LAST_WORDS_S)
        how = describe_exit(SIGNALLED - code if code > SIGNALLED else code)
        said = "" if code > SIGNALLED else self._cause()
        raise ProcessDied(f"the {self._name} server {how}{said}", "\n".join(list(self._tail)[-_SHOWN_LINES:]))

    def _cause(self) -> str:
        """The last error that its output names."""
        found = [cause[1].strip() for line in self._tail if (cause := _CAUSE.search(line))]
        return f": {found[-1]}" if found else ""

    async def _copy_output(self) -> None:
        output, rest = self._child.process.stdout, b""
        assert output is not None
        while piece := await output.read(_CHUNK_BYTES):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            *lines, rest = (rest[-_CHUNK_BYTES:] + piece).split(b"\n")
            self._tail.extend(line.decode(errors="replace") for line in lines)
