"""What the controller must remember to go on as if it had never stopped: plain data, `control.json` of a checkpoint.

It belongs to one version of the weights: taken right after the step to that version, it says of every task so far
whether it is done with. What the admission formula counts is not in it, but follows from the version: see `Admission`.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from freerun.core.groups import Position, Tally
from freerun.core.task import Version


@dataclass(slots=True, frozen=True)
class SitOut:
    """A solved task is not asked for some passes over the data."""

    passes: int
    """How many it sits out."""
    until: int
    """The epoch in which it is dealt again."""


@dataclass(slots=True, frozen=True)
class RunState:
    """The default is a run's beginning."""

    version: Version = 0
    next_group: int = 0
    position: Position = field(default_factory=Position)
    """The position of the next task that was never dealt."""
    owed: list[Position] = field(default_factory=list)
    """Tasks that were dealt and neither trained on nor dropped, oldest first: they are dealt again first."""
    data: str = ""
    """The fingerprint of the stream that these positions are in."""
    tally: Tally = field(default_factory=Tally)
    resting: dict[str, SitOut] = field(default_factory=dict)
    """By task id: how long each solved task sits out."""
    supervised: bool = False
    """True for `freerun sft` and `freerun dpo`, where tasks are done with in their order."""
    preferences: bool = False
    """True for `freerun dpo`."""
    model: dict[str, Any] = field(default_factory=dict)
    """Which model the weights belong to, as whoever started the run describes it; older checkpoints do not say."""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> "RunState":
        """Raises msgspec.DecodeError for what is no state."""
        return msgspec.json.decode(text, type=cls)
