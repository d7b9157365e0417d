"""What the controller must remember to go on as if it had never stopped: plain data, `control.json` of a checkpoint.

It belongs to one version of the weights: taken right after the step to that version is settled, it says of every task
so far whether it is done with. What the admission formula counts is not in it, but follows from the version: see
`Admission`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from freerun.control.ledger import Tally
from freerun.control.solved import SitOut
from freerun.core import ConfigError, Version
from freerun.data.stream import Position


@dataclass(slots=True, frozen=True)
class ControlState:
    """The default is a run's beginning."""

    version: Version = 0
    next_group: int = 0
    position: Position = field(default_factory=Position)
    """Of the next task that was never dealt."""
    owed: list[Position] = field(default_factory=list)
    """Tasks that were dealt and neither trained on nor dropped, oldest first: they are dealt again first."""
    data: str = ""
    """The fingerprint of the stream that these positions are in."""
    tally: Tally = field(default_factory=Tally)
    resting: dict[str, SitOut] = field(default_factory=dict)
    """By the tasks' ids: how long the solved ones sit out."""
    supervised: bool = False
    """Of `freerun sft`, where tasks are done with in their order."""
    model: dict[str, Any] = field(default_factory=dict)
    """What the weights are of, as who started the run describes it; older checkpoints do not say."""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"


def read_state(file: Path) -> ControlState:
    try:
        return msgspec.json.decode(file.read_bytes(), type=ControlState)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): resume with the Freerun that wrote it") from None
