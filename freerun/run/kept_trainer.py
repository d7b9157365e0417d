"""A trainer that is started again when it dies, behind the `Trainer` protocol: whoever asks it waits longer, no more.

Consumes calls, and the ends of ranks; produces what the trainer answers. A rank that dies, or a step that fails by an
error that is not ours, ends all ranks; they begin again from the newest whole checkpoint, and do the steps since then
once more, from the batches that were kept. Then it is at the version where it was, and the call that failed is made
again: versions never go back, and the controller is told nothing. Calls wait for that, and are unblocked by it.

It is given up, with what ended it, when the run has used up its restarts, when the same failure ends it again and
again at the same step, when a batch was not kept, or with its machine. What we refuse ourselves (a policy that has
diverged, say) would be refused again: the call fails with it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from freerun.core import Batch, ConfigError, FreerunError, MachineLost, ProcessDied, Sample, TrainerLost, Version
from freerun.core.observer import Observer
from freerun.core.reports import StepResult, WeightsHandle
from freerun.machine.processes import first_death
from freerun.observe.folder import RunFolder
from freerun.run.resume import newest_checkpoint
from freerun.run.starter import StartedTrainer
from freerun.train.base import Trainer
from freerun.train.checkpoint_folder import CheckpointFolder
from freerun.train.protocol import Copied, Written
from freerun.train.remote import RemoteTrainer

T = TypeVar("T")

_SAME_FAILURES = 3
"""How often in a row it may end in the same way at the same step."""
_LAST_WORDS_S = 1.0
"""The end of a rank is the cause of what another one says, and may be noticed a moment later."""
_NUMBERS = re.compile(r"\d+([.,]\d+)*")
"""Failures are the same if they differ only in these: sizes, addresses."""


class KeptBatches(Protocol):
    async def batch(self, version: Version) -> Batch | None:
        """What the step at that version learned from, as the trainer was given it; None where it is not kept."""
        ...


class WaitsForWeights(Protocol):
    """Whoever brings the engines what the trainer has published."""

    def trainer_lost(self) -> None:
        """What it has published may not be there any more."""
        ...

    def published_again(self, handle: WeightsHandle) -> None:
        """Its newest version can be had by that handle, and no longer by the one before."""
        ...


class KeptTrainer(Trainer):
    """A context manager, which holds the connection. `keep` must run beside."""

    def __init__(
        self,
        started: StartedTrainer,
        start: Callable[[Path | None], Awaitable[StartedTrainer]],
        folder: RunFolder,
        version: Version,
        restarts: int,
        learn: Callable[[RemoteTrainer, Batch], Awaitable[StepResult]] = RemoteTrainer.step,
    ) -> None:
        """It is at that version. `restarts` are those that it may have; `learn` is how it does a step again."""
        self._start, self._folder, self._learn = start, folder, learn
        self._restarts_left = restarts
        self._version = version
        """Where whoever asks it believes it to be."""
        self._at = version
        """Where it is: less, while steps are redone."""
        self._handle: WeightsHandle | None = None
        """The newest version that was published."""
        self._unwritten: tuple[Version, str, str] | None = None
        """The checkpoint that was copied last, until it is known to be written."""
        self._failed_last: tuple[Version, str] | None = None
        self._failures = 0
        """How often in a row it failed like that."""
        self._batches: KeptBatches | None = None
        self._observer: Observer = Observer()
        self._engines: Sequence[WaitsForWeights] = ()
        self._started = started
        self._there: asyncio.Future[RemoteTrainer]

    def __enter__(self) -> "KeptTrainer":
        self._there = asyncio.get_running_loop().create_future()
        self._there.set_result(self._enter(self._started))
        return self

    def __exit__(self, *_: object) -> None:
        self._started.remote.__exit__()

    def serve(self, observer: Observer, batches: KeptBatches, engines: Sequence[WaitsForWeights] = ()) -> None:
        """Who is told of restarts from now on, and who has the batches that are needed for them."""
        self._observer, self._batches, self._engines = observer, batches, engines

    async def reach(self, version: Version) -> WeightsHandle:
        """Do the steps up to that version again, where the run that this one goes on from was. Returns it published."""
        while self._version < version:
            self._observer.doing("trainer", f"does step {self._version + 1} of {version} again")
            await self.step(await self._kept(self._version, TrainerLost(f"step {self._version + 1} is not kept")))
        return self._handle or await self.publish()

    async def step(self, batch: Batch) -> StepResult:
        return self._stepped(await self._call(lambda trainer: trainer.step(batch), is_step=True))

    async def sft(self, examples: list[Sample]) -> StepResult:
        return self._stepped(await self._call(lambda trainer: trainer.sft(examples), is_step=True))

    async def dpo(self, samples: list[Sample], beta: float) -> StepResult:
        return self._stepped(await self._call(lambda trainer: trainer.dpo(samples, beta), is_step=True))

    async def score(self, samples: list[Sample]) -> list[list[float]]:
        return await self._call(lambda trainer: trainer.score(samples))

    async def publish(self) -> WeightsHandle:
        self._handle = await self._call(lambda trainer: trainer.publish())
        return self._handle

    async def save(self, folder: str) -> None:
        await self._call(lambda trainer: trainer.save(folder))

    async def checkpoint(self, version: Version, folder: str, control: str) -> Copied:
        copied = await self._call(lambda trainer: trainer.checkpoint(version, folder, control))
        self._unwritten = version, folder, control
        return copied

    async def written(self) -> Written | None:
        written = await self._call(lambda trainer: trainer.written())
        self._unwritten = None
        return written

    def _stepped(self, result: StepResult) -> StepResult:
        self._version = self._at = result.version
        self._handle = result.weights or self._handle
        return result

    async def _call(self, call: Callable[[RemoteTrainer], Awaitable[T]], is_step: bool = False) -> T:
        while True:
            trainer = await asyncio.shield(self._there)
            try:
                return await call(trainer)
            except TrainerLost as error:
                if not is_step and not trainer.is_lost:
                    raise
                if trainer is self._started.remote:
                    self._fail(error)

    async def keep(self) -> None:
        """Start it again whenever it is lost. Never returns; raises what ended it when that was once too often."""
        try:
            cause = await self._loss()
            while True:
                self._refuse(cause)
                try:
                    await self._again(cause)
                    cause = await self._loss()
                except ProcessDied as died:  # before it was there
                    cause = died
                except TrainerLost as error:  # in a step that it was to do again
                    self._fail(error)
                    cause = await self._loss()
        except Exception as error:
            if not self._there.done():
                self._there.set_exception(TrainerLost(f"the trainer is lost: {error}"))
                self._there.exception()  # perhaps nobody asks
            raise

    def _enter(self, started: StartedTrainer) -> RemoteTrainer:
        self._started = started
        self._failed: asyncio.Future[FreerunError] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.create_task(self._watch(started))
        return started.remote.__enter__()

    async def _watch(self, started: StartedTrainer) -> ProcessDied:
        died = await first_death(started.ranks)
        self._lose(died.message)
        return died

    def _fail(self, error: FreerunError) -> None:
        """A call has failed."""
        self._lose(error.message)
        if not self._failed.done():
            self._failed.set_result(error)

    def _lose(self, why: str) -> None:
        """Whoever asks from now on waits for the next one, or knows that there will be none."""
        if self._there.done() and not self._there.exception():
            self._there = asyncio.get_running_loop().create_future()
        self._started.remote.lose(why)

    async def _loss(self) -> FreerunError:
        """Wait until it is lost. The end of a rank is the cause of all else."""
        either: list[asyncio.Future[Any]] = [self._ended, self._failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({self._ended}, timeout=_LAST_WORDS_S)
        return self._ended.result() if self._ended.done() else self._failed.result()

    def _refuse(self, cause: FreerunError) -> None:
        """Raise it if it is one too many."""
        failed = self._at, _NUMBERS.sub("", cause.message)
        self._failures = self._failures + 1 if failed == self._failed_last else 1
        self._failed_last = failed
        if self._failures >= _SAME_FAILURES:
            self._observer.note(f"the trainer ended {self._failures} times in a row at step {self._at + 1} like this")
            raise cause
        if isinstance(cause, MachineLost) or not self._restarts_left:
            raise cause
        self._restarts_left -= 1

    async def _again(self, cause: FreerunError) -> None:
        """Start it, and bring it to where it was."""
        for engines in self._engines:
            engines.trainer_lost()
        self._started.remote.__exit__()
        self._ended.cancel()
        await self._started.end()
        checkpoint, self._at = await asyncio.to_thread(self._newest, cause)
        if self._at < self._version:
            await self._kept(self._at, cause)  # those that are kept are the newest: nothing is started in vain
        self._say(cause)
        trainer = self._enter(await self._start(checkpoint))
        handle = await self._redo(trainer, cause)
        if self._handle and self._handle.version == self._version:
            self._handle = handle or await trainer.publish()
            for engines in self._engines:
                engines.published_again(self._handle)
        self._observer.doing("trainer", "is back")
        self._there.set_result(trainer)

    def _newest(self, cause: FreerunError) -> tuple[Path | None, Version]:
        """The newest whole checkpoint, and its version. What was half written goes, and what is damaged is put aside,
        so that it can be written again."""
        folder = CheckpointFolder(self._folder.checkpoints)
        folder.remove_unfinished()
        if not folder.finished():
            return None, 0
        try:
            found = newest_checkpoint(self._folder)
        except ConfigError:  # none can be read
            raise cause from None
        for path in found.damaged:
            folder.put_aside(path)
        return found.checkpoint, found.state.version

    async def _kept(self, version: Version, cause: FreerunError) -> Batch:
        batch = await self._batches.batch(version) if self._batches else None
        if batch is None:
            raise cause
        return batch

    def _say(self, cause: FreerunError) -> None:
        steps = self._version - self._at
        redoes = f", and redoes {steps} step{'s' * (steps > 1)}" if steps else ""
        what = cause.message.partition("; its log is")[0]
        self._observer.note(f"{what}; it goes on from step {self._at}{redoes}")
        self._observer.doing("trainer", f"starts again from step {self._at}")

    async def _redo(self, trainer: RemoteTrainer, cause: FreerunError) -> WeightsHandle | None:
        """The steps up to the version where it was, and the last of their checkpoints if that was not complete. What
        the last step published."""
        handle = None
        await self._write_again(trainer)
        while self._at < self._version:
            batch = await self._kept(self._at, cause)
            self._observer.doing("trainer", f"redoes step {self._at + 1} of {self._version}")
            result = await self._learn(trainer, batch)
            self._at, handle = result.version, result.weights
            await self._write_again(trainer)
        return handle

    async def _write_again(self, trainer: RemoteTrainer) -> None:
        if self._unwritten and self._unwritten[0] == self._at:
            await trainer.checkpoint(*self._unwritten)
