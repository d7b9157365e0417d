"""What OpenAI's two routes take: read, checked, and turned into sampling.

What makes no sense, and what this engine cannot do, is refused by name; nothing is silently dropped but what changes
nothing (`parameters.py`).
"""

import secrets
from typing import Any

from freerun.engines.base import Sampling
from freerun.engines.dialects.bodies import Body, CompletionsBody
from freerun.engines.refused import Refused


class CompletionBody(CompletionsBody, kw_only=True):
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
