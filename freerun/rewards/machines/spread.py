"""Judging on other machines, from the controller's side: requests go to whichever machine has least to do.

Whatever becomes of a machine, a request gets a verdict: what a lost machine had not answered is judged by another one,
or waits until there is one. A request that was lost several times may be what ends judge processes: it has no reward,
and a reason, as one whose worker died on the controller's machine.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from freerun.core import ProcessDied
from freerun.core.reports import JudgeLoad, Span
from freerun.machine.nodes.link import Link, LinkLost, join
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.growth import BusyTime
from freerun.rewards.machines.messages import LOST_S, About, FromJudge, Judgement, ToJudge
from freerun.rewards.pool import copy_error, judging_lanes
from freerun.rewards.spec import JudgeSpec

_A_WORKER = 2
"""Requests that a machine has for each of its workers: the next is there when one has been judged."""
_LOSSES = 5
"""How many judge processes may be lost with a request before it is given up."""
_CONNECT_S = 10.0
_LONGEST = 60 * 2**20
"""Bytes of a request: what a connection carries at a time."""


@dataclass(slots=True, eq=False)
class _Pending:
    request: bytes
    verdict: asyncio.Future[Verdict]
    asked_s: float
    losses: int = 0
    ended: Callable[[], None] = lambda: None
    """To be called when the machine that it was sent to has it no more."""


class JudgeMachine:
    """The connection to the judge process of a machine."""

    def __init__(self, link: Link, workers: Mapping[int, int], about: About) -> None:
        """`workers` has their number by the pool's."""
        self._link, self._workers = link, workers
        self.sees_samples = set(about.sees_samples)
        self._asked: dict[int, tuple[SpreadPool, _Pending]] = {}
        self._running = dict.fromkeys(workers, 0)
        self._number = 0

    @classmethod
    async def connect(cls, where: str, key: str, workers: Mapping[int, int]) -> "JudgeMachine":
        """Raises ProcessDied when nobody is there."""
        host, _, port = where.rpartition(":")
        try:
            async with asyncio.timeout(_CONNECT_S):
                streams = await asyncio.open_connection(host, int(port))
                link = await join(*streams, key.encode(), metadata.version("freerun"))
                about: About = await link.receive(About)
        except (OSError, TimeoutError, LinkLost) as error:
            why = getattr(error, "strerror", None) or str(error) or "no answer"
            raise ProcessDied(f"the judge process at {where} cannot be reached: {why}") from None
        return cls(link, workers, about)

    def load(self, pool: int) -> float:
        """Requests for each worker; none can be sent at `_A_WORKER` and above."""
        workers = self._workers.get(pool, 0)
        return self._running[pool] / workers if workers else float("inf")

    def workers(self, pool: int) -> int:
        return self._workers.get(pool, 0)

    def send(self, pool: "SpreadPool", pending: _Pending) -> None:
        self._number += 1
        self._asked[self._number] = pool, pending
        self._running[pool.number] += 1
        pending.ended = pool.begin()
        self._link.send(ToJudge(id=self._number, pool=pool.number, request=pending.request))

    async def serve(self) -> None:
        """Hands out verdicts until the connection is lost, or silent for too long: raises LinkLost."""
        while True:
            try:
                async with asyncio.timeout(LOST_S):
                    message = await self._link.receive(FromJudge)
            except TimeoutError:
                raise LinkLost(f"nothing was heard for {LOST_S:.0f} s") from None
            if isinstance(message, Judgement) and message.id in self._asked:
                pool, pending = self._asked.pop(message.id)
                self._running[pool.number] -= 1
                pending.ended()
                if not pending.verdict.done():
                    pending.verdict.set_result(message.verdict)
                pool.dispatch()

    def close(self) -> list[tuple["SpreadPool", _Pending]]:
        """What it leaves without a verdict, in the order in which it was sent."""
        self._link.close()
        left, self._asked = list(self._asked.values()), {}
        for _, pending in left:
            pending.ended()
        return left


class SpreadPool:
    """Pools with the same judges on several machines, as one. See `Pool`.

    Consumes calls of `judge`, first come first served. Waits for a machine with room, then for its verdict. Unblocked
    by it, by `stop`, and by the loss of the machine, after which it waits for another.
    """

    def __init__(self, number: int, machines: dict[str, JudgeMachine], judges: Sequence[JudgeSpec] = ()) -> None:
        """`machines` are those that are there, by name: a view that changes."""
        self.number, self._machines = number, machines
        self.sees_samples = False
        self._queue: deque[_Pending] = deque()
        self._pending: set[asyncio.Future[Verdict]] = set()
        self._stopped_by: BaseException | None = None
        self.busy, self.judged, self._queued_s = BusyTime(self._workers), 0, 0.0  # more is sent than is judged at once
        self.lanes = judging_lanes(judges)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def load(self) -> JudgeLoad:
        return JudgeLoad(self._workers(), self.waiting, self.judged, self.busy.seconds, self._queued_s)

    def _workers(self) -> int:
        return sum(machine.workers(self.number) for machine in self._machines.values())

    def spans(self, every: bool = False) -> list[Span]:
        """When machines had requests of its, since it was last asked."""
        return self.lanes.take(every)

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        return await asyncio.gather(*map(self.judge, requests))

    async def judge(self, request: bytes) -> Verdict:
        if self._stopped_by is not None:
            raise copy_error(self._stopped_by)
        if len(request) > _LONGEST:
            return Verdict(None, JudgeReason.ERROR, f"a request of {len(request)} bytes is too long to be sent")
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._pending.add(verdict)
        verdict.add_done_callback(self._pending.discard)
        self._queue.append(_Pending(request, verdict, time.monotonic()))
        self.dispatch()
        return await verdict

    def stop(self, error: BaseException) -> None:
        self._stopped_by = self._stopped_by or error
        for verdict in list(self._pending):
            if not verdict.done():
                verdict.set_exception(copy_error(self._stopped_by))

    def dispatch(self) -> None:
        """Send what waits to machines that have room."""
        while self._queue and self._machines:
            least = min(self._machines.values(), key=lambda machine: machine.load(self.number))
            if least.load(self.number) >= _A_WORKER:
                return
            pending = self._queue.popleft()
            if not pending.verdict.done():  # else the call was cancelled
                self._queued_s += time.monotonic() - pending.asked_s
                least.send(self, pending)

    def begin(self) -> Callable[[], None]:
        """A machine has a request of its. What is returned is to be called when it has it no more."""
        self.busy.change(1)
        drawn = self.lanes.begin()

        def end() -> None:
            drawn()
            self.busy.change(-1)
            self.judged += 1

        return end

    def take_back(self, pending: _Pending) -> None:
        """The machine that it was sent to is gone."""
        pending.losses += 1
        if pending.verdict.done():
            return
        if pending.losses < _LOSSES:
            self._queue.appendleft(pending)
        else:
            said = f"{pending.losses} judge processes in a row were lost while they had it"
            pending.verdict.set_result(Verdict(None, JudgeReason.CRASH, said))


class SpreadPools:
    """All pools of a reward, and the machines that they are on at the moment."""

    def __init__(self, judges: Sequence[Sequence[JudgeSpec]]) -> None:
        """`judges` of each pool."""
        self._machines: dict[str, JudgeMachine] = {}
        self.pools = [SpreadPool(number, self._machines, of_pool) for number, of_pool in enumerate(judges)]

    def add(self, name: str, machine: JudgeMachine) -> None:
        self._machines[name] = machine
        for pool in self.pools:
            pool.sees_samples |= pool.number in machine.sees_samples
            pool.dispatch()

    def remove(self, name: str) -> None:
        """What it had is judged by others, before what came later."""
        if machine := self._machines.pop(name, None):
            for pool, pending in reversed(machine.close()):
                pool.take_back(pending)
        for pool in self.pools:
            pool.dispatch()

    def stop(self, error: BaseException) -> None:
        for pool in self.pools:
            pool.stop(error)

    def close(self) -> None:
        for machine in self._machines.values():
            machine.close()
        self._machines.clear()
