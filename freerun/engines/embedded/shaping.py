"""Sampling for requests that ask for more than temperature, top-k and top-p: in plain torch, on any device.

Such a request's logits are changed before they go to the sampler, so the log-probabilities that it gives are of the
changed ones. Rows that ask for nothing of the kind are untouched.
"""

import math
from collections import Counter

import torch
from torch import Tensor

from freerun.core import EngineError
from freerun.engines.base import Sampling
from freerun.engines.embedded.sampler import sample
from freerun.engines.embedded.sequence import Sequence
from freerun.engines.extras import Extras


def kernel_uniform(key: int, position: int) -> float:
    """What the sampling kernel of a GPU draws for that sequence's token: with it, an answer is the same (up to floating
    point) whether a burst samples it or this file does, for the company it keeps."""
    word = (1 << 32) - 1

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) & word
        x = ((x ^ (x >> 15)) * 0xD35A2D97) & word
        return x ^ (x >> 15)

    by_position = mixed((position * 0x9E3779B9 + 0x85EBCA6B) & word)
    return (mixed(mixed((key + by_position) & word) ^ by_position) >> 8) / (1 << 24)


def check_extras(extras: Extras, stops: frozenset[int], vocabulary: int) -> None:
    """Refuses what would leave nothing to sample."""
    for name, tokens in (
        ("logit_bias", [token for token, _ in extras.logit_bias]),
        ("allowed_token_ids", extras.allowed_token_ids),
    ):
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise EngineError(f"{name}: token ids must lie in 0..{vocabulary - 1}")
    if extras.min_tokens and stops.issuperset(extras.allowed_token_ids or range(vocabulary)):
        raise EngineError("min_tokens: every token that may be sampled ends the answer")


def sample_rows(logits_RV: Tensor, sequences: list[Sequence], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """As `sample`, with what each row's request asks for besides; alternatives are noted with the sequence."""
    how = [sequence.request.sampling for sequence in sequences]
    if is_special(sequences):
        logits_RV = logits_RV.float().clone()
        for logits_V, sequence in zip(logits_RV, sequences, strict=True):
            if extras := sequence.request.sampling.extras:
                _shape(logits_V, sequence, extras)
        _note_alternatives(logits_RV, sequences, how)
    return sample(logits_RV, how, uniforms)


def is_special(sequences: list[Sequence]) -> bool:
    return any(sequence.request.sampling.extras for sequence in sequences)


def _shape(logits_V: Tensor, sequence: Sequence, extras: Extras) -> None:
    """In place."""

    def ids(tokens: list[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=logits_V.device)

    if extras.allowed_token_ids:
        allowed = ids(list(extras.allowed_token_ids))
        kept = logits_V[allowed]
        logits_V.fill_(-torch.inf)[allowed] = kept
    if extras.logit_bias:
        tokens, biases = zip(*extras.logit_bias, strict=True)
        logits_V[ids(list(tokens))] += torch.tensor(biases, device=logits_V.device)
    if len(sequence.tokens) < extras.min_tokens:
        logits_V[ids([token for token in sequence.request.stops if 0 <= token < len(logits_V)])] = -torch.inf
    if extras.repetition_penalty != 1:
        seen = ids(list({*sequence.request.prompt, *sequence.tokens}))
        logits, penalty = logits_V[seen], extras.repetition_penalty
        logits_V[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)
    if sequence.tokens and (extras.frequency_penalty or extras.presence_penalty):
        times = Counter(sequence.tokens)
        logits_V[ids(list(times))] -= extras.frequency_penalty * ids(list(times.values())) + extras.presence_penalty


def _note_alternatives(logits_RV: Tensor, sequences: list[Sequence], how: list[Sampling]) -> None:
    """Keep the likeliest tokens for every row that asks, without those that must not be sampled at all."""
    for row, sequence in enumerate(sequences):
        extras = how[row].extras
        if extras and extras.top_logprobs:
            logprobs_V = (logits_RV[row] / (how[row].temperature or 1.0)).log_softmax(-1)
            best = logprobs_V.topk(min(extras.top_logprobs, len(logprobs_V)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            del sequence.alternatives[len(sequence.tokens) :]  # of a step whose tokens were thrown away
            sequence.alternatives.append([(token, logprob) for token, logprob in pairs if math.isfinite(logprob)])
