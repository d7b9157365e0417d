"""What a run is about, as plain data: a task, and the words that need no arrays. Judges import no more than this."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Version = int
"""A version of the policy: 0 is the starting checkpoint, and each training step adds one."""

Message = dict[str, Any]
"""A message of a conversation, as chat templates have it: `{"role": "user", "content": "…"}`."""


class FinishReason(StrEnum):
    """Why a sample ended, as the engine saw it."""

    STOP = "stop"
    """The policy ended it: a stop token or a stop string."""
    LENGTH = "length"
    """It ran into a length limit: truncated."""
    ABORT = "abort"
    """Somebody cancelled it."""


@dataclass(slots=True, frozen=True)
class Task:
    """A prompt, and what is needed to judge an answer to it."""

    id: str
    prompt: str
    """The text the policy sees, chat template applied: for people and judges. For an agent, who says itself what the
    policy sees, the data's own text, if it has any."""
    prompt_tokens: list[int]
    """The tokens the policy sees. What is trained on is exactly these and what was sampled after them. None for an
    agent's tasks."""
    answer: str | None = None
    """The reference answer, where the task has one."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Everything else the data gave: a judge may need it."""
    messages: list[Message] = field(default_factory=list)
    """The prompt's messages, where it is more than one message of a user's."""
