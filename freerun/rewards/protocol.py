"""What the service asks a judge's worker: a request, and a verdict for each, in order (`machine/frames.py`)."""

from dataclasses import dataclass, field

from freerun.core import Task
from freerun.rewards.base import JudgedSample

SEES_SAMPLES = "sees samples"
"""What a worker says of itself, if one of its judges asks for the whole sample."""


@dataclass(frozen=True, slots=True)
class Request:
    task: Task
    text: str
    group: list[JudgedSample] = field(default_factory=list)
    """All answers to the task, for judges that ask for the whole sample; else empty."""
    index: int = 0
    """Which of them is to be judged."""
