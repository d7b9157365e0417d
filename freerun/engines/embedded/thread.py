"""The engine's thread, and how the event loop talks to it.

What the loop wants of the engine (submit, cancel, pause, swap weights) is a function that the thread calls between two
steps. Answers come back whole, when they end; only those that are followed are looked at after every step.
"""

import asyncio
import os
import queue
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from freerun.core import EngineError, FinishReason, FreerunError, Version
from freerun.core.reports import EngineStats, Span, UpdateReport, WeightsHandle
from freerun.engines.config import OnUpdate
from freerun.engines.embedded.metrics import Metrics
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.engines.embedded.served import ServedEngine
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.models.shape import Shape
from freerun.weights.base import Subscriber

T = TypeVar("T")
Call = tuple[Callable[[], Any], "Future[Any]"]
_SWITCH_S = 0.0005
"""How long the engine's thread may keep Python from the others. An update takes several turns, each of which may wait
so long; the default is 5 ms."""
_SPAN_S = 0.5
"""A busy stretch is reported in pieces of about this length."""
_SPANS = 10_000
"""Kept, at most, for whoever asks for statistics: perhaps nobody does."""


class EngineThread:
    """Steps the engine while it has work and is not paused.

    Consumes calls; produces pieces of answers on each request's queue; waits for calls when there is nothing to do; is
    unblocked by any call. Its failure ends the process: a half-dead engine helps nobody.

    With `on_update: finish` a swap is a call that waits until every answer that has begun is over; meanwhile no other
    begins, so that time comes.
    """

    def __init__(self, engine: ServedEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._asked: dict[str, PendingAnswers] = {}
        """The loop's; everything below is the thread's."""
        self._swaps: deque[Call] = deque()
        """Those that wait for answers to finish."""
        self._sent: dict[str, list[int]] = {}
        """How many tokens of each answer were posted, for requests that are followed."""
        self._spans: deque[Span] = deque(maxlen=_SPANS)
        self._busy_since_s: float | None = None
        self._tokens_then, self._waited_then_s = 0, 0.0
        self._finished: Counter[FinishReason] = Counter()
        self._updates = 0
        self._last_update_pause_s = 0.0
        self._stopping = False
        self.paused = False
        self.idle_s = 0.0
        sys.setswitchinterval(_SWITCH_S)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> Version:
        return self._engine.version

    @property
    def shape(self) -> Shape:
        return self._engine.shape

    async def call(self, function: Callable[[], T]) -> T:
        """Have the engine's thread call this between two steps."""
        future: Future[T] = Future()
        self._calls.put((function, future))
        return await asyncio.wrap_future(future)

    async def ask(self, asks: Sequence[AnswerRequest], follow: bool = False) -> PendingAnswers:
        """Queue them all, or raise EngineError. With `follow`, tokens come as they are sampled."""
        if taken := [ask.id for ask in asks if ask.id in self._asked]:
            raise EngineError(f"there is a request {taken[0]!r} already")
        ids = [ask.id for ask in asks]
        asked = PendingAnswers(asks, partial(self._forget, ids))
        self._asked |= dict.fromkeys(ids, asked)
        try:
            await self.call(lambda: self._submit(asks, follow))
        except BaseException:
            asked.close()
            raise
        return asked

    async def update_weights(
        self, handle: WeightsHandle, subscriber: Subscriber, on_update: OnUpdate | None = None
    ) -> UpdateReport:
        """Fetch first, up to the engine's device, while generation goes on; only the swap is between two steps."""
        policy = on_update or self._engine.on_update
        self._expect_update(policy != "finish")
        start_s = time.monotonic()
        try:
            tensors = await asyncio.to_thread(lambda: self._engine.stage(lambda: subscriber.fetch(handle)))
            fetched = Span("fetch", f"version {handle.version}", start_s, time.monotonic())
            return await self._swap(handle, tensors, subscriber, policy, fetched)
        except BaseException:
            self._expect_update(False)
            raise

    async def _swap(
        self,
        handle: WeightsHandle,
        tensors: Mapping[str, Tensor],
        subscriber: Subscriber,
        policy: OnUpdate,
        fetched: Span,
    ) -> UpdateReport:
        """Between two steps, or when the answers that have begun are over."""

        def swap() -> UpdateReport:
            self._end_span()
            start_s = time.monotonic()
            report = self._engine.update_weights(handle.version, tensors, policy)
            subscriber.confirm(handle)
            args = {"version": float(handle.version), "recomputed_tokens": float(report.recomputed_tokens)}
            self._spans += [fetched, Span("update", fetched.name, start_s, time.monotonic(), args)]
            self._updates += 1
            self._last_update_pause_s = report.pause_s
            return replace(report, idle_s=self.idle_s, bytes=subscriber.received_bytes)

        return await (self._call_when_finished(swap) if policy == "finish" else self.call(swap))

    def _expect_update(self, expected: bool) -> None:
        """Nobody waits until the thread knows."""
        self._calls.put((partial(self._engine.expect_update, expected), Future()))

    async def _call_when_finished(self, function: Callable[[], T]) -> T:
        """Have the thread call this as soon as no answer that has begun is unfinished."""
        future: Future[T] = Future()

        def hold() -> None:
            if self.paused and self._engine.answering:
                raise EngineError(
                    "the engine is paused, so the running answers cannot finish before new weights come, as "
                    "engine.on_update=finish says: resume it first, or pause with mode=abort"
                )
            self._engine.hold(True)
            self._swaps.append((function, future))

        await self.call(hold)
        return await asyncio.wrap_future(future)

    async def pause(self, abort: bool = False) -> None:
        """Returns when the step in progress is over; there is no other until `resume`. Requests stay, new ones are
        queued; with `abort`, those there are end where they are, as FinishReason.ABORT."""

        def pause() -> None:
            self._end_span()
            self.paused = True
            if abort:
                self._post(self._engine.abort_all())

        await self.call(pause)

    async def abort_all(self, within_s: float) -> None:
        """End every answer, and begin no other. They hold all that was sampled if the step in progress is over in that
        time, and otherwise what had come by then: a step may take seconds."""
        try:
            await asyncio.wait_for(self.pause(abort=True), within_s)
        except TimeoutError:
            for asked in set(self._asked.values()):
                asked.abort()

    async def resume(self) -> None:
        def resume() -> None:
            self.paused = False

        await self.call(resume)

    async def stats(self) -> EngineStats:
        def snapshot() -> EngineStats:
            self._end_span()
            engine, spans = self._engine, list(self._spans)
            longest_tokens, longest_most = engine.furthest
            self._spans.clear()
            return EngineStats(
                version=engine.version,
                running=engine.running,
                waiting=engine.waiting,
                tokens=engine.tokens,
                idle_s=self.idle_s,
                first_token_s=engine.first_token_after_update_s,
                spans=spans,
                prompt_tokens=engine.prompt_tokens,
                reused_tokens=engine.reused_tokens,
                longest_tokens=longest_tokens,
                longest_most=longest_most,
            )

        return await self.call(snapshot)

    async def metrics(self) -> str:
        def snapshot() -> Metrics:
            engine = self._engine
            return Metrics(
                running=engine.running,
                waiting=engine.waiting,
                tokens=engine.tokens,
                preemptions=engine.preemptions,
                free_blocks=engine.free_blocks,
                version=engine.version,
                idle_s=self.idle_s,
                paused=self.paused,
                updates=self._updates,
                last_update_pause_s=self._last_update_pause_s,
                first_token_after_update_s=engine.first_token_after_update_s,
                finished=dict(self._finished),
                prompt_tokens=engine.prompt_tokens,
                reused_tokens=engine.reused_tokens,
                guessed=dict(engine.guessed),
                right=dict(engine.right),
                kept_caches=engine.cache_choice.kept,
                rebuilt_caches=engine.cache_choice.rebuilt,
                cache_error=engine.cache_choice.error.mean,
                measured_tokens=engine.cache_choice.error.tokens,
                latencies=list(engine.latencies.lines()),
            )

        return (await self.call(snapshot)).prometheus()

    def stop(self, within_s: float | None = None) -> None:
        """End the thread after the step in progress, so that the process does not end under a running one; or do not
        wait for it any longer than that."""
        self._calls.put((partial(setattr, self, "_stopping", True), Future()))
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            while True:
                self._answer_calls()
                if self._stopping:
                    return
                if self._busy_since_s is None:
                    self._busy_since_s = time.monotonic()
                    self._tokens_then, self._waited_then_s = self._engine.tokens, self._engine.waited_s
                self._post(self._engine.step())
                if time.monotonic() - self._busy_since_s > _SPAN_S:
                    self._end_span()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _answer_calls(self) -> None:
        """All that are there; without work, or paused, wait for some."""
        while not self._stopping:
            if self._swaps and not self._engine.answering:
                self._answer(*self._swaps.popleft())
                self._engine.hold(bool(self._swaps))
            elif self.paused or not self._engine.has_work or not self._calls.empty():
                self._answer(*self._next_call())
            else:
                return

    def _next_call(self) -> Call:
        """Waits for it, which is idle time when there is no work."""
        idle = not self._engine.has_work
        if idle:
            self._end_span()
        start_s = time.monotonic()
        call = self._calls.get()
        if idle:
            self.idle_s += time.monotonic() - start_s
        return call

    def _answer(self, function: Callable[[], Any], future: "Future[Any]") -> None:
        wanted = future.set_running_or_notify_cancel()  # else whoever called is gone, and takes no answer
        try:
            result = function()
        except FreerunError as error:
            if wanted:
                future.set_exception(error)
        else:
            if wanted:
                future.set_result(result)

    def _submit(self, asks: Sequence[AnswerRequest], follow: bool) -> None:
        for ask in asks:
            self._engine.submit(ask.id, ask.prompt, ask.sampling, ask.n, ask.asked_s)
            if follow:
                self._sent[ask.id] = [0] * ask.n

    def _forget(self, ids: list[str]) -> None:
        """Called by the loop: nobody listens any more."""
        if self._asked.pop(ids[0], None):
            for id in ids[1:]:
                del self._asked[id]
            self._calls.put((partial(self._cancel, ids), Future()))

    def _cancel(self, ids: list[str]) -> None:
        for id in ids:
            self._sent.pop(id, None)
            if left := len(self._engine.unfinished(id)):
                self._finished[FinishReason.ABORT] += left
                self._engine.cancel(id)

    def _post(self, ended: list[tuple[str, EndedAnswer]]) -> None:
        pieces = [self._rest(id, completion) for id, completion in ended]
        if self._sent:
            pieces.extend(self._progress())
        if pieces:
            self._loop.call_soon_threadsafe(self._deliver, pieces)

    def _rest(self, id: str, whole: EndedAnswer) -> AnswerPart:
        """What of an answer that ended was not posted yet: all of it, unless it was followed."""
        self._finished[whole.finish] += 1
        if not (sent := self._sent[id][whole.index] if id in self._sent else 0):
            new = (whole.tokens, whole.logprobs, whole.versions)
        else:
            new = (whole.tokens[sent:], whole.logprobs[sent:], whole.versions[sent:])
        return AnswerPart(id, whole.index, *new, whole.finish, whole.alternatives[sent:], whole.cached, whole.routes)

    def _progress(self) -> Iterator[AnswerPart]:
        for id, sent in self._sent.items():
            for answer in self._engine.unfinished(id):
                start, sent[answer.index] = sent[answer.index], len(answer.tokens)
                if start < len(answer.tokens):
                    new = (answer.tokens[start:], answer.logprobs[start:], answer.versions[start:])
                    alternatives = answer.alternatives[start : len(answer.tokens)]
                    yield AnswerPart(id, answer.index, *new, None, alternatives, answer.request.cached or 0)

    def _deliver(self, pieces: list[AnswerPart]) -> None:
        for piece in pieces:
            if asked := self._asked.get(piece.id):
                asked.put(piece)

    def _end_span(self) -> None:
        """`waited_s` of it the host had nothing to do: the device was what took the time."""
        if self._busy_since_s is not None:
            now_s, tokens = time.monotonic(), self._engine.tokens - self._tokens_then
            waited_s = self._engine.waited_s - self._waited_then_s
            args = {"tokens": float(tokens), "running": float(self._engine.running), "waited_s": waited_s}
            self._spans.append(Span("generate", "generate", self._busy_since_s, now_s, args))
            self._busy_since_s = None
