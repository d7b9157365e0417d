"""One worker process as the service sees it: start it, ask it, end it and all its children."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import BinaryIO, Self

import msgspec

from freerun.core import RewardError
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import HEADER_BYTES

START_TIMEOUT_S = 120.0
"""A judge that imports torch from a cold disk needs a while; one that hangs while it is imported must not hang us."""
END_TIMEOUT_S = 0.5
"""Killed processes close their pipes at once. A child that left our group and kept one open is not waited for."""
TAIL_BYTES = 4096

_decoder = msgspec.msgpack.Decoder(Verdict)


class WorkerProcess:
    """Consumes framed requests, produces verdicts, one at a time. Waits for the process; unblocked by its verdict, by
    the deadline, or by its end, after either of which it is of no more use: `end` it."""

    def __init__(self, process: Process, log: BinaryIO | None) -> None:
        self._process = process
        self._tail = bytearray()
        self._reading_errors = asyncio.create_task(self._read_errors(log))
        self._killed = False

    @classmethod
    async def start(cls, judge: str, log: BinaryIO | None) -> Self:
        """Returns when the judge is loaded; RewardError when it cannot be."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "freerun.rewards.worker", judge),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # its own process group, to kill with all its children
        )
        worker = cls(process, log)
        try:
            ready = await worker._reply(START_TIMEOUT_S)
        except BaseException:
            await worker.end()
            raise
        if ready.reason is not JudgeReason.OK:
            await worker.end()
            line, _, rest = ready.detail.partition("\n")
            raise RewardError(f"the judge {judge} cannot be loaded: {line}", rest)
        return worker

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def judge(self, request: bytes, timeout_s: float) -> Verdict:
        assert self._process.stdin is not None
        self._process.stdin.write(request)  # into a dead worker's pipe too: what it means, the reply tells
        return await self._reply(timeout_s)

    async def _reply(self, timeout_s: float) -> Verdict:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                header = await self._process.stdout.readexactly(HEADER_BYTES)
                body = await self._process.stdout.readexactly(int.from_bytes(header, "big"))
                return _decoder.decode(body)
        except TimeoutError:
            if self.alive:
                return Verdict(None, JudgeReason.TIMEOUT, f"no verdict after {timeout_s:g} s: killed")
            return await self._crash()  # a child that it forked kept the pipe open
        except (asyncio.IncompleteReadError, ConnectionError):
            return await self._crash()

    async def _crash(self) -> Verdict:
        await self.end()
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        last_words = self._tail.decode(errors="replace").strip()
        return Verdict(None, JudgeReason.CRASH, f"the reward worker died: {how}\n{last_words}".strip())

    async def end(self) -> None:
        """Kill the process and whatever it started. Harmless when it is dead already, and when called again."""
        if not self._killed:  # once: later the number may be somebody else's
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left; on macOS, only zombies left
                os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.stdout.read()  # to its end, so that its transport closes
                await asyncio.wait({self._reading_errors})
                await self._process.wait()
        self._reading_errors.cancel()

    async def _read_errors(self, log: BinaryIO | None) -> None:
        """Keep the last words, and copy all to the log. A judge that prints can never fill the pipe and block."""
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65536):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if log is not None:
                with contextlib.suppress(OSError):  # a full disk is no reason to stop judging
                    log.write(chunk)
