"""Keeps every sample of a run in run.db, as an observer: trained on or dropped, by a thread of its own.

Consumes the groups that the loop tells of; produces rows, a transaction a step, written when the engines have the
step's version. The loop hands over objects and waits for nothing: a thread makes rows of them. What goes wrong with the
disk is a note, and the run goes on without keeping samples. Past the disk space that a run may have for them, a few of
each step are kept. A kill loses the steps that were not written yet.
"""

import sqlite3
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from freerun.core import Batch, Group
from freerun.core.groups import GroupEvent
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import EngineStats, StepResult
from freerun.observe.database import Decoder, SampleDatabase, put_aside
from freerun.observe.sample_rows import TRAINED, EndedGroup, Logprobs, few_rows_of, rows_of

MOST_WAITING_TOKENS = 50_000_000
"""Handed to the thread and not written yet, some nine bytes each."""
CLOSE_S = 10.0
"""How long the end of the run waits for what is left to write."""
GIB = 2**30


class KeptSamples(Observer):
    def __init__(
        self, path: Path, tokenizer: Decoder, tell: Observer, gib: float, last_step: int = 0, begins: bool = True
    ) -> None:
        """Notes are told to `tell`. Samples of later steps than `last_step` go: those steps are done again. Unless it
        `begins` at once, the file is left alone until `begin`."""
        self._tell = tell
        self._writer = SampleWriter(path, tokenizer, gib, last_step)
        if begins:
            self.begin()
        self._judged: dict[int, Group] = {}
        """By id: groups that may still be trained on or dropped."""
        self._dropped: list[EndedGroup] = []
        self._batches: dict[int, Batch] = {}
        self._before: dict[int, list[Logprobs]] = {}
        """By step: what it learns from, and the log-probabilities that the trainer had found before it."""

    def begin(self) -> None:
        self._writer.begin()

    def judged(self, group: Group) -> None:
        self._judged[group.id] = group

    def group(self, event: GroupEvent) -> None:
        if event.stage.is_end and (group := self._judged.pop(event.group, None)) and event.reason:
            self._dropped.append(EndedGroup(group, event.version + 1, event.reason.value))

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self._batches[batch.version + 1] = batch

    def stepped(self, result: StepResult) -> None:
        if result.before_logprobs is not None:
            self._before[result.version] = result.before_logprobs

    def step(self, record: StepRecord) -> None:
        self._hand_over(record.step)
        self._say()

    def engine(self, name: str, stats: EngineStats) -> None:
        self._say()

    def close(self) -> None:
        """A group that was dropped after the last step is kept, too."""
        self._batches.clear()
        self._hand_over(max((ended.step for ended in self._dropped), default=0))
        self._writer.close()
        self._say()

    def _hand_over(self, step: int) -> None:
        batch, before = self._batches.pop(step, None), self._before.pop(step, None)
        ended = [group for group in self._dropped if group.step <= step]
        self._dropped = [group for group in self._dropped if group.step > step]
        place = 0
        for group in batch.groups if batch else ():
            end = place + len(group.samples)
            ended.append(EndedGroup(group, step, TRAINED, before[place:end] if before else None))
            place = end
        if ended:
            self._writer.put(sorted(ended, key=lambda group: group.step))

    def _say(self) -> None:
        while self._writer.notes:
            self._tell.note(self._writer.notes.popleft())


class SampleWriter:
    """The thread. Consumes `put`, which returns at once; produces rows, and notes for whoever asks for them. Waits for
    the disk; is unblocked by it. With more waiting than memory should have, a step is left out."""

    def __init__(self, path: Path, tokenizer: Decoder, gib: float, last_step: int = 0) -> None:
        self._path, self._tokenizer, self._gib, self._last_step = path, tokenizer, gib, last_step
        self.notes: deque[str] = deque()
        self._steps: SimpleQueue[list[EndedGroup] | None] = SimpleQueue()
        self._waiting_tokens = 0
        self._lock = threading.Lock()
        self._failed = self._said_slow = self._said_full = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Open the file."""
        self._thread = threading.Thread(target=self._write, name="samples", daemon=True)
        self._thread.start()

    def put(self, ended: list[EndedGroup]) -> None:
        """`ended` in the order of their steps."""
        if self._failed:
            return
        tokens = sum(group.num_tokens for group in ended)
        with self._lock:
            if self._waiting_tokens and self._waiting_tokens + tokens > MOST_WAITING_TOKENS:
                if not self._said_slow:
                    self.notes.append("run.db is written more slowly than the run samples: not all samples are kept")
                self._said_slow = True
                return
            self._waiting_tokens += tokens
        self._steps.put(ended)

    def close(self) -> None:
        if self._thread is None:
            return
        self._steps.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.notes.append(f"run.db was not written to the end: its disk took more than {CLOSE_S:.0f} s")

    def _write(self) -> None:
        try:
            database = self._opened()
            try:
                while (ended := self._steps.get()) is not None:
                    self._add(database, ended)
            finally:
                with suppress(sqlite3.Error):
                    database.close()
        except Exception as error:  # whatever it is, the run must not end by it
            self._failed = True
            why = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"run.db cannot be written ({why}): from now on no samples are kept, and the run goes on")

    def _opened(self) -> SampleDatabase:
        """A damaged file of the run that this one goes on from is put aside."""
        try:
            return self._as_it_was()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or not self._path.is_file():
                raise
            aside = put_aside(self._path)
            self.notes.append(f"run.db is damaged ({error}): it is kept aside as {aside.name}, and begun anew")
            return self._as_it_was()

    def _as_it_was(self) -> SampleDatabase:
        database = SampleDatabase(self._path, self._tokenizer)
        try:
            database.forget_after(self._last_step)
        except BaseException:
            database.close()
            raise
        return database

    def _add(self, database: SampleDatabase, ended: list[EndedGroup]) -> None:
        if database.num_bytes < self._gib * GIB:
            kept, rows = ended, [row for group in ended for row in rows_of(group)]
        else:
            kept = [group for group in ended if group.fate == TRAINED][:1]
            rows = [row for group in kept for row in few_rows_of(group)]
            if self._gib and not self._said_full:
                self.notes.append(
                    f"run.db has the {self._gib:g} GiB of keep_samples_gib: from now on a few samples a step are kept"
                )
            self._said_full = True
        database.add([one.group for one in kept], rows)
        with self._lock:
            self._waiting_tokens -= sum(group.num_tokens for group in ended)
