"""From a request to how its answers are sampled."""

import secrets

from freerun.engines.base import Sampling
from freerun.engines.dialects.bodies import Body
from freerun.engines.refused import Refused


def sampling_of(request: Body, prompt: list[int], longest: int, seed: int) -> Sampling:
    """How to sample an answer to that prompt: as long as fits, unless the request says."""
    room, told = longest - len(prompt), request.longest_answer()
    if told and request.IS_BOUND:
        told = max(min(told, room), 1)
    asked = told or request.min_tokens or 1
    if room < asked:
        raise Refused(
            f"a prompt of {len(prompt)} tokens and an answer of {asked} exceed the {longest} tokens that the model "
            "and its cache hold",
            code="context_length_exceeded",
        )
    return Sampling(
        max_new_tokens=told or room,
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
