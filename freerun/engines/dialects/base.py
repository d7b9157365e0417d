"""What the three dialects (Chat Completions, Responses, Anthropic's Messages) have in common, as one set of nouns.

A dialect reads a body into a `ChatRequest` and writes `Said`s back, whole or as events; between the two, nobody needs
to know which one it was. `freerun serve` and the gateway of agents both speak all of them through this. Importable
without torch; knows nothing of HTTP servers, engines or sessions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from freerun.core import FinishReason
from freerun.core.task import Message
from freerun.engines.extras import Alternatives, SamplingFields

Json = dict[str, Any]
Word = Callable[[int], str]
"""What a token says."""


@dataclass(slots=True, frozen=True)
class NamedTool:
    """`tool_choice`: the answer must call this one."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(slots=True)
class ChatRequest:
    """A request in any dialect, in the words of Chat Completions."""

    body: SamplingFields
    """As it was read: how to sample, and whatever the dialect alone knows."""
    messages: list[Message]
    """role: system, user, assistant or tool. `content` is text. An assistant's may have `tool_calls`, whose `arguments`
    are a text of JSON, as sent, and `reasoning_content`; a tool's has `tool_call_id`."""
    tools: list[Json] = field(default_factory=list)
    """`{"type": "function", "function": {"name", "description", "parameters"}}` each."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    model: str | None = None
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    template_options: dict[str, Any] = field(default_factory=dict)
    """What the chat template is told besides: `reasoning_effort`, `enable_thinking`, …"""
    continues: bool = False
    """Whether the last message is the beginning of the answer, which goes on from there."""
    previous: str | None = None
    """`previous_response_id`: the messages go on from those of that response, and its answer."""

    @property
    def offered_tools(self) -> list[Json]:
        """Those that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """A text of JSON: an object."""


@dataclass(slots=True)
class Said:
    """What one answer says, or what a piece of it adds, taken apart: thoughts, text, calls of tools."""

    index: int = 0
    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """Complete ones: a call is not told before it is whole."""
    finish: FinishReason | None = None
    """None: there is more to come."""
    stopped_by: str | None = None
    """The stop text that ended it, if one did."""
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    alternatives: Sequence[Alternatives] = ()

    def add(self, more: "Said") -> None:
        """The next piece of the same answer. Lists grow in place: they must be this one's own."""
        self.reasoning += more.reasoning
        self.content += more.content
        self.tool_calls = [*self.tool_calls, *more.tool_calls]
        self.finish, self.stopped_by = more.finish, more.stopped_by
        self.tokens = _joined(self.tokens, more.tokens)
        self.logprobs = _joined(self.logprobs, more.logprobs)
        self.alternatives = _joined(self.alternatives, more.alternatives)

    def message(self) -> Message:
        """As a message of the assistant's, in a history."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


T = TypeVar("T")


def _joined(given: Sequence[T], more: Sequence[T]) -> Sequence[T]:
    joined = given if isinstance(given, list) else list(given)
    joined.extend(more)
    return joined


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ReplyWriter(Protocol):
    """Writes one request's reply. `whole` for all of it at once; or `opening`, `piece`s as they come, and `closing`."""

    def whole(self, answers: Sequence[Said], usage: Usage) -> Json: ...

    def opening(self) -> bytes:
        """Server-sent events, as the bytes to send; so are the others."""
        ...

    def piece(self, said: Said) -> bytes: ...

    def closing(self, usage: Usage) -> bytes: ...


class Dialect(Protocol):
    def read(self, body: bytes) -> ChatRequest:
        """Raises Refused, whose message names the fix."""
        ...

    def writer(
        self, request: ChatRequest, id: str, model: str, created: int, prompt: Sequence[int] = (), word: Word = str
    ) -> ReplyWriter:
        """`id` is a bare one, without the dialect's prefix (`chatcmpl-`, `resp_`, `msg_`). `prompt` and `word` are for
        those who ask for token ids and log-probabilities."""
        ...

    def refusal(self, message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
        """The body of an error, in the dialect's shape."""
        ...
