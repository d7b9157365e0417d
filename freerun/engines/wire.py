"""The token routes' wire format, that of vLLM's `/inference/v1/generate`, in one place for server and client.

A group is one request. With `stream`, each answer comes as one or more chunks that carry its index; its last one has a
finish reason and the versions of its stretches of tokens. (Ours come whole, as each answer ends; clients that
ask for it get them in a binary form, that of `frames.py`.)
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

from freerun.core import EngineError, FinishReason, Version
from freerun.core.nouns import VersionRuns
from freerun.core.reports import WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import OnUpdate
from freerun.engines.extras import Alternatives, SamplingFields
from freerun.models.routes import RouteLayout, Routes

GENERATE = "/inference/v1/generate"


class SamplingParams(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    max_tokens: int = 16
    stop: str | list[str] | None = None
    seed: int = 0
    logprobs: int = 0
    """How many alternatives come with every token; its own log-probability always does."""
    return_routed_experts: bool = False
    """Whether the experts that each token went through come, too."""

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def longest_answer(self) -> int:
        return self.max_tokens

    def alternatives(self) -> int:
        return self.logprobs

    def sampling(self) -> Sampling:
        return Sampling(
            max_new_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            stop=self.stops(),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            routes=self.return_routed_experts,
            extras=self.extras(),
        )


class GenerateRequest(msgspec.Struct, kw_only=True):
    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    stream: bool = False


class TokenLogprob(msgspec.Struct, omit_defaults=True):
    token_id: int
    logprob: float
    top_logprobs: list["TokenLogprob"] = []


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob]


class Stretch(msgspec.Struct):
    """Tokens start..end (end excluded) were sampled by that version."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct, kw_only=True):
    index: int
    token_ids: list[int]
    logprobs: Logprobs
    weight_versions: list[Stretch] | None = None
    finish_reason: str | None = None
    num_cached_tokens: int | None = None
    """Tokens of the prompt that were in the cache; None from engines that do not say."""
    routed_experts: str | None = None
    """An array as numpy saves it, in base64: tokens − 1 × layers × experts of a token, or tokens − 1 × bytes."""


class GenerateResponse(msgspec.Struct):
    request_id: str
    choices: list[Choice]


class UpdateRequest(msgspec.Struct, omit_defaults=True):
    update_info: WeightsHandle
    on_update: OnUpdate | None = None
    """Ours alone: for this update, instead of the engine's own setting."""


class Health(msgspec.Struct):
    version: Version


def request_of(id: str, prompt: list[int], sampling: Sampling, n: int) -> GenerateRequest:
    """Without `extras`: no rollout asks for them."""
    params = SamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        seed=sampling.seed,
        return_routed_experts=sampling.routes,
        n=n,
    )
    return GenerateRequest(request_id=id, token_ids=prompt, sampling_params=params, stream=True)


def choice_of(
    index: int,
    tokens: list[int],
    logprobs: list[float],
    versions: list[Version],
    finish: FinishReason,
    alternatives: Sequence[Alternatives] = (),
    cached: int = 0,
    routes: Routes | None = None,
) -> Choice:
    """A whole answer."""
    content = [TokenLogprob(t, p) for t, p in zip(tokens, logprobs, strict=True)]
    for entry, others in zip(content, alternatives, strict=False):
        entry.top_logprobs = [TokenLogprob(token, logprob) for token, logprob in others]
    stretches = [Stretch(str(version), start, end) for version, start, end in VersionRuns.of(versions).stretches()]
    return Choice(
        index=index,
        token_ids=tokens,
        logprobs=Logprobs(content),
        weight_versions=stretches,
        finish_reason=finish.value,
        num_cached_tokens=cached,
        routed_experts=None if routes is None else _saved(routes),
    )


def _saved(routes: Routes) -> str:
    file = BytesIO()
    np.save(file, routes)
    return b64encode(file.getvalue()).decode()


def _loaded(text: str, layout: RouteLayout | None) -> Routes:
    """Ours are rows of bytes; vLLM's are numbers, by layer."""
    try:
        array = np.load(BytesIO(b64decode(text, validate=True)), allow_pickle=False)
        if array.ndim == 3 and layout:
            return layout.encoded(array)
        if array.ndim != 2 or array.dtype != np.uint8:
            raise ValueError(f"an array of {array.dtype} in {array.ndim} dimensions")
    except (ValueError, EOFError, OSError) as error:
        raise EngineError(f"the experts of an answer's tokens came in a form that is not known: {error}") from None
    routes: Routes = array
    return routes


class Answers:
    """Puts a stream's chunks together: an answer is complete with its finish reason."""

    def __init__(self, layout: RouteLayout | None = None) -> None:
        """`layout` is how the model's experts are written down."""
        self._layout = layout
        self._parts: dict[int, tuple[list[int], list[float]]] = {}

    def add(self, choice: Choice) -> Completion | None:
        tokens, logprobs = self._parts.setdefault(choice.index, ([], []))
        tokens.extend(choice.token_ids)
        logprobs.extend(entry.logprob for entry in choice.logprobs.content)
        if choice.finish_reason is None:
            return None
        versions = VersionRuns.joined((_version(s.version), s.end - s.start) for s in choice.weight_versions or [])
        if not len(tokens) == len(logprobs) == len(versions):
            raise EngineError(
                f"an answer of {len(tokens)} tokens came with {len(logprobs)} log-probabilities and versions for "
                f"{len(versions)}: the engine must give one of each a token"
            )
        finish = FinishReason(choice.finish_reason)
        routes = _loaded(choice.routed_experts, self._layout) if choice.routed_experts else None
        return Completion(choice.index, tokens, logprobs, versions, finish, choice.num_cached_tokens or 0, routes)


def _version(label: str) -> Version:
    return int(label.removeprefix("v"))


def encode(message: Any) -> bytes:
    return msgspec.json.encode(message)
