"""Why a request begins a branch of its own instead of going on where one ended; and which answers nobody used."""

from enum import StrEnum

from freerun.core.task import Message
from freerun.rollouts.gateway.history import Match
from freerun.rollouts.gateway.turns import SampledTurn


class ForkReason(StrEnum):
    """Each costs a sample more; none costs exactness."""

    EDITED = "edited"
    """A message of the conversation is not what it was."""
    COMPACTED = "compacted"
    """The conversation begins as one before, and is shorter: its middle was left out or summed up."""
    TOOLS = "tools_changed"
    """The same beginning, with other tools or options of the template."""
    TEMPLATE = "template_refused"
    """The chat template cannot say what follows a turn of the policy's, or (`history: template`) writes it anew."""
    FOREIGN = "foreign_assistant"
    """An assistant's message in it was said by somebody else."""
    AGAIN = "same_prompt"
    """The same prompt once more: n > 1, parallel calls, a vote."""
    NEW = "new_conversation"
    """Another beginning: a sub-agent, or a conversation after the first."""


class Apart(StrEnum):
    """Answers that nobody used: they are not trained on."""

    RETRIED = "retried"
    """The client asked again because it had not got it."""
    ORPHANED = "orphaned"
    """The client hung up before it had it."""
    OVERRIDDEN = "overridden"
    """The same was asked again afterwards, and the conversation went on from that."""


def reason_of(match: Match, messages: list[Message], longest: int) -> ForkReason:
    """For a request that begins as a conversation of the session does, and then parts from it. `longest` is how many
    messages the longest such conversation has."""
    if match.known == len(messages):
        return ForkReason.AGAIN
    if messages[match.known]["role"] == "assistant":
        return ForkReason.EDITED if match.policy_spoke_next else ForkReason.FOREIGN
    if match.turn is None and len(messages) < longest:
        return ForkReason.COMPACTED
    return ForkReason.EDITED


def overridden(turns: list[SampledTurn]) -> list[SampledTurn]:
    """Which answers to one prompt had ended before the one was asked for that the conversation goes on from."""
    went_on = [turn for turn in turns if turn.children]
    return [turn for turn in turns if not turn.children and any(turn.number < other.began for other in went_on)]
