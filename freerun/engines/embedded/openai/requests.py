"""What OpenAI's two routes take: read, checked, and turned into prompts and sampling.

What makes no sense, and what this engine cannot do, is refused by name; nothing is silently dropped but what changes
nothing (`user` and its like).
"""

import json
import math
import secrets
from typing import Any, TypeVar

import msgspec

from freerun.engines.base import Sampling
from freerun.engines.embedded.openai.text import Tokenizer
from freerun.engines.embedded.replies import Refused

MOST_ANSWERS = 4096
"""Of one request, all prompts together."""
_CHANGE_NOTHING = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    "parallel_tool_calls",  # calls come back as the model's own text, one or several
}
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""What is not done, with the values that ask for nothing."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Body(msgspec.Struct, kw_only=True):
    """What both routes share. `top_k`, `stop_token_ids`, `ignore_eos` and `return_token_ids` are vLLM's extensions."""

    model: str | None = None
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    seed: int | None = None
    return_token_ids: bool = False

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def longest_answer(self) -> int | None:
        return self.max_tokens


class CompletionBody(Body, kw_only=True):
    prompt: str | list[Any]
    """Text, texts, token ids, or lists of token ids."""
    logprobs: int | None = None

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class ChatBody(Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    chat_template_kwargs: dict[str, Any] = {}
    """vLLM's extension: what else the template is told, such as `enable_thinking`."""

    def wants_logprobs(self) -> bool:
        return self.logprobs

    def longest_answer(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


B = TypeVar("B", bound=Body)


def read(body: bytes, kind: type[B]) -> B:
    """The body of a request. A null is as good as nothing, as with OpenAI."""
    values = {key: value for key, value in _object(body).items() if value is not None}
    known = {field.name for field in msgspec.structs.fields(kind)}
    for key in values.keys() - known - _CHANGE_NOTHING:
        if key not in _UNSUPPORTED:
            raise Refused(f"unknown parameter {key}", key, "unknown_parameter")
        if values[key] not in _UNSUPPORTED[key]:
            raise Refused(f"{key} is not supported: leave it out", key, "unsupported_parameter")
    try:
        request = msgspec.convert({key: values[key] for key in values.keys() & known}, kind)
    except msgspec.ValidationError as error:
        raise Refused(f"the request's body: {error}") from None
    _check(request)
    return request


def _object(body: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refused(f"the request's body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refused("the request's body should be a JSON object")
    return values


def _check(request: Body) -> None:
    longest = request.longest_answer()
    tool_choice = request.tool_choice if isinstance(request, ChatBody) else "auto"
    for sound, param, rule in (
        (1 <= request.n <= MOST_ANSWERS, "n", f"must lie in 1..{MOST_ANSWERS}"),
        (math.isfinite(request.temperature) and request.temperature >= 0, "temperature", "must be 0 or more"),
        (0 < request.top_p <= 1, "top_p", "must be above 0 and at most 1"),
        (request.top_k >= -1, "top_k", "must be 0 (all) or more"),
        ("" not in request.stops(), "stop", "must not be empty text"),
        (longest is None or longest >= 1, "max_tokens", "must be 1 or more"),
        (tool_choice in ("auto", "none"), "tool_choice", "must be auto or none: nothing makes the model call one"),
    ):
        if not sound:
            raise Refused(f"{param} {rule}", param)


def sampling_of(request: Body, prompt: list[int], longest: int, seed: int) -> Sampling:
    """How to sample an answer to that prompt: as long as fits, unless the request says."""
    room = longest - len(prompt)
    if not prompt:
        raise Refused("the prompt is empty", "prompt")
    if room < 1 or (request.longest_answer() or 0) > room:
        answer = request.longest_answer() or 1
        raise Refused(
            f"a prompt of {len(prompt)} tokens and an answer of {answer} exceed the {longest} tokens that the model "
            "and its cache hold",
            code="context_length_exceeded",
        )
    return Sampling(
        max_new_tokens=request.longest_answer() or room,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        stop=request.stops(),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        seed=seed,
    )


def seed_of(request: Body) -> int:
    """The request's own, or a new one. All prompts of a request share it: an answer depends on its prompt, the seed
    and its number alone, not on its company."""
    return secrets.randbits(62) if request.seed is None else request.seed


def prompts_of(request: CompletionBody, tokenizer: Tokenizer) -> list[list[int]]:
    prompt = request.prompt
    prompts = [prompt] if isinstance(prompt, str) or _are_tokens(prompt) else prompt
    if len(prompts) * request.n > MOST_ANSWERS:
        raise Refused(f"{len(prompts)} prompts with n={request.n} are more than {MOST_ANSWERS} answers", "prompt")
    if not all(isinstance(one, str) or _are_tokens(one) for one in prompts):
        raise Refused("prompt must be text, a list of texts, token ids, or a list of lists of token ids", "prompt")
    if not prompts or not all(prompts):
        raise Refused("the prompt is empty", "prompt")
    return [tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]


def _are_tokens(prompt: Any) -> bool:
    """Token ids; an empty list of them too, when it stands where one prompt should."""
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


def chat_prompt_of(request: ChatBody, tokenizer: Tokenizer) -> list[int]:
    if not request.messages:
        raise Refused("messages is empty", "messages")
    messages = [_message(message) for message in request.messages]
    tools = request.tools if request.tool_choice != "none" else []
    tokens: list[int] = tokenizer.render(messages, tools or None, request.chat_template_kwargs)
    return tokens


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As templates expect it: content as text, arguments of tool calls as objects."""
    if not isinstance(message.get("role"), str):
        raise Refused("every message needs a role", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise Refused("a message's content is text, or a list of text parts", "messages")
    message = message | {"content": content or ""}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def _text_of(part: Any) -> str:
    if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
        raise Refused("this model reads text only: a part of a message must be {type: text, text: …}", "messages")
    text: str = part["text"]
    return text


def _tool_call(call: Any) -> Any:
    """OpenAI writes arguments as JSON inside a string; templates want the object."""
    try:
        return call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
    except (TypeError, KeyError, ValueError):
        return call
