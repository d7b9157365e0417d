"""What OpenAI's two routes take: read, checked, and turned into sampling.

What makes no sense, and what this engine cannot do, is refused by name; nothing is silently dropped but what changes
nothing (`parameters.py`).
"""

import secrets
from typing import Any, ClassVar, TypeVar

import msgspec

from freerun.core.text import did_you_mean
from freerun.engines.base import Sampling
from freerun.engines.embedded.openai.parameters import IGNORED, REFUSED
from freerun.engines.embedded.replies import Refused
from freerun.engines.extras import SamplingFields


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: what was used so far, with every chunk."""
    include_obfuscation: bool = True
    """OpenAI's, about its own network; changes nothing here."""


class Body(SamplingFields, kw_only=True):
    """What both routes share. What OpenAI does not have is vLLM's, under its name."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def longest_answer(self) -> int | None:
        return self.max_tokens

    def wants_logprobs(self) -> bool:
        """Whether to give the log-probability of each token. Each route asks for it by a field of its own."""
        return False

    def wrong(self) -> tuple[str, str] | None:
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens < 1:
            return "truncate_prompt_tokens", "must be 1 or more"
        return super().wrong()


class CompletionBody(Body, kw_only=True):
    prompt: str | list[Any]
    """Text, texts, token ids, or lists of token ids."""
    logprobs: int | None = None
    """How many alternatives come with every token; with 0 its own log-probability alone."""
    echo: bool = False
    best_of: int | None = None
    add_special_tokens: bool = True

    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def alternatives(self) -> int:
        return self.logprobs or 0

    def wrong(self) -> tuple[str, str] | None:
        if self.best_of not in (None, self.n):
            return "best_of", "must be n: as many answers come back as are made"
        if self.echo and self.wants_logprobs():
            return "echo", "does not go with logprobs: those of a prompt are not computed"
        return super().wrong()


class ChatBody(Body, kw_only=True):
    ALTERNATIVES: ClassVar[str] = "top_logprobs"

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
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
        if self.tool_choice not in ("auto", "none"):
            return "tool_choice", "must be auto or none: nothing makes the model call one"
        if self.echo:
            return "echo", "is for /v1/completions"
        if self.add_generation_prompt and self.continue_final_message:
            return "continue_final_message", "does not go with add_generation_prompt"
        return super().wrong()


B = TypeVar("B", bound=Body)


def read(body: bytes, kind: type[B]) -> B:
    """The body of a request. A null is as good as nothing, as with OpenAI."""
    values = {key: value for key, value in _object(body).items() if value is not None}
    known = {field.name for field in msgspec.structs.fields(kind)}
    for key in values.keys() - known - IGNORED.keys():
        _refuse(key, values[key], known)
    try:
        request = msgspec.convert({key: values[key] for key in values.keys() & known}, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise Refused(f"the request's body: {error}", _field_of(error)) from None
    if wrong := request.wrong():
        raise Refused(f"{wrong[0]} {wrong[1]}", wrong[0])
    return request


def _refuse(key: str, value: Any, known: set[str]) -> None:
    if key in REFUSED:
        harmless, instead = REFUSED[key]
        if value not in harmless:
            raise Refused(f"{key} is not supported: {instead}", key, "unsupported_parameter")
        return
    raise Refused(f"unknown parameter {key}{did_you_mean(key, known)}", key, "unknown_parameter")


def _field_of(error: msgspec.ValidationError) -> str | None:
    """msgspec ends its messages with where it was: at `$.temperature`."""
    _, _, where = str(error).partition("`$.")
    return where.rstrip("`").partition("[")[0].partition(".")[0] or None


def _object(body: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refused(f"the request's body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refused("the request's body should be a JSON object")
    return values


def sampling_of(request: Body, prompt: list[int], longest: int, seed: int) -> Sampling:
    """How to sample an answer to that prompt: as long as fits, unless the request says."""
    room = longest - len(prompt)
    asked = request.longest_answer() or request.min_tokens or 1
    if room < asked:
        raise Refused(
            f"a prompt of {len(prompt)} tokens and an answer of {asked} exceed the {longest} tokens that the model "
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
        extras=request.extras(),
    )


def seed_of(request: Body) -> int:
    """The request's own, or a new one. All prompts of a request share it: an answer depends on its prompt, the seed
    and its number alone, not on its company."""
    return secrets.randbits(62) if request.seed is None else request.seed
