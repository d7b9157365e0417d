"""What `freerun chaos` does to a run, and when: drawn before the run begins, from the seed alone."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_NEVER_SHARE = 0.25
"""The share of the stopped parts that are never continued."""
_STARVED_S = (2.0, 10.0)
_FULL_S = (1.0, 5.0)


class What(StrEnum):
    KILL = "kill"
    """kill -9."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT later or never."""
    STARVE = "starve"
    """Stopped nine tenths of the time, for some seconds."""
    DISK = "disk"
    """The disk of the run's folder is full, for some seconds."""


class PartKind(StrEnum):
    CONTROLLER = "controller"
    ENGINE = "engine"
    TRAINER = "trainer"
    JUDGE = "judge"
    """A worker, or the process that workers are forked from."""
    AGENT = "agent"


@dataclass(frozen=True)
class Strike:
    number: int
    """The first is 1."""
    after_s: float
    """Seconds after the one before."""
    what: What
    kind: PartKind | None
    """None for the disk."""
    pick: float
    """Which of the parts of that kind: 0 is the first, towards 1 the last."""
    for_s: float | None
    """How long it lasts: 0 for a kill; None: for good."""

    def victim_of(self, parts: int) -> int:
        return min(int(self.pick * parts), parts - 1)


def schedule(seed: int, count: int, every_s: float, whats: Sequence[What], kinds: Sequence[PartKind]) -> list[Strike]:
    """Kinds take turns, in an order that is drawn anew for each round, so that none is spared."""
    dice = random.Random(seed)
    turns = _turns(dice, kinds)
    return [_strike(dice, number, every_s, dice.choice(whats), turns) for number in range(1, count + 1)]


def _turns(dice: random.Random, kinds: Sequence[PartKind]) -> Iterator[PartKind]:
    while True:
        yield from dice.sample(kinds, len(kinds))


def _strike(dice: random.Random, number: int, every_s: float, what: What, turns: Iterator[PartKind]) -> Strike:
    kind = None if what is What.DISK else next(turns)
    after_s, pick = dice.expovariate(1 / every_s), dice.random()
    return Strike(number, after_s, what, kind, pick, _duration_s(dice, what, kind, every_s))


def _duration_s(dice: random.Random, what: What, kind: PartKind | None, every_s: float) -> float | None:
    """A controller that is stopped for good is a run that is: nobody is left to notice."""
    match what:
        case What.KILL:
            return 0.0
        case What.STOP:
            for_s = dice.uniform(0.5, 2 * every_s)
            return None if dice.random() < _NEVER_SHARE and kind is not PartKind.CONTROLLER else for_s
        case What.STARVE:
            return dice.uniform(*_STARVED_S)
        case What.DISK:
            return dice.uniform(*_FULL_S)
