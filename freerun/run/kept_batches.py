"""What a trainer that is started again learns from once more: by the book in run.db, or in memory for supervised
training, which has no book."""

import asyncio
from collections import deque

from freerun.control.config import ControlConfig
from freerun.core import Batch, Version
from freerun.core.observer import Observer
from freerun.observe.book import KeptBook
from freerun.observe.book_reader import BookReader
from freerun.observe.folder import RunFolder
from freerun.run.resume import newest_step

_MOST_TOKENS = 100_000_000
"""In memory; some nine bytes each. Past that the oldest batches go: a trainer that dies then ends the run, until the
next checkpoint is there."""


class BookBatches(Observer):
    """The newest ones are at hand: a trainer may die before the book knows that its step is done."""

    def __init__(self, book: KeptBook, reader: BookReader, control: ControlConfig) -> None:
        self._book, self._reader, self._control = book, reader, control
        self._newest: deque[Batch] = deque(maxlen=2)

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self._newest.append(batch)

    async def batch(self, version: Version) -> Batch | None:
        """What the step at that version learned from, as the trainer was given it; None where it is not kept."""
        for newest in self._newest:
            if newest.version == version:
                return newest
        await self._book.flush()
        batch = await asyncio.to_thread(self._reader.batch, version)
        if batch and self._control.when_stale == "mask":  # what is kept is as it was judged
            for sample in batch.samples:
                sample.mask_older_than(version - self._control.max_staleness)
        return batch


class BatchesInMemory(Observer):
    """Keeps every batch until a complete checkpoint covers it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._batches: dict[Version, Batch] = {}
        self._tokens: dict[Version, int] = {}

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        covered = newest_step(self._folder)
        self._batches[batch.version] = batch
        self._tokens[batch.version] = sum(len(sample.tokens) for sample in batch.samples)
        for version in list(self._batches):
            if version < covered or sum(self._tokens.values()) > _MOST_TOKENS:
                del self._batches[version], self._tokens[version]

    async def batch(self, version: Version) -> Batch | None:
        return self._batches.get(version)
