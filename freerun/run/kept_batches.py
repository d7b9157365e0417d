"""What steps have learned from, by the book in run.db: for a trainer that does them again."""

import asyncio

from freerun.control.config import ControlConfig
from freerun.core import Batch, Version
from freerun.observe.book import KeptBook
from freerun.observe.book_reader import BookReader


class BookBatches:
    def __init__(self, book: KeptBook, reader: BookReader, control: ControlConfig) -> None:
        self._book, self._reader, self._control = book, reader, control

    async def batch(self, version: Version) -> Batch | None:
        """What the step at that version learned from, as the trainer was given it; None where it is not kept."""
        await self._book.flush()
        batch = await asyncio.to_thread(self._reader.batch, version)
        if batch and self._control.when_stale == "mask":  # what is kept is as it was judged
            for sample in batch.samples:
                sample.mask_older_than(version - self._control.max_staleness)
        return batch
