"""Remembers verdicts, so that the same request is not judged twice.

Used for judges that cost money or minutes, and for those whose verdict depends on nothing but the request. A policy
that has settled on an answer gives it many times, often within one group.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b

from freerun.rewards.base import Verdict

MAX_VERDICTS = 100_000
"""A verdict takes some hundred bytes. Beyond this many, the least recently used one is forgotten."""


class VerdictCache:
    """Consumes framed requests and produces their verdicts. Waits for `judge`, which is called once for each distinct
    request however many callers ask at the same time; unblocked by its verdict. Failures are not remembered."""

    def __init__(self, judge: Callable[[bytes], Awaitable[Verdict]]) -> None:
        self._judge = judge
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[Verdict]] = {}

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        """The verdict on each request. Waits only if some of them are not known yet."""
        keys = {request: blake2b(request, digest_size=16).digest() for request in set(requests)}
        verdicts = {request: self._verdicts[key] for request, key in keys.items() if key in self._verdicts}
        for request in verdicts:
            self._verdicts.move_to_end(keys[request])
        unknown = [request for request in keys if request not in verdicts]
        verdicts |= zip(unknown, await asyncio.gather(*(self._judge_once(keys[r], r) for r in unknown)), strict=True)
        return [verdicts[request] for request in requests]

    async def _judge_once(self, key: bytes, request: bytes) -> Verdict:
        """Judge a request, or wait for a judgement of it that is already running."""
        if key not in self._running:
            self._running[key] = asyncio.create_task(self._judge_and_remember(key, request))
            self._running[key].add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._running[key])  # cancelling one caller must not cancel it for the others

    async def _judge_and_remember(self, key: bytes, request: bytes) -> Verdict:
        try:
            verdict = await self._judge(request)
        finally:
            del self._running[key]
        if verdict.reward is not None:
            self._verdicts[key] = verdict
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict


def _retrieve_exception(judged: asyncio.Task[Verdict]) -> None:
    """Keep asyncio from reporting an exception that no caller waits for any more."""
    if not judged.cancelled():
        judged.exception()
