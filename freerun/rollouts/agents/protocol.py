"""What the pool asks a worker (a session), and what it says when that has ended (`machine/frames.py`)."""

from dataclasses import dataclass

from freerun.core import Task
from freerun.rollouts.agents.spec import Access


@dataclass(frozen=True, slots=True)
class SessionRequest:
    task: Task
    access: Access


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a session, said after its result. Nothing: the worker can run another."""

    what: str = ""
    """`a thread (poller)`: what could not be ended, save with the worker."""
