"""Anthropic's Messages."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from freerun.core import FinishReason
from freerun.core.task import Message
from freerun.engines.dialects.base import ChatRequest, Json, NamedTool, ReplyWriter, Said, ToolChoice, Usage, Word
from freerun.engines.dialects.blocks import messages_of, system_of
from freerun.engines.dialects.bodies import Body, read
from freerun.engines.dialects.conversation import check_choice, function_tool
from freerun.engines.dialects.events import event
from freerun.engines.dialects.parameters import MESSAGES_IGNORED, MESSAGES_REFUSED
from freerun.engines.refused import Refused


class MessagesBody(Body, kw_only=True):
    IS_BOUND: ClassVar[bool] = True
    """Its clients must send a length, and send that of Anthropic's models."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[Any] | None = None
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: dict[str, Any] = msgspec.field(default_factory=dict)
    thinking: dict[str, Any] = msgspec.field(default_factory=dict)
    """The chat template is told `enable_thinking`, which it may know."""
    output_config: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its `effort` is told to the chat template."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop_sequences)

    def longest_answer(self) -> int | None:
        return self.max_tokens

    def wrong(self) -> tuple[str, str] | None:
        if self.n != 1:
            return "n", "must be 1: a message is one answer, and /v1/chat/completions gives several"
        if self.output_config.get("format"):
            return (
                "output_config",
                "has a format: nothing here makes an answer follow one, ask for it in the prompt",
            )
        return super().wrong()

    def template_options(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if "type" in self.thinking:
            told["enable_thinking"] = self.thinking["type"] != "disabled"
        if self.output_config.get("effort"):
            told["reasoning_effort"] = self.output_config["effort"]
        return told | self.chat_template_kwargs


class MessagesDialect:
    def read(self, body: bytes) -> ChatRequest:
        read_body = read(body, MessagesBody, MESSAGES_IGNORED, MESSAGES_REFUSED)
        if not read_body.messages:
            raise Refused("messages is empty", "messages")
        request = ChatRequest(
            body=read_body,
            messages=_system(read_body) + messages_of(body, read_body.messages),
            tools=[_tool(tool) for tool in read_body.tools],
            tool_choice=_tool_choice(read_body.tool_choice),
            parallel_tool_calls=not read_body.tool_choice.get("disable_parallel_tool_use", False),
            model=read_body.model,
            max_tokens=read_body.max_tokens,
            stop=read_body.stops(),
            stream=read_body.stream,
            template_options=read_body.template_options(),
            continues=read_body.messages[-1].get("role") == "assistant",
        )
        check_choice(request.tool_choice, request.tools)
        return request

    def writer(
        self, request: ChatRequest, id: str, model: str, created: int, prompt: Sequence[int] = (), word: Word = str
    ) -> ReplyWriter:
        return MessagesWriter(id, model, len(prompt))

    def refusal(self, message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _system(body: MessagesBody) -> list[Message]:
    text = system_of(body.system) if body.system else ""
    return [{"role": "system", "content": text}] if text else []


def _tool(tool: dict[str, Any]) -> Json:
    if tool.get("type", "custom") != "custom":
        raise Refused(f"tools of type {tool['type']} are Anthropic's own: give tools with an input_schema", "tools")
    return function_tool(tool, parameters="input_schema")


def _tool_choice(given: dict[str, Any]) -> ToolChoice:
    match given.get("type", "auto"):
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool" if isinstance(given.get("name"), str):
            return NamedTool(given["name"])
    raise Refused("tool_choice must be of type auto, any, none or tool, and a tool has a name", "tool_choice")


class MessagesWriter:
    """An answer is a list of blocks: thinking, text, tool_use. A stream tells one after the other."""

    def __init__(self, id: str, model: str, prompt_tokens: int) -> None:
        self._id, self._model, self._prompt_tokens = id, model, prompt_tokens
        self._last: Said | None = None
        self._blocks = 0
        self._open: str | None = None
        """The kind of block that may grow."""
        self._has_calls = False

    def whole(self, answers: Sequence[Said], usage: Usage) -> Json:
        (said,) = answers
        content: list[Json] = []
        if said.reasoning:
            content.append({"type": "thinking", "thinking": said.reasoning, "signature": self._id})
        if said.content:
            content.append({"type": "text", "text": said.content, "citations": None})
        for call in said.tool_calls:
            written = msgspec.Raw(call.arguments.encode())
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": written})
        return self._message(content, _usage(usage)) | _stop(said, bool(said.tool_calls))

    def opening(self) -> bytes:
        begun = self._message([], _usage(Usage(self._prompt_tokens)))
        return _event("message_start", message=begun | {"stop_reason": None, "stop_sequence": None}) + _event("ping")

    def piece(self, said: Said) -> bytes:
        self._last = said
        events = self._grow("thinking", said.reasoning) + self._grow("text", said.content)
        for call in said.tool_calls:
            self._has_calls = True
            events += self._begin("tool_use", {"id": call.id, "name": call.name, "input": {}})
            events += self._delta("input_json_delta", "partial_json", call.arguments) + self._end()
        return events

    def closing(self, usage: Usage) -> bytes:
        assert self._last
        used = _usage(usage)
        delta = _stop(self._last, self._has_calls)
        return self._end() + _event("message_delta", delta=delta, usage=used) + _event("message_stop")

    def _grow(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
        begun = b"" if self._open == kind else self._begin(kind, empty)
        return begun + self._delta(f"{kind}_delta", kind, text)

    def _begin(self, kind: str, empty: Json) -> bytes:
        ended = self._end()
        self._open = kind
        return ended + _event("content_block_start", index=self._blocks, content_block={"type": kind} | empty)

    def _delta(self, kind: str, key: str, text: str) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta={"type": kind, key: text})

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._delta("signature_delta", "signature", self._id) if self._open == "thinking" else b""
        ended = signed + _event("content_block_stop", index=self._blocks)
        self._open = None
        self._blocks += 1
        return ended

    def _message(self, content: list[Json], usage: Json) -> Json:
        head = {"id": f"msg_{self._id}", "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": content, "usage": usage}


def _event(kind: str, **more: Any) -> bytes:
    return event({"type": kind} | more, kind)


def _stop(said: Said, has_calls: bool) -> Json:
    if said.finish is not FinishReason.STOP:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if said.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": said.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> Json:
    """Anthropic counts tokens of the prompt that were in the cache apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
