"""A reward model in this process, as a pool. `run/judges.py` gives it a process of its own, to which all judging by it
goes, from wherever: the connection is that of any judge process (`machines/`)."""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from freerun.core import ConfigError, DataError, FreerunError, ProcessDied
from freerun.core.reports import JudgeLoad, Span
from freerun.core.traces import in_one_line
from freerun.core.trajectory import prompt_messages
from freerun.machine.device import choose_device
from freerun.machine.frames import HEADER_BYTES, unframed
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.growth import BusyTime
from freerun.rewards.pool import copy_error, judging_lanes
from freerun.rewards.protocol import Request
from freerun.rewards.reward_model import RewardModel, label_names
from freerun.rewards.spec import JudgeSpec, convert

PASS_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Padding included: more in a pass gain little."""


class ModelPool:
    """See `Pool`. All requests that have come while the model computed are computed next, together.

    Consumes calls of `judge`; produces a verdict for each. Waits for the model, on a thread; is unblocked by it, by
    `stop`, and by the deadline, after which the pool has failed: a thread cannot be killed, but its process can.
    """

    def __init__(self, judge: JudgeSpec, timeout_s: float, at_once: int) -> None:
        """`at_once` requests at most are computed together."""
        self._judge, self._timeout_s, self._at_once = judge, timeout_s, at_once
        self._queue: asyncio.Queue[tuple[bytes, asyncio.Future[Verdict], float]] = asyncio.Queue()
        self._pending: set[asyncio.Future[Verdict]] = set()
        self._busy, self._judged, self._queued_s = BusyTime(), 0, 0.0
        self._lanes = judging_lanes([judge])
        self._stopped_by: BaseException | None = None
        self._serving: asyncio.Task[None] | None = None
        self.sees_samples = True

    async def __aenter__(self) -> Self:
        """Return when the model is loaded."""
        self._model = await asyncio.to_thread(_Model, self._judge)
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(FreerunError("the judge service is closed"))
        if self._serving:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def load(self) -> JudgeLoad:
        return JudgeLoad(1, self.waiting, self._judged, self._busy.seconds, self._queued_s)

    def spans(self, every: bool = False) -> list[Span]:
        return self._lanes.take(every)

    async def judge_all(self, requests: Sequence[bytes]) -> list[Verdict]:
        return await asyncio.gather(*map(self.judge, requests))

    async def judge(self, request: bytes) -> Verdict:
        if self._stopped_by is not None:
            raise copy_error(self._stopped_by)
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._pending.add(verdict)
        verdict.add_done_callback(self._pending.discard)
        self._queue.put_nowait((request, verdict, time.monotonic()))
        return await verdict

    def stop(self, error: BaseException) -> None:
        self._stopped_by = self._stopped_by or error
        for verdict in list(self._pending):
            if not verdict.done():
                verdict.set_exception(copy_error(self._stopped_by))

    async def _serve(self) -> None:
        while True:
            taken = [await self._queue.get()]
            while not self._queue.empty() and len(taken) < self._at_once:
                taken.append(self._queue.get_nowait())
            taken = [one for one in taken if not one[1].done()]
            now_s = time.monotonic()
            self._queued_s += sum(now_s - asked_s for _, _, asked_s in taken)
            self._busy.change(1)
            try:
                with self._lanes.busy(answers=len(taken)):
                    async with asyncio.timeout(self._timeout_s):
                        verdicts = await asyncio.to_thread(self._model.verdicts, [request for request, _, _ in taken])
            except TimeoutError:
                path = self._judge.options.get("path")
                raise ProcessDied(f"the reward model {path} took more than {self._timeout_s:g} s") from None
            finally:
                self._busy.change(-1)
            self._judged += len(taken)
            for (_, verdict, _), found in zip(taken, verdicts, strict=True):
                if not verdict.done():
                    verdict.set_result(found)

    def _ended(self, serving: asyncio.Task[None]) -> None:
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self.stop(error)


class _Model:
    """The classifier, and what its logits count."""

    def __init__(self, judge: JudgeSpec) -> None:
        import torch

        from freerun.models.classifier import Classifier

        options: RewardModel = convert(judge.options, RewardModel, judge.name)
        device = choose_device()
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._classifier = Classifier(options.folder, device, dtype, PASS_TOKENS[device])
        try:
            self._weights = options.weights(label_names(options.folder))
        except ValueError as error:
            raise ConfigError(f"the judge {judge.name}: {error}") from None
        self._weight = judge.weight

    def verdicts(self, requests: Sequence[bytes]) -> list[Verdict]:
        """What cannot be read has none, and a reason; the others are computed together."""
        found: list[Any] = [self._encoded(request) for request in requests]
        places = [place for place, one in enumerate(found) if not isinstance(one, Verdict)]
        for place, logits in zip(places, self._classifier.logits([found[place] for place in places]), strict=True):
            score = sum(weight * logit for weight, logit in zip(self._weights, logits, strict=True))
            found[place] = _verdict(self._weight * score)
        return found

    def _encoded(self, request: bytes) -> Any:
        try:
            asked = unframed(request[HEADER_BYTES:], Request)
            said = asked.group[asked.index].messages if asked.group else []
            messages = said or [*prompt_messages(asked.task), {"role": "assistant", "content": asked.text}]
            return self._classifier.encode(messages)
        except DataError as error:
            return Verdict(None, JudgeReason.ERROR, str(error))
        except (msgspec.MsgspecError, UnicodeError, TypeError) as error:  # half a character, say
            return Verdict(None, JudgeReason.ERROR, in_one_line(error))


def _verdict(score: float) -> Verdict:
    if score - score != 0:
        return Verdict(None, JudgeReason.ERROR, f"the reward model's score is {score}, no finite number")
    return Verdict(score, JudgeReason.OK)
