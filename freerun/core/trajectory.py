"""What a rollout comes to: for each member of a group, its conversation, its sample, and its reward or its failure."""

from dataclasses import dataclass, field

from freerun.core.nouns import Sample
from freerun.core.task import Message, Task


@dataclass(slots=True)
class Trajectory:
    """One member of a group: one way that a task went."""

    sample: Sample | None
    """What is trained on; None when it failed."""
    messages: list[Message] = field(default_factory=list)
    """The conversation, the policy's turns included. Without any: the prompt, and the sample's text."""
    reward: float | None = None
    """The rollout's own; without one, the judge decides."""
    error: str | None = None
    """Why it failed. It is left out of its group, and counted."""

    @classmethod
    def failed(cls, reason: str, messages: list[Message] | None = None) -> "Trajectory":
        return cls(None, messages or [], error=reason)


def prompt_messages(task: Task) -> list[Message]:
    """The task's prompt as a conversation."""
    return list(task.messages) or [{"role": "user", "content": str(task.extra.get("prompt") or task.prompt)}]
