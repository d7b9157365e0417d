"""The front: an engine of another maker, as the routes of our server see it.

It drives a server that a backend speaks to, ours to start or given by URL. It keeps three promises whichever server it
is: versions only go up; a version that was reported samples every later token; and where an update fails half-way,
nothing is sampled any more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

from freerun.core import EngineError, Version
from freerun.core.reports import EngineStats, Span, UpdateReport, WeightsHandle
from freerun.engines.base import Completion
from freerun.engines.config import OnUpdate
from freerun.engines.external.base import Backend, Counts
from freerun.engines.external.busy import BusyTime
from freerun.engines.external.versions import VersionFolders
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.models.shape import Shape
from freerun.weights.base import Subscriber

_SPANS = 10_000
"""Kept, at most, for whoever asks for statistics: perhaps nobody does."""


class Front:
    """Consumes requests and updates; produces answers as they end. Requests wait while an update waits for the answers
    that have begun (`on_update: finish`), and are unblocked by its end.

    `failed` has an error from the moment on that the server cannot be trusted any more: whoever runs the front ends it.
    """

    def __init__(
        self, backend: Backend, folders: VersionFolders, shape: Shape, longest: int, on_update: OnUpdate
    ) -> None:
        """`longest` is the most tokens of a prompt and its answer together."""
        self._backend = backend
        self._folders = folders
        self._longest = longest
        self._on_update = on_update
        self._going: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, int] = {}
        """How many answers of each request have not come yet."""
        self._held: set[str] = set()
        """Requests that the server does not have yet."""
        self._fewer_begun = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._updating, self._switching = asyncio.Lock(), asyncio.Lock()
        """One update at a time; and nobody pauses or resumes while the weights change."""
        self._busy = BusyTime()
        self._tokens_then = 0
        self._spans: deque[Span] = deque(maxlen=_SPANS)
        self.shape = shape
        self.version: Version = 0
        self.paused = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, asks: Sequence[AnswerRequest]) -> PendingAnswers:
        for ask in asks:
            self._check(ask)
        asked = PendingAnswers(asks, partial(self._forget, [ask.id for ask in asks]))
        for ask in asks:
            self._busy.begin()
            self._left[ask.id] = ask.n
            self._held.add(ask.id)
            task = self._going[ask.id] = asyncio.create_task(self._answer(ask, asked))
            task.add_done_callback(partial(self._ended, ask.id))
        return asked

    def _check(self, ask: AnswerRequest) -> None:
        """What our own engine refuses, before the server is asked."""
        most, answer = self.shape.vocab_size - 1, ask.sampling.max_new_tokens
        if ask.id in self._going:
            raise EngineError(f"there is a request {ask.id!r} already")
        if not ask.prompt:
            raise EngineError("a prompt needs at least one token")
        if odd := [token for token in ask.prompt if not 0 <= token <= most]:
            raise EngineError(f"token {odd[0]} is not in the vocabulary: tokens are 0..{most}")
        if len(ask.prompt) + answer > self._longest:
            raise EngineError(
                f"{len(ask.prompt)} tokens of prompt and {answer} of answer are more than the {self._longest} "
                "positions that this engine has: lower max_tokens"
            )
        if ask.sampling.extras:
            raise EngineError(f"penalties, biases and alternatives are not taken by {self._backend.NAME} here")

    async def _answer(self, ask: AnswerRequest, asked: PendingAnswers) -> None:
        while not self._open.is_set():
            await self._open.wait()
        self._held.remove(ask.id)
        try:
            async with aclosing(self._backend.generate(ask.id, ask.prompt, ask.sampling, ask.n)) as answers:
                async for completion in answers:
                    self._left[ask.id] -= 1
                    asked.put(_part(ask.id, completion))
        except EngineError as error:
            print(f"request {ask.id}: {error}", flush=True)
            asked.fail(error)

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._busy.end()
        self._held.discard(id)
        del self._going[id], self._left[id]
        self._fewer_begun.set()
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    def _forget(self, ids: list[str]) -> None:
        """Nobody listens any more: what has not ended is aborted."""
        for id in ids:
            if task := self._going.get(id):
                task.cancel()

    async def update_weights(
        self, handle: WeightsHandle, subscriber: Subscriber, on_update: OnUpdate | None = None
    ) -> UpdateReport:
        """Fetched and written while generation goes on; the server is paused only while it loads."""
        async with self._updating:
            if handle.version <= self.version:
                raise EngineError(f"versions only go up: {handle.version} cannot follow {self.version}")
            start_s, policy = time.monotonic(), on_update or self._on_update
            folder = await asyncio.to_thread(self._folders.write, handle, subscriber)
            self._spans.append(Span("fetch", f"version {handle.version}", start_s, time.monotonic()))
            try:
                if policy == "finish":
                    await self._let_finish()
                report = await self._swap(folder, handle.version, policy)
                return replace(report, bytes=subscriber.received_bytes)
            finally:
                self._open.set()
                self._folders.remove(folder)

    async def _let_finish(self) -> None:
        """Until the server has no request any more; it gets no other before `_open` is set."""
        if self.paused and len(self._going) > len(self._held):
            raise EngineError(
                "the engine is paused, so the running answers cannot finish before new weights come, as "
                "engine.on_update=finish says: resume it first, or pause with mode=abort"
            )
        self._open.clear()
        while len(self._going) > len(self._held):
            self._fewer_begun.clear()
            await self._fewer_begun.wait()

    async def _swap(self, folder: Path, version: Version, policy: OnUpdate) -> UpdateReport:
        async with self._switching:
            start_s = time.monotonic()
            try:
                await self._backend.pause("keep" if policy == "keep" else "recompute")
                paused_s = time.monotonic()
                await self._backend.load(folder, version)
                self.version, loaded_s = version, time.monotonic()
                if not self.paused:
                    await self._backend.resume()
            except EngineError as error:
                self._fail(EngineError(f"version {version} was not loaded, so the engine ends: {error}", error.detail))
                raise
        self._spans.append(Span("update", f"version {version}", start_s, time.monotonic(), {"version": float(version)}))
        return UpdateReport(version, loaded_s - paused_s, 0, self._busy.idle_s)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def pause(self, abort: bool = False) -> None:
        async with self._switching:
            await self._backend.pause("abort" if abort else "keep")
            self.paused = True

    async def resume(self) -> None:
        async with self._switching:
            await self._backend.resume()
            self.paused = False

    async def stats(self) -> EngineStats:
        """What has been asked for and does not run waits: here, or in the server, which counts only as it steps."""
        counts = await self._backend.counts()
        spans = [*self._generated(counts), *self._spans]
        self._spans.clear()
        return EngineStats(
            version=self.version,
            running=counts.running,
            waiting=max(sum(self._left.values()) - counts.running, 0),
            tokens=counts.tokens,
            idle_s=self._busy.idle_s,
            spans=spans,
            prompt_tokens=counts.prompt_tokens,
            reused_tokens=counts.reused_tokens,
        )

    def _generated(self, counts: Counts) -> list[Span]:
        """The stretches since the last snapshot. The server counts tokens, not when they came: each stretch has its
        part of them, by its length."""
        stretches, tokens = self._busy.stretches(), counts.tokens - self._tokens_then
        self._tokens_then = counts.tokens
        seconds = sum(end_s - start_s for start_s, end_s in stretches) or 1.0
        return [
            Span(
                "generate",
                "generate",
                start_s,
                end_s,
                {"tokens": tokens * (end_s - start_s) / seconds, "running": float(counts.running)},
            )
            for start_s, end_s in stretches
        ]

    async def metrics(self) -> str:
        return await self._backend.metrics()


def _part(id: str, whole: Completion) -> AnswerPart:
    return AnswerPart(
        id,
        whole.index,
        whole.tokens.tolist(),
        whole.logprobs.tolist(),
        list(whole.versions),
        whole.finish,
        cached=whole.cached,
        routes=whole.routes,
    )
