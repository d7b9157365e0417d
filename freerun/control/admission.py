"""Who may start, and when: the paper's formula, kept for every sample.

With version i, batch size B (in samples) and bound η, a sample may be submitted only while

    floor((N_r − 1) / B) ≤ i + η

where N_r counts the samples submitted so far, that one included. A group that is dropped gives its samples back, so
N_r counts what was or will be trained: otherwise every drop would starve the trainer a little more, until it stops.
Nothing is admitted that the run, with its number of steps, would never train on.

A run that goes on at version i has trained i batches, and nothing else is submitted: N_r is i · B again, whatever was
running when it was cut off and whatever size its batches had before.

Consumes `release` and `advance`; produces tickets; waits for room under the formula; is unblocked by a step's end
(the version rises) or a drop.
"""

import asyncio
from dataclasses import dataclass

from freerun.core import Released, Version


@dataclass(slots=True, frozen=True)
class Ticket:
    """The right to run one group. It comes back exactly once, with a reason."""

    group: int
    samples: int
    version: Version
    """The version at admission: no token of the group is older."""


class Admission:
    def __init__(
        self, batch_samples: int, max_staleness: int, total_samples: int, version: Version = 0, next_group: int = 0
    ) -> None:
        self._batch_samples = batch_samples
        self._max_staleness = max_staleness
        self._total_samples = total_samples
        self._room = asyncio.Event()
        self._out: dict[int, Ticket] = {}
        self.next_group = next_group
        self.version = version
        self.submitted = version * batch_samples
        """N_r: samples submitted and not dropped."""

    @property
    def outstanding(self) -> list[int]:
        """The groups whose tickets have not come back yet."""
        return list(self._out)

    def admits(self, samples: int) -> bool:
        """Whether that many more samples keep the formula, and the run will still train on them."""
        after = self.submitted + samples
        fresh_enough = (after - 1) // self._batch_samples <= self.version + self._max_staleness
        return fresh_enough and after <= self._total_samples

    async def acquire(self, samples: int) -> Ticket:
        """Waits for room. One caller at a time, so that groups are admitted in the order of the data."""
        if samples > self._batch_samples:
            raise ValueError(f"a group of {samples} samples can never fit a batch of {self._batch_samples}")
        while not self.admits(samples):
            self._room.clear()
            await self._room.wait()
        ticket = Ticket(self.next_group, samples, self.version)
        self.next_group += 1
        self.submitted += samples
        self._out[ticket.group] = ticket
        return ticket

    def release(self, group: int, reason: Released) -> None:
        """A ticket comes back. A second return of the same one is a bug, and raises."""
        ticket = self._out.pop(group)
        if reason is not Released.TRAINED:
            self.submitted -= ticket.samples
            self._room.set()

    def advance(self, version: Version) -> None:
        """The engines have that version now: there is room for another batch."""
        if version != self.version + 1:
            raise ValueError(f"versions rise by one: {self.version} cannot become {version}")
        self.version = version
        self._room.set()
