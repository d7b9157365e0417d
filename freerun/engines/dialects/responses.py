"""OpenAI's Responses."""

from collections.abc import Sequence
from typing import Any

import msgspec

from freerun.core import FinishReason
from freerun.core.task import Message
from freerun.engines.dialects.base import ChatRequest, Json, NamedTool, ReplyWriter, Said, ToolChoice, Usage, Word
from freerun.engines.dialects.bodies import Body, read
from freerun.engines.dialects.chat import openai_refusal
from freerun.engines.dialects.conversation import check_choice, function_tool
from freerun.engines.dialects.events import event
from freerun.engines.dialects.parameters import RESPONSES_IGNORED, RESPONSES_REFUSED
from freerun.engines.dialects.response_items import messages_of
from freerun.engines.refused import Refused


class ResponsesBody(Body, kw_only=True):
    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its `effort` is told to the chat template; thoughts come back whatever it says."""
    text: dict[str, Any] = msgspec.field(default_factory=dict)
    truncation: str = "disabled"
    include: list[str] = msgspec.field(default_factory=list)
    store: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def longest_answer(self) -> int | None:
        return self.max_output_tokens

    def wrong(self) -> tuple[str, str] | None:
        if self.n != 1:
            return "n", "must be 1: a response is one answer, and /v1/chat/completions gives several"
        if self.text.get("format", {"type": "text"}) != {"type": "text"}:
            kind = self.text["format"].get("type") if isinstance(self.text["format"], dict) else self.text["format"]
            return "text", f"has format {kind}: nothing here makes an answer follow a grammar, ask for it in the prompt"
        if self.text.get("verbosity", "medium") != "medium":
            return "text", "has a verbosity: ask for a short or a long answer in the prompt"
        if self.truncation != "disabled":
            return "truncation", "must be disabled: send what the model shall read"
        if "message.output_text.logprobs" in self.include:
            return "include", "has message.output_text.logprobs: use /v1/chat/completions, which gives them"
        return super().wrong()


class ResponsesDialect:
    def read(self, body: bytes) -> ChatRequest:
        read_body = read(body, ResponsesBody, RESPONSES_IGNORED, RESPONSES_REFUSED)
        effort = read_body.reasoning.get("effort")
        told = ({"reasoning_effort": effort} if effort else {}) | read_body.chat_template_kwargs
        request = ChatRequest(
            body=read_body,
            messages=_instructions(read_body) + messages_of(read_body.input),
            tools=[_tool(tool) for tool in read_body.tools],
            tool_choice=_tool_choice(read_body.tool_choice),
            parallel_tool_calls=read_body.parallel_tool_calls,
            model=read_body.model,
            max_tokens=read_body.max_output_tokens,
            stream=read_body.stream,
            template_options=told,
            previous=read_body.previous_response_id,
        )
        if not request.messages:
            raise Refused("input is empty", "input")
        check_choice(request.tool_choice, request.tools)
        return request

    def writer(
        self, request: ChatRequest, id: str, model: str, created: int, prompt: Sequence[int] = (), word: Word = str
    ) -> ReplyWriter:
        return ResponsesWriter(request, id, model, created)

    def refusal(self, message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
        return openai_refusal(message, status, param, code)


def _instructions(body: ResponsesBody) -> list[Message]:
    return [{"role": "system", "content": body.instructions}] if body.instructions else []


def without_instructions(request: ChatRequest) -> list[Message]:
    """A response's instructions are its own: what goes on from it has others."""
    assert isinstance(request.body, ResponsesBody)
    return request.messages[len(_instructions(request.body)) :]


def continued(request: ChatRequest, earlier: Sequence[Message]) -> list[Message]:
    """The request's messages, going on from earlier ones."""
    assert isinstance(request.body, ResponsesBody)
    return [*_instructions(request.body), *earlier, *without_instructions(request)]


def _tool(tool: dict[str, Any]) -> Json:
    if tool.get("type") != "function":
        raise Refused(f"a tool must be of type function, and one is {tool.get('type')}", "tools")
    return function_tool(tool)


def _tool_choice(given: str | dict[str, Any]) -> ToolChoice:
    if isinstance(given, dict):
        if given.get("type") == "function" and isinstance(given.get("name"), str):
            return NamedTool(given["name"])
    elif given in ("auto", "none", "required"):
        return given  # type: ignore[return-value]
    raise Refused('tool_choice must be auto, none, required or {"type": "function", "name": …}', "tool_choice")


class ResponsesWriter:
    """An answer is a list of items: thoughts, text, calls. Those that are open take what comes next."""

    def __init__(self, request: ChatRequest, id: str, model: str, created: int) -> None:
        assert isinstance(request.body, ResponsesBody)
        self._body, self._id, self._model, self._created = request.body, id, model, created
        self._items: list[Json] = []
        self._is_open = False
        """Whether the last item, thoughts or text, may grow."""
        self._events: list[bytes] = []
        self._number = 0
        self._finish: FinishReason | None = None
        self.reply: Json = {}
        """The whole of it, once it is: what is kept of it."""

    def whole(self, answers: Sequence[Said], usage: Usage) -> Json:
        (said,) = answers
        self._add(said)
        self._close()
        self.reply = self._response(usage)
        return self.reply

    def opening(self) -> bytes:
        begun = self._response(None)
        self._tell("response.created", response=begun)
        self._tell("response.in_progress", response=begun)
        return self._told()

    def piece(self, said: Said) -> bytes:
        self._add(said)
        return self._told()

    def closing(self, usage: Usage) -> bytes:
        self._close()
        self.reply = self._response(usage)
        self._tell(f"response.{self.reply['status']}", response=self.reply)
        return self._told()

    def _add(self, said: Said) -> None:
        if said.reasoning:
            self._grow("reasoning", said.reasoning)
        if said.content or (said.finish and not self._has_said(said)):
            self._grow("message", said.content)
        for call in said.tool_calls:
            self._close()
            item = {"type": "function_call", "id": self._item_id("fc"), "call_id": call.id, "name": call.name}
            where = {"output_index": len(self._items), "item_id": item["id"]}
            self._tell(
                "response.output_item.added",
                output_index=len(self._items),
                item=item | {"arguments": "", "status": "in_progress"},
            )
            self._tell("response.function_call_arguments.delta", **where, delta=call.arguments)
            self._tell("response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments)
            self._items.append(item | {"arguments": call.arguments, "status": "completed"})
            self._tell("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])
        self._finish = said.finish

    def _has_said(self, said: Said) -> bool:
        """Whether there is more than thoughts: an answer without words or calls is an empty message."""
        return bool(said.tool_calls) or any(item["type"] != "reasoning" for item in self._items)

    def _grow(self, kind: str, text: str) -> None:
        if not self._is_open or self._items[-1]["type"] != kind:
            self._close()
            self._open(kind)
        self._items[-1]["content"][0]["text"] += text
        if text:
            more: Json = {"logprobs": []} if kind == "message" else {}
            self._tell(f"response.{_PART[kind]}.delta", **self._where(), delta=text, **more)

    def _open(self, kind: str) -> None:
        if kind == "message":
            item: Json = {"type": kind, "id": self._item_id("msg"), "role": "assistant", "status": "in_progress"}
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"type": kind, "id": self._item_id("rs"), "summary": [], "encrypted_content": None}
            item["status"], part = "in_progress", {"type": "reasoning_text", "text": ""}
        self._tell("response.output_item.added", output_index=len(self._items), item=item | {"content": []})
        self._items.append(item | {"content": [part]})
        self._is_open = True
        self._tell("response.content_part.added", **self._where(), part=part)

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open, item = False, self._items[-1]
        part, kind = item["content"][0], _PART[item["type"]]
        item["status"] = "completed" if self._finish in (None, FinishReason.STOP) else "incomplete"
        more: Json = {"logprobs": []} if kind == "output_text" else {}
        self._tell(f"response.{kind}.done", **self._where(), text=part["text"], **more)
        self._tell("response.content_part.done", **self._where(), part=part)
        self._tell("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._id}{len(self._items)}"

    def _where(self) -> Json:
        return {"output_index": len(self._items) - 1, "item_id": self._items[-1]["id"], "content_index": 0}

    def _tell(self, kind: str, **more: Any) -> None:
        self._events.append(event({"type": kind, "sequence_number": self._number} | more, kind))
        self._number += 1

    def _told(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events

    def _response(self, usage: Usage | None) -> Json:
        """`usage` is None for one that is still being written."""
        body, is_cut = self._body, self._finish is FinishReason.LENGTH
        status = "completed" if self._finish is FinishReason.STOP else "incomplete"
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if usage is None else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut and usage else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": list(self._items),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_diagnostics": None,  # pydantic-ai reads it, whether or not its openai client knows it
            "reasoning": {"effort": body.reasoning.get("effort"), "summary": None},
            "store": body.store,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.tool_choice,
            "tools": body.tools,
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": _usage(usage) if usage else None,
            "user": None,
            "metadata": body.metadata,
        }


_PART = {"message": "output_text", "reasoning": "reasoning_text"}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
