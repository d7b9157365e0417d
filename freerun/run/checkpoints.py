"""Saves what `freerun resume` needs.

Consumes settled steps; produces checkpoints, every so many steps or minutes, and of the last one. It waits until the
step's version is delivered (supervised steps deliver nothing), so that its line in the metrics is there before the
checkpoint is; and until the trainer has copied its state, which the next step would change. It does not wait for the
disk, and generation goes on all the while.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from freerun.control.waiting import patiently, was_interrupted
from freerun.core import FreerunError, TrainerError, Version
from freerun.core.observer import Observer
from freerun.core.reports import Span
from freerun.core.state import RunState
from freerun.observe.folder import RunFolder, writing
from freerun.train.base import Trainer
from freerun.train.checkpoint_folder import CONTROL, CheckpointFolder, Kept
from freerun.train.protocol import Written

_OFTEN_S, _MOST_SHARE = 600.0, 0.02
"""Where nobody says after how many steps to save: how long after the last time, and the most of the time that training
may wait for copies of its state."""
_FAILED_SAVE_S = 300.0
"""How long a run that failed may take to save what it has: the failure may be why that does not end."""


class Elsewhere:
    """The controller's part of checkpoints that the trainer writes on a machine that does not share the run's folder:
    its own state, and who has the rest. Without that a resumed run would not find them. It is written when the
    checkpoint is known to be complete there."""

    def __init__(self, folder: CheckpointFolder, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._begun: tuple[RunState, Kept] | None = None

    def begun(self, state: RunState, kept: Kept) -> None:
        self._begun = state, kept

    @contextmanager
    def forgotten_by_failure(self) -> Iterator[None]:
        """What was begun may be what failed."""
        try:
            yield
        except TrainerError:
            self.failed()
            raise

    def failed(self) -> None:
        """The one that was begun will never be complete."""
        self._begun = None

    def completed(self) -> None:
        """The one that was begun is complete."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        state, kept = begun
        with writing(self._folder.unfinished(state.version)):
            unfinished = self._folder.begin(state.version)
            (unfinished / CONTROL).write_text(state.to_json())
            kept.write(unfinished)
            self._folder.complete(state.version, self._keep)


class _Due:
    """When the next checkpoint is: after `every` steps; where that is None, some minutes after the one before."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._now_s = asyncio.get_running_loop().time
        self._next_s = self._now_s() + _OFTEN_S

    def at(self, version: Version) -> bool:
        if self._every is None:
            return self._now_s() >= self._next_s
        return self._every > 0 and version % self._every == 0

    @contextmanager
    def copying(self) -> Iterator[None]:
        start_s = self._now_s()
        yield
        self._next_s = self._now_s() + max(_OFTEN_S, (self._now_s() - start_s) / _MOST_SHARE)

    def __str__(self) -> str:
        return "some minutes" if self._every is None else f"{self._every} more steps"


class Checkpointer(Observer):
    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        every: int | None,
        observer: Observer,
        patience_s: float,
        keep: int,
        delivered: asyncio.Event | None = None,
        book_written: Callable[[], Awaitable[None]] | None = None,
        latest: RunState | None = None,
    ) -> None:
        """`book_written` returns when all that happened so far is in the book: no checkpoint is ahead of it. `latest`
        is the state that there is no checkpoint of yet."""
        self._delivered, self._book_written = delivered, book_written
        self._trainer = trainer
        self._folder = folder
        self._due = _Due(every)
        self._observer = observer
        self._patience_s = patience_s
        self._latest = latest
        self._asked: Version | None = None
        """The last that was begun."""
        self._missing = 0
        """How many could not be written since the last that could."""
        self._elsewhere = Elsewhere(CheckpointFolder(folder.checkpoints), keep)

    async def settled(self, state: RunState) -> None:
        self._latest = state
        if self._due.at(state.version):
            if self._delivered:
                await self._delivered.wait()
            if refused := await self._begin(state):
                self._say_missing(state.version, refused)

    async def checkpoint(self) -> None:
        """Save the last settled step. The trainer refuses when it is past that, in a step that was cut off. This is the
        end: what the disk does not take is missing for good."""
        if self._latest and (refused := await self._begin(self._latest)):
            raise TrainerError(refused)

    async def _begin(self, state: RunState) -> str:
        """Why the disk does not take it; empty if it does. Of the one before, that is said."""
        if self._book_written:
            await self._book_written()
        start_s = time.monotonic()
        what = f"copies version {state.version} for a checkpoint"
        self._observer.doing("trainer", what)
        folder = str(self._folder.checkpoints.absolute())  # another machine has another working folder
        asked = self._trainer.checkpoint(state.version, folder, state.to_json())
        with self._elsewhere.forgotten_by_failure(), self._due.copying():
            copied = await patiently(asked, f"trainer: {what}", self._patience_s, self._observer.note)
        if copied.failed:
            self._elsewhere.failed()
            self._say_missing(self._asked, copied.failed)
        else:
            self._elsewhere.completed()
        if copied.written:
            self._missing = 0
        self._asked = None if copied.refused else state.version
        for note in copied.notes:
            self._observer.note(note)
        if not copied.shared and not copied.refused:
            self._elsewhere.begun(state, Kept(copied.machines, copied.sharing))
        self._observer.doing("trainer", "idle")
        name = f"copy version {state.version}"
        self._observer.span(Span("checkpoint", name, start_s, time.monotonic(), process="trainer"))
        self._tell(copied.written)
        return copied.refused

    def _say_missing(self, version: Version | None, why: str) -> None:
        """The run goes on, for that loses nothing, unless it ends before the next one."""
        self._missing += 1
        finished = CheckpointFolder(self._folder.checkpoints).finished()
        saved = [step for step in finished if version is None or step < version]  # a later one may be there by now
        lost = f"from step {saved[-1]}" if saved else "from nowhere: no step is saved"
        often = f"; {self._missing} are missing in a row" if self._missing > 1 else ""
        self._observer.note(
            f"step {version} is not saved: {why}; the run goes on, tries again after {self._due}, and "
            f"could be resumed {lost}{often}"
        )

    async def written(self) -> None:
        """Wait until the last one is complete."""
        with self._elsewhere.forgotten_by_failure():
            written = await self._trainer.written()
        self._elsewhere.completed()
        self._tell(written)

    def _tell(self, written: Written | None) -> None:
        """When one was written to the disk, beside what the trainer did."""
        if written:
            name = f"write version {written.version}"
            self._observer.span(Span("write", name, written.start_s, written.end_s, process="trainer"))

    async def weights(self) -> None:
        """Save the trainer's version as a Hugging Face folder, `checkpoints/last`."""
        await self._trainer.save(str(self._folder.checkpoints.absolute() / "last"))


@asynccontextmanager
async def saved(*saves: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Do the saves after the block, one after another; after a failure too, within a time limit, and after an
    interruption, until there is a second one. Who was interrupted twice by then saves nothing."""
    try:
        yield
    except (asyncio.CancelledError, FreerunError) as end:
        us = asyncio.current_task()
        if us and us.cancelling() > 1:
            raise
        with suppress(TimeoutError):
            async with asyncio.timeout(None if was_interrupted(end) else _FAILED_SAVE_S):
                for save in saves:
                    with suppress(TrainerError):
                        await save()
        raise
    failed: list[TrainerError] = []
    for save in saves:
        try:
            await save()
        except TrainerError as error:  # what one disk does not take, another may, and weights are smaller
            failed.append(error)
    if failed:
        raise failed[0]
