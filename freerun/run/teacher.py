"""The teacher of a run: a server that is given by URL, or a folder in a process of its own, started again when lost.

Consumes the ends of that process; produces a client that finds it. Whoever asks it waits meanwhile.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Self

from freerun.core import Sample
from freerun.engines.scoring.client import TeacherClient
from freerun.machine.processes import Child
from freerun.models.hub import find_model
from freerun.plan.placement import RunKind
from freerun.plan.readers import TEACHER
from freerun.rewards.plain import TEACHER as REWARDED_BY_TEACHER
from freerun.run.prepare import Prepared
from freerun.run.restarts import Restarts
from freerun.run.starter import Starter

KEY = "FREERUN_TEACHER_KEY"
"""The environment variable with the key of a server that teaches."""


def teaches(prepared: Prepared, kind: RunKind) -> bool:
    return kind is RunKind.TRAIN and bool(prepared.config.train.teacher)


class RunTeacher:
    """An async context manager: the teacher is there inside. `keep` must run beside. See `Teacher` of
    control/judging.py for what it does."""

    def __init__(self, prepared: Prepared, starter: Starter, note: Callable[[str], None]) -> None:
        self._prepared, self._starter, self._note = prepared, starter, note
        self.rewards = REWARDED_BY_TEACHER in [part.name for part in prepared.config.reward.parts]
        self._child: Child | None = None

    async def __aenter__(self) -> Self:
        url, longest = self._prepared.config.train.teacher_url, self._prepared.lengths.sequence
        if url:
            self._client = await TeacherClient(url, os.environ.get(KEY)).__aenter__()
        else:
            self._child, url = await self._start()
            self._client = await TeacherClient(url, self._starter.key, is_ours=True).__aenter__()
        try:
            await self._client.check(self._prepared.tokenizer, longest)
        except BaseException:
            await self._client.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__()

    async def _start(self) -> tuple[Child, str]:
        return await self._starter.teacher(find_model(self._prepared.config.train.teacher_folder or "").folder)

    async def read(self, samples: Sequence[Sample]) -> None:
        await self._client.read(samples)

    async def keep(self) -> None:
        """Have its process started again whenever it ends. Never returns; raises what ended it when that was once too
        often."""
        restarts = Restarts(f"the {TEACHER}", self._note)
        while True:
            if self._child is None:  # a server of somebody else's
                await asyncio.Future()
            assert self._child
            await self._child.wait()
            died = self._child.died()
            self._note(f"the {TEACHER} is lost ({died}): what it had to read waits for it")
            await self._child.end()
            if restarts.given_up(died):
                raise died
            self._child, self._client.url = await restarts.again(self._start)
            self._note(f"the {TEACHER} is back")
