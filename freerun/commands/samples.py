"""`freerun samples`: what a run's policy wrote, as lines of JSON for scripts, newest first."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

from freerun.core import ConfigError
from freerun.core.files import atomic_file
from freerun.observe.folder import RunFolder, encode, writing
from freerun.observe.records import SampleRecord
from freerun.observe.sample_reader import SampleReader
from freerun.observe.search import SampleFilter

_PAGE = 50
filter_of = SampleFilter


def write_samples(folder: Path, wanted: SampleFilter, limit: int, out: Path | None) -> int:
    """To the file, or to standard output; how many there were. DataError if the run has no samples."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a run's folder: there is no such folder")
    count = 0
    with writing(out) if out else nullcontext(), atomic_file(out) if out else nullcontext(sys.stdout.buffer) as file:
        try:
            for record in find_samples(RunFolder(folder), wanted, limit):
                file.write(encode(record) + b"\n")
                count += 1
            file.flush()
        except BrokenPipeError:  # `head` has seen enough; nothing is left to be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return count


def find_samples(folder: RunFolder, wanted: SampleFilter, limit: int) -> Iterator[SampleRecord]:
    """The newest that pass, however long that takes."""
    before: int | None = None
    with closing(SampleReader(folder.samples)) as reader:
        while limit > 0:
            page = reader.page(wanted, before, min(limit, _PAGE))
            yield from reader.many([row.id for row in page.rows])
            limit -= len(page.rows)
            if not page.more:
                return
            before = page.next_before
