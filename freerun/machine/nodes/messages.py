"""What controller and node say to each other, once they know who the other is."""

import msgspec

from freerun.machine.gpus import Gpu

HEARTBEAT_S = 1.0
"""How often each side says that it is there."""
LOST_S = 4.0
"""How long a side may be silent before the other gives it up. A node then ends all that runs on it."""


class _Message(msgspec.Struct, tag=True, kw_only=True):
    pass


class Offer(_Message):
    """A node's first: what it is and has."""

    id: str
    """Made when the node started: by it the node is known when it comes back."""
    name: str
    address: str
    """At which the others reach its processes."""
    processors: int
    memory: int
    gpus: list[Gpu]
    packages: dict[str, str]
    """Versions of what must agree, by name."""
    clock_s: float
    """The time of day by its clock."""


class Welcome(_Message):
    """The controller's first: the offer is taken."""

    name: str
    """What the run calls this machine."""
    run: str
    """A number of the run that is no secret: with the key, it makes the run's own key."""


class Refuse(_Message):
    """The controller's first: the offer cannot be taken."""

    why: str


class Heartbeat(_Message):
    """I am here. A node answers each of the controller's at once, and repeats its time beside its own."""

    sent_s: float
    """By the sender's monotonic clock."""
    echoed_s: float | None = None


class Start(_Message):
    """Run `python -m MODULE ARGUMENTS` as process `id`. In the arguments and the environment, {scratch} stands for the
    node's folder in shared memory."""

    id: int
    name: str
    module: str
    arguments: list[str]
    environment: dict[str, str]
    forks: bool = False
    """Whether from a process that has imported what it needs."""


class End(_Message):
    """End process `id`."""

    id: int


class Ready(_Message):
    """Process `id` says where it can be reached."""

    id: int
    where: str


class Ended(_Message):
    """Process `id` has ended. With a refusal, it was one of Freerun's own errors that kept it from getting ready."""

    id: int
    code: int
    tail: str
    """The end of its log."""
    refusal: str = ""
    """A `parent.Refusal` as JSON."""


class Printed(_Message):
    """What process `id` has written to its log since the last time."""

    id: int
    text: bytes


class Ask(_Message):
    """A question about the machine; see `questions.py`."""

    id: int
    what: str
    argument: str = ""


class Answer(_Message):
    id: int
    value: str


class Leave(_Message):
    """The run is over."""

    why: str


FromController = Welcome | Refuse | Heartbeat | Start | End | Ask | Leave
FromNode = Offer | Heartbeat | Ready | Ended | Printed | Answer
