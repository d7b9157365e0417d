"""OpenAI's Chat Completions, with vLLM's extensions."""

from collections.abc import Sequence
from typing import Any, ClassVar

from freerun.core import FinishReason
from freerun.core.task import Message
from freerun.engines.dialects.base import (
    ChatRequest,
    Json,
    NamedTool,
    ReplyWriter,
    Said,
    ToolCall,
    ToolChoice,
    Usage,
    Word,
)
from freerun.engines.dialects.bodies import CompletionsBody, read
from freerun.engines.dialects.conversation import check_choice, text_of
from freerun.engines.dialects.events import DONE, event
from freerun.engines.dialects.parameters import IGNORED, REFUSED
from freerun.engines.refused import Refused


class ChatBody(CompletionsBody, kw_only=True):
    ALTERNATIVES: ClassVar[str] = "top_logprobs"

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    """The chat template is told, as with `documents` and `chat_template_kwargs`."""
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """Whether the template opens the answer; unless told, it does, but where the last message is to be continued."""
    continue_final_message: bool = False
    add_special_tokens: bool = False
    echo: bool = False

    def wants_logprobs(self) -> bool:
        return self.logprobs

    def alternatives(self) -> int:
        return self.top_logprobs

    def longest_answer(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def wrong(self) -> tuple[str, str] | None:
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs", "needs logprobs: true"
        if self.echo:
            return "echo", "is for /v1/completions"
        if self.add_generation_prompt and self.continue_final_message:
            return "continue_final_message", "does not go with add_generation_prompt"
        return super().wrong()


class ChatDialect:
    def read(self, body: bytes) -> ChatRequest:
        read_body = read(body, ChatBody, IGNORED, REFUSED)
        if not read_body.messages:
            raise Refused("messages is empty", "messages")
        told = read_body.chat_template_kwargs or {}
        if read_body.reasoning_effort is not None:
            told = {"reasoning_effort": read_body.reasoning_effort} | told
        request = ChatRequest(
            body=read_body,
            messages=[_message(message) for message in read_body.messages],
            tools=[_tool(tool) for tool in read_body.tools or []],
            tool_choice=_tool_choice(read_body.tool_choice),
            parallel_tool_calls=read_body.parallel_tool_calls,
            model=read_body.model,
            n=read_body.n,
            max_tokens=read_body.longest_answer(),
            stop=read_body.stops(),
            stream=read_body.stream,
            template_options=told,
            continues=read_body.continue_final_message,
        )
        check_choice(request.tool_choice, request.tools)
        return request

    def writer(
        self, request: ChatRequest, id: str, model: str, created: int, prompt: Sequence[int] = (), word: Word = str
    ) -> ReplyWriter:
        return ChatWriter(request, f"chatcmpl-{id}", model, created, prompt, word)

    def refusal(self, message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
        return openai_refusal(message, status, param, code)


def openai_refusal(message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _message(given: dict[str, Any]) -> Message:
    """A null is as good as nothing; what else it has is the template's business."""
    message = {key: value for key, value in given.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str):
        raise Refused("every message needs a role", "messages")
    if "content" not in message and role != "assistant":
        raise Refused(f"a message of {role} needs content", "messages")
    message["content"] = text_of(message.get("content", ""), "messages", ("text",))
    if "reasoning" in message:  # what newer versions of vLLM call it
        message.setdefault("reasoning_content", message.pop("reasoning"))
    for call in message.get("tool_calls", ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused("every one of tool_calls needs function.name and function.arguments", "messages")
    return message


def _tool(tool: dict[str, Any]) -> Json:
    function = tool.get("function")
    if tool.get("type", "function") != "function":
        raise Refused(f"a tool must be of type function, and one is {tool.get('type')}", "tools")
    if not isinstance(function, dict):
        raise Refused("every tool needs its function: {type: function, function: {name, parameters}}", "tools")
    if not isinstance(function.get("name"), str):
        raise Refused("every tool needs function.name", "tools")
    return tool


def _tool_choice(given: str | dict[str, Any]) -> ToolChoice:
    if isinstance(given, dict):
        function = given.get("function")
        if given.get("type") == "function" and isinstance(function, dict) and isinstance(function.get("name"), str):
            return NamedTool(function["name"])
    elif given in ("auto", "none", "required"):
        return given  # type: ignore[return-value]
    rule = 'must be auto, none, required or {"type": "function", "function": {"name": …}}'
    raise Refused(f"tool_choice {rule}", "tool_choice")


class ChatWriter:
    def __init__(
        self, request: ChatRequest, id: str, model: str, created: int, prompt: Sequence[int], word: Word
    ) -> None:
        assert isinstance(request.body, ChatBody)
        self._body, self._n, self._prompt, self._word = request.body, request.n, prompt, word
        self._head = {"id": id, "created": created, "model": model}
        self._calls = [0] * request.n
        """How many calls a stream has told, by answer."""
        self._begun: set[int] = set()
        self._used = 0

    def whole(self, answers: Sequence[Said], usage: Usage) -> Json:
        reply = self._head | {"object": "chat.completion", "choices": [self._choice(said) for said in answers]}
        return reply | self._prompt_ids(True) | {"usage": _usage(usage)}

    def opening(self) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, role) for index in range(self._n))

    def piece(self, said: Said) -> bytes:
        """A call's name and arguments come apart, as OpenAI has it; what else there is comes with the last chunk."""
        self._used += len(said.tokens)
        deltas: list[Json] = []
        if said.reasoning:
            deltas.append({"reasoning_content": said.reasoning})
        if said.content:
            deltas.append({"content": said.content})
        for number, call in enumerate(said.tool_calls, self._calls[said.index]):
            opened = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            deltas.append({"tool_calls": [{"index": number} | opened]})
            deltas.append({"tool_calls": [{"index": number, "function": {"arguments": call.arguments}}]})
        self._calls[said.index] += len(said.tool_calls)
        says_more = self._body.wants_logprobs() or self._body.return_token_ids
        if not deltas and not said.finish and not says_more:
            return b""  # held back: half a character, or of a stop text, or of a call
        chunks = [self._chunk(said.index, delta) for delta in deltas[:-1]]
        return b"".join([*chunks, self._chunk(said.index, deltas[-1] if deltas else {}, said)])

    def closing(self, usage: Usage) -> bytes:
        if not self._body.stream_options.include_usage:
            return DONE
        last = self._head | {"object": "chat.completion.chunk", "choices": [], "usage": _usage(usage)}
        return event(last) + DONE

    def _choice(self, said: Said) -> Json:
        message: Json = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.tool_calls:
            message |= {"content": said.content or None, "tool_calls": [_call(call) for call in said.tool_calls]}
        return {
            "index": said.index,
            "message": message,
            "finish_reason": _finish(said.finish, bool(said.tool_calls)),
        } | self._tokens(said, is_first=True)

    def _chunk(self, index: int, delta: Json, said: Said | None = None) -> bytes:
        choice: Json = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        is_first = False
        if said:
            is_first = index not in self._begun
            self._begun.add(index)
            choice["finish_reason"] = _finish(said.finish, self._calls[index] > 0)
            choice |= self._tokens(said, is_first)
        reply = self._head | {"object": "chat.completion.chunk", "choices": [choice]} | self._prompt_ids(is_first)
        if self._body.stream_options.include_usage:
            given = len(self._prompt)
            so_far = Usage(given, self._used) if self._body.stream_options.continuous_usage_stats else None
            reply["usage"] = _usage(so_far) if so_far else None
        return event(reply)

    def _tokens(self, said: Said, is_first: bool) -> Json:
        told: Json = {"logprobs": _logprobs(said, self._word) if self._body.wants_logprobs() else None}
        if self._body.return_token_ids:
            told["token_ids"] = list(said.tokens)
            told["prompt_token_ids"] = list(self._prompt) if is_first else None
        return told

    def _prompt_ids(self, is_first: bool) -> Json:
        """vLLM says them beside the choices too."""
        return {"prompt_token_ids": list(self._prompt)} if self._body.return_token_ids and is_first else {}


def _finish(finish: FinishReason | None, has_calls: bool) -> str | None:
    return "tool_calls" if has_calls and finish is FinishReason.STOP else finish


def _call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _logprobs(said: Said, word: Word) -> Json:
    def entry(token: int, logprob: float) -> Json:
        return {"token": word(token), "logprob": logprob, "bytes": _bytes(word(token))}

    sampled = [entry(*pair) for pair in zip(said.tokens, said.logprobs, strict=True)]
    top = [[entry(*pair) for pair in others] for others in said.alternatives] or [[] for _ in sampled]
    content = [one | {"top_logprobs": others} for one, others in zip(sampled, top, strict=True)]
    return {"content": content, "refusal": None}


def _bytes(word: str) -> list[int] | None:
    """None for a token that is no whole character: its bytes are not to be had from its text."""
    return None if "\ufffd" in word else list(word.encode())
