"""What a controller may ask a node about its machine, and the answers.

A node answers only whoever knows the key, and such a one may start any process here: there is nothing to hide from it.
"""

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from freerun.machine.scratch import memory_folder

_OPEN_S = 30.0
"""How long a port is kept open for others to try."""
_CONNECT_S = 3.0
_MOST = 2**28
LONGEST_TEXT = 4096
"""Bytes of a file whose text is an answer."""


class Questions:
    """Each question is a method that takes text and answers with text."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: list[asyncio.Server] = []
        self._known: dict[str, Callable[[str], Awaitable[str]]] = {
            "free port": self._free_port,
            "open port": self._open_port,
            "reach": self._reach,
            "pull": self._pull,
            "path": self._path,
            "clock": self._clock,
            "shared memory": self._shared_memory,
        }

    async def answer(self, what: str, argument: str) -> str:
        """Whatever goes wrong is the answer, behind an exclamation mark."""
        try:
            return await self._known[what](argument)
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            silent = "no answer" if isinstance(error, TimeoutError) else type(error).__name__
            return f"!{getattr(error, 'strerror', None) or str(error) or silent}"

    def close(self) -> None:
        for server in self._open:
            server.close()

    async def _free_port(self, _: str) -> str:
        """One that nobody listens on now."""
        with socket.create_server((self._address, 0)) as probe:
            return str(probe.getsockname()[1])

    async def _open_port(self, _: str) -> str:
        """One where this machine sends zeros to whoever connects, as many as asked for, for a while."""
        server = await asyncio.start_server(_send_zeros, self._address, 0)
        self._open.append(server)
        asyncio.get_running_loop().call_later(_OPEN_S, server.close)
        return str(server.sockets[0].getsockname()[1])

    async def _reach(self, where: str) -> str:
        """Seconds that a connection to HOST:PORT takes."""
        host, _, port = where.rpartition(":")
        begun_s = time.monotonic()
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        return str(time.monotonic() - begun_s)

    async def _pull(self, where: str) -> str:
        """Bytes a second from HOST:PORT, an open port of another machine; `where` ends with how many bytes."""
        place, _, wanted = where.partition(" ")
        host, _, port = place.rpartition(":")
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
        writer.write(min(int(wanted), _MOST).to_bytes(8, "big"))
        begun_s, came = time.monotonic(), 0
        async with asyncio.timeout(_OPEN_S):
            while piece := await reader.read(2**20):
                came += len(piece)
        writer.close()
        return str(came / max(time.monotonic() - begun_s, 1e-9))

    async def _path(self, path: str) -> str:
        """What is at a path: JSON with `exists`, and the text of a small file."""
        found = Path(path)
        short = found.is_file() and found.stat().st_size <= LONGEST_TEXT
        text = found.read_text(errors="replace") if short else None
        return json.dumps({"exists": found.exists(), "text": text})

    async def _clock(self, _: str) -> str:
        """The time of day."""
        return str(time.time())

    async def _shared_memory(self, _: str) -> str:
        """Bytes that are free where processes of a machine share memory, and the folder, as JSON."""
        folder = memory_folder()
        return json.dumps([shutil.disk_usage(folder).free, str(folder)])


async def _send_zeros(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        left = min(int.from_bytes(await reader.readexactly(8), "big"), _MOST)
        zeros = bytes(2**20)
        while left > 0:
            writer.write(zeros[: min(left, len(zeros))])
            left -= len(zeros)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
