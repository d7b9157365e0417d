"""Reads the bodies of requests: what every dialect's has in common, and how nonsense is refused.

What makes no sense, and what engines here cannot do, is refused by name; nothing is silently dropped but what changes
nothing (`parameters.py`).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from freerun.core.text import did_you_mean
from freerun.engines.extras import SamplingFields
from freerun.engines.refused import Refused

Unsupported = Mapping[str, tuple[list[Any], str]]
"""Parameters that are refused: the values that ask for nothing, which are taken, and what is replied to the others."""


class Body(SamplingFields, kw_only=True):
    """What every request for text has. What OpenAI and Anthropic do not have is vLLM's, under its name."""

    IS_BOUND: ClassVar[bool] = False
    """Whether the longest answer is no more than a bound: one that does not fit is cut to what does, not refused."""

    model: str | None = None
    stream: bool = False
    seed: int | None = None
    truncate_prompt_tokens: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def wrong(self) -> tuple[str, str] | None:
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens < 1:
            return "truncate_prompt_tokens", "must be 1 or more"
        return super().wrong()


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: what was used so far, with every chunk."""
    include_obfuscation: bool = True
    """OpenAI's, about its own network; changes nothing here."""


class CompletionsBody(Body, kw_only=True):
    """What OpenAI's two kinds of completions share."""

    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def longest_answer(self) -> int | None:
        return self.max_tokens

    def wants_logprobs(self) -> bool:
        """Whether to give the log-probability of each token. Each route asks for it by a field of its own."""
        return False


B = TypeVar("B", bound=Body)


def read(body: bytes, kind: type[B], ignored: Mapping[str, str], refused: Unsupported) -> B:
    """The body of a request. A null is as good as nothing, as with OpenAI."""
    values = {key: value for key, value in _object(body).items() if value is not None}
    known = {field.name for field in msgspec.structs.fields(kind)}
    for key in values.keys() - known - ignored.keys():
        _refuse(key, values[key], known, refused)
    try:
        request = msgspec.convert({key: values[key] for key in values.keys() & known}, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise Refused(f"the request's body: {error}", _field_of(error)) from None
    if wrong := request.wrong():
        raise Refused(f"{wrong[0]} {wrong[1]}", wrong[0])
    return request


def _refuse(key: str, value: Any, known: set[str], refused: Unsupported) -> None:
    if key in refused:
        harmless, instead = refused[key]
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
