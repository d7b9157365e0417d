"""What the controller and a judge process on another machine say to each other, over a `Link`."""

import msgspec

from freerun.rewards.base import Verdict

HEARTBEAT_S = 1.0
"""How often a judge process says that it is there."""
LOST_S = 5.0
"""How long it may be silent before it is given up."""


class _Message(msgspec.Struct, tag=True, kw_only=True):
    pass


class About(_Message):
    """The judge's first: which of its pools, by number, have a judge that asks for the whole sample."""

    sees_samples: list[int]


class ToJudge(_Message):
    id: int
    pool: int
    request: bytes
    """A framed `Request`: what a worker on the controller's machine would be sent."""


class Judgement(_Message):
    id: int
    verdict: Verdict


class Here(_Message):
    """I am here."""


FromJudge = About | Judgement | Here
