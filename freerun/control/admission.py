"""Who may start, and when: the paper's formula, kept for every sample.

With version i, batch size B (in samples) and bound η, a sample may be submitted only while

    floor((N_r − 1) / B) ≤ i + η

where N_r counts the samples submitted so far, that one included. A group that is dropped gives its samples back, so
N_r counts what was or will be trained: otherwise every drop would starve the trainer a little more, until it stops.
Nothing is admitted that the run, with its number of steps, would never train on.

A run that goes on at version i has trained i batches, and nothing else is submitted: N_r is i · B again, whatever was
running when it was cut off and whatever size its batches had before.

Reads the book of groups; waits for room under the formula; is unblocked by a step's end (the version rises) or a drop.
"""

from freerun.control.groups import GroupBook, OpenGroup
from freerun.core import Version


class Admission:
    def __init__(
        self, book: GroupBook, batch_samples: int, max_staleness: int, total_samples: int, version: Version = 0
    ) -> None:
        self._book = book
        self._batch_samples = batch_samples
        self._max_staleness = max_staleness
        self._total_samples = total_samples
        self._before = version * batch_samples
        self.version = version
        """The engines' version."""

    @property
    def submitted(self) -> int:
        """N_r: samples submitted and not dropped."""
        return self._before + self._book.submitted

    def admits(self, samples: int) -> bool:
        """Whether that many more samples keep the formula, and the run will still train on them."""
        after = self.submitted + samples
        fresh_enough = (after - 1) // self._batch_samples <= self.version + self._max_staleness
        return fresh_enough and after <= self._total_samples

    async def admit(self, dealt: OpenGroup) -> None:
        """Wait for room. One caller at a time, so that groups are admitted in the order of the data."""
        if dealt.samples > self._batch_samples:
            raise ValueError(f"a group of {dealt.samples} samples can never fit a batch of {self._batch_samples}")
        await self._book.until(lambda: self.admits(dealt.samples))
        self._book.admitted(dealt.id, self.version)

    def advance(self, version: Version) -> None:
        """The engines have that version now: there is room for another batch."""
        if version != self.version + 1:
            raise ValueError(f"versions rise by one: {self.version} cannot become {version}")
        self.version = version
        self._book.notify()
