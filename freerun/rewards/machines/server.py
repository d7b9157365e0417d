"""The judge process of a machine: its pools of workers, and a socket at which the run's controller has them judge.

Consumes requests, produces a verdict for each, in whatever order they come. It answers whoever knows the run's key.
When its pools can judge no more, it ends with the cause, and the controller starts it again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from importlib import metadata
from typing import BinaryIO

from freerun.core import ConfigError
from freerun.machine.nodes.link import Link, LinkLost, LinkRefused, admit
from freerun.rewards.judges import BUILT_IN, JUDGES, check_parts
from freerun.rewards.machines.messages import HEARTBEAT_S, About, Here, Judgement, ToJudge
from freerun.rewards.pools import JudgePool, PoolSettings, open_here


@dataclass(slots=True, frozen=True)
class JudgeSettings:
    host: str
    """The address to listen on."""
    pools: dict[int, PoolSettings]
    """By their numbers."""
    memory_share: float | None = None
    """How much of the GPU's memory a reward model may take."""


async def serve_judges(settings: JudgeSettings, key: str, ready: Callable[[str], None], log: BinaryIO) -> None:
    """Until a pool fails. `ready` is told HOST:PORT when every worker is there; `log` takes what judges print."""
    for pool in settings.pools.values():
        _check(pool)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_here(list(settings.pools.values()), log))
        judges = _Judges(dict(zip(settings.pools, opened, strict=True)), key.encode())
        server = await stack.enter_async_context(await asyncio.start_server(judges.admit, settings.host, 0))
        ready(f"{settings.host}:{server.sockets[0].getsockname()[1]}")
        try:
            await judges.failed
        finally:
            server.close()
            await judges.close()


def _check(pool: PoolSettings) -> None:
    """Refuse judges that cannot run on this machine."""
    for judge in pool.judges:
        file = None if judge.name in BUILT_IN else JUDGES.find(judge.name).file
        if file is not None and not file.is_file():
            raise ConfigError(
                f"there is no file {file}, which holds a judge: put it at the same path on every machine that judges, "
                "or set reward.where=controller"
            )
    check_parts(pool.judges, pool.timeout_s)


class _Judges:
    def __init__(self, pools: Mapping[int, JudgePool], key: bytes) -> None:
        self._pools, self._key = pools, key
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for as long as it holds."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(await admit(reader, writer, self._key, metadata.version("freerun")))
        except (LinkRefused, LinkLost):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, link: Link) -> None:
        link.send(About(sees_samples=[number for number, pool in self._pools.items() if pool.sees_samples]))
        judging = {asyncio.create_task(self._beat(link))}
        try:
            while True:
                asked = await link.receive(ToJudge)
                task = asyncio.create_task(self._judge(link, asked))
                judging.add(task)
                task.add_done_callback(judging.discard)
        finally:
            for task in list(judging):
                task.cancel()

    async def _beat(self, link: Link) -> None:
        while True:
            link.send(Here())
            await asyncio.sleep(HEARTBEAT_S)

    async def _judge(self, link: Link, asked: ToJudge) -> None:
        try:
            verdict = await self._pools[asked.pool].judge(asked.request)
        except Exception as error:  # the pool can judge no more
            with suppress(asyncio.InvalidStateError):
                self.failed.set_exception(error)
            return
        link.send(Judgement(id=asked.id, verdict=verdict))
