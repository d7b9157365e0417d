"""One logger's process, as the controller has it: fed through a pipe that is never waited for, watched, and ended.

Two pipes: messages to the process, replies from it. Nobody waits when the first is full: up to a bound the rest is
buffered, and past it messages are dropped. A logger that has not replied for long hangs, which is said once; should it
wake up, it goes on with what is in the buffer.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from freerun.core.resolve import IMPORT_PATH, import_path
from freerun.machine.processes import ChildProcess, describe_exit, pipe_reader
from freerun.observe.loggers.messages import FINISH_S, Done, Failed, Reply, Says

BUFFER = 4 << 20
"""Bytes that wait for one logger at most: those of a thousand steps and more."""
SILENT_S = 30.0
"""A logger that has not dealt with a message for so long hangs."""
_HUNG_FINISH_S = 1.0
"""How long a logger that hangs has to finish."""
_LAST_WORDS_S = 1.0
"""How long to read what an ended process has said: something that it started may hold the pipe open."""

_decode = msgspec.json.Decoder(Reply)


class LoggerProcess:
    def __init__(self, called: str, log: Path, tell: Callable[[str], None]) -> None:
        self._called, self._log, self._tell = called, log, tell
        self._child: ChildProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pipe: asyncio.WriteTransport | None = None
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._hangs = self._has_hung = self._refused = self._ending = False
        self.dropped = 0
        """Messages that did not fit."""

    async def start(self, begin: bytes) -> None:
        """It need not be ready for what is sent next."""
        their_messages, messages = os.pipe()
        replies, their_replies = os.pipe()
        try:
            self._child = await ChildProcess.start(
                *(f"logger {self._called}", "freerun.observe.loggers.child", str(their_messages), str(their_replies)),
                environment={IMPORT_PATH: import_path()},
                log=self._log,
                pass_fds=(their_messages, their_replies),
            )
        finally:
            os.close(their_messages)
            os.close(their_replies)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(messages, "wb", buffering=0)
        self._pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
        reading = asyncio.create_task(self._read(*await pipe_reader(replies)))
        self._watching = asyncio.create_task(self._watch(self._child, reading))
        self.send(begin)

    def send(self, line: bytes, anyway: bool = False) -> None:
        """At once; what does not fit is dropped, unless it is to be sent `anyway`."""
        assert self._pipe
        if self._pipe.is_closing():
            return
        if self._pipe.get_write_buffer_size() + len(line) > BUFFER and not anyway:
            self.dropped += 1
            return
        self._pipe.write(line + b"\n")
        self._unanswered += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SILENT_S, self._silent)

    async def end(self, last: bytes) -> None:
        """It has a few seconds to deal with everything that was sent, and `last`."""
        if self._child is None or self._pipe is None or self._watching is None:
            return
        self._ending = self._child.returncode is None
        await self._child.end(lambda: self.send(last, anyway=True), _HUNG_FINISH_S if self._hangs else FINISH_S)
        if not self._pipe.is_closing():
            self._pipe.abort()
        await self._watching
        if self.dropped:
            self._tell(f"the logger {self._called} was too slow, and missed {self.dropped} messages{self._see}")

    async def _read(self, replies: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        try:
            while line := await replies.readline():
                with suppress(msgspec.DecodeError):  # whoever else has that pipe
                    self._answered(_decode.decode(line))
        finally:
            pipe.close()

    async def _watch(self, child: ChildProcess, reading: asyncio.Task[None]) -> None:
        """Until the process has ended, and its last words are read."""
        await child.wait()
        await asyncio.wait({reading}, timeout=_LAST_WORDS_S)
        reading.cancel()
        if self._timer:
            self._timer.cancel()
        code = child.returncode or 0
        if self._refused or (self._ending and (not code or self._hangs)):  # it is known, or as it should be
            return
        how = f"did not finish: it {describe_exit(code)}"
        if not self._ending:
            how = f"{describe_exit(code)}, and the run goes on without it"
        self._tell(f"the logger {self._called} {how}{self._see}")

    def _answered(self, reply: Reply) -> None:
        match reply:
            case Done():
                self._unanswered -= 1
                self._hangs = False
                self._wait_again()
            case Says(text):
                self._tell(f"{self._called}: {text}")
            case Failed(text, ends=True):
                self._refused = True
                self._tell(f"the logger {self._called} cannot begin, and the run goes on without it: {text}{self._see}")
            case Failed(text):
                self._tell(f"the logger {self._called} failed, and goes on with what comes next: {text}{self._see}")

    def _wait_again(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._unanswered:
            self._timer = asyncio.get_running_loop().call_later(SILENT_S, self._silent)

    def _silent(self) -> None:
        self._timer = None
        if self._ending:
            return
        self._hangs = True
        if not self._has_hung:
            self._has_hung = True
            self._tell(
                f"the logger {self._called} has not answered for {SILENT_S:.0f} s; the run goes on, and does not wait "
                f"for it{self._see}"
            )

    @property
    def _see(self) -> str:
        return f"; its log is {self._log}"
