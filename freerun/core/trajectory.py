"""What a rollout comes to: for each member of a group, its conversation, its sample, and its reward or its failure."""

from dataclasses import dataclass, field

from freerun.core.nouns import Sample
from freerun.core.reports import SessionReport
from freerun.core.task import Message, Task


@dataclass(slots=True)
class Trajectory:
    """One member of a group: one way that a task went."""

    sample: Sample | None
    """What is trained on, and what the judge sees; None when it failed."""
    messages: list[Message] = field(default_factory=list)
    """The conversation, the policy's turns included. Without any: the prompt, and the sample's text."""
    reward: float | None = None
    """The rollout's own; without one, the judge decides."""
    error: str | None = None
    """Why it failed. It is left out of its group, and counted."""
    branches: list[Sample] = field(default_factory=list)
    """Other samples of the same member, where its conversation was not one line: they are trained on, too, with the
    same reward, and share its weight."""
    session: SessionReport | None = None
    """How the agent's requests went, if it is an agent's."""

    @property
    def samples(self) -> list[Sample]:
        return [] if self.sample is None else [self.sample, *self.branches]

    @classmethod
    def failed(
        cls, reason: str, messages: list[Message] | None = None, session: SessionReport | None = None
    ) -> "Trajectory":
        return cls(None, messages or [], error=reason, session=session)


def prompt_messages(task: Task) -> list[Message]:
    """The task's prompt as a conversation."""
    return list(task.messages) or [{"role": "user", "content": str(task.extra.get("prompt") or task.prompt)}]
