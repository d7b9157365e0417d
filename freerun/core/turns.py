"""A conversation by turns: what people are shown of a sample, and what rewards by turn belong to."""

from dataclasses import dataclass

from freerun.core.task import Message


@dataclass(slots=True)
class Turn:
    """One message of a sample's conversation."""

    message: Message
    """As the chat API has it: role, content, and where there are some `tool_calls` and `reasoning_content`."""
    sampled: bool = False
    """Whether the policy said it. What others said, or a program put into its mouth, is given."""
    start: int = 0
    end: int = 0
    """Where its tokens are in the sample, if it was sampled (end excluded)."""
    reward: float | None = None
    """What it was given of its own; the reward of the whole is the sample's."""
