"""What the controller and a logger's process say to each other: one JSON object a line, either way."""

from typing import Any

import msgspec

from freerun.observe.loggers.base import LoggedSample, Outcome

FINISH_S = 10.0
"""How long a logger has to finish when the run is over."""


class Begin(msgspec.Struct, tag=True):
    """The first message: which logger, and of what run."""

    logger: str
    """A name, or FILE.py:Class."""
    called: str
    options: dict[str, Any]
    run: str
    folder: str
    config: dict[str, Any]
    step: int


class Step(msgspec.Struct, tag=True):
    step: int
    figures: dict[str, float]
    samples: list[LoggedSample]


class Evaluated(msgspec.Struct, tag=True):
    step: int
    figures: dict[str, float]


class Note(msgspec.Struct, tag=True):
    step: int
    text: str


class End(msgspec.Struct, tag=True):
    """The last message."""

    outcome: Outcome


Message = Begin | Step | Evaluated | Note | End


class Done(msgspec.Struct, tag=True):
    """A message was dealt with."""


class Says(msgspec.Struct, tag=True):
    """Something for the run's notes."""

    text: str


class Failed(msgspec.Struct, tag=True):
    """What a method raised. After `begin` the process ends; later it goes on with the next message."""

    text: str
    ends: bool


Reply = Done | Says | Failed
