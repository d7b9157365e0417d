"""Verdicts by content: what was judged once is not judged again.

For judges that cost money or minutes, and for those that always say the same of the same. A policy that has settled on
an answer gives it many times, often in one group.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b

from freerun.rewards.base import Verdict

MOST = 100_000
"""Verdicts remembered, some hundred bytes each; then the one that was longest not asked for goes."""


class Memory:
    """Consumes framed requests, produces their verdicts. Waits for `judge`, once for each content, however many ask at
    the same time; unblocked by its verdict. Failures are not remembered."""

    def __init__(self, judge: Callable[[bytes], Awaitable[Verdict]]) -> None:
        self._judge = judge
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._going: dict[bytes, asyncio.Task[Verdict]] = {}

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        """Each content is looked up once; only what is not known yet is waited for."""
        keys = {request: blake2b(request, digest_size=16).digest() for request in set(requests)}
        verdicts = {request: self._known[key] for request, key in keys.items() if key in self._known}
        for request in verdicts:
            self._known.move_to_end(keys[request])
        unknown = [request for request in keys if request not in verdicts]
        verdicts |= zip(unknown, await asyncio.gather(*(self._judge_once(keys[r], r) for r in unknown)), strict=True)
        return [verdicts[request] for request in requests]

    async def _judge_once(self, key: bytes, request: bytes) -> Verdict:
        """However many ask for it at the same time."""
        if key not in self._going:
            self._going[key] = asyncio.create_task(self._remember(key, request))
            self._going[key].add_done_callback(_look)
        return await asyncio.shield(self._going[key])  # one who leaves takes the verdict from nobody else

    async def _remember(self, key: bytes, request: bytes) -> Verdict:
        try:
            verdict = await self._judge(request)
        finally:
            del self._going[key]
        if verdict.reward is not None:
            self._known[key] = verdict
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        return verdict


def _look(judged: asyncio.Task[Verdict]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not judged.cancelled():
        judged.exception()
