"""Sequences into padding-free micro-batches. What several of them begin with is there once (`prefixes.py`).

Shapes: S sequences; T their tokens in a row, without those that are there already; A trained tokens (those with a
loss).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapreplace

import numpy as np
import torch
from torch import Tensor

from freerun.core import Sample
from freerun.core.nouns import Returns
from freerun.train.prefixes import bundles, distinct_tokens, first_trained, shared_ranges


def micro_batches(lengths: Sequence[int], capacity: int, multiple: int = 1) -> list[list[int]]:
    """Which sequences (or bundles) go together, so that all have about as many tokens, and none more than `capacity`.

    Longest first, each joins the micro-batch that holds the fewest tokens. There are as many as all tokens need, and
    more where that does not do, but never more than first-fit decreasing or the paper's Algorithm 1 need, which fill
    one after another. Their number is a `multiple` of some number, which may leave some empty. A sequence longer than
    the capacity is alone.
    """
    by_length = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    alone = [[i] for i in by_length if lengths[i] > capacity]
    others = by_length[len(alone) :]

    def rounded(number: int) -> int:
        return number + -(number + len(alone)) % multiple

    def fits(number: int) -> bool:
        return all(sum(lengths[i] for i in batch) <= capacity for batch in _evenly(others, lengths, number))

    least = rounded(-(-sum(lengths[i] for i in others) // capacity))
    if fits(least):
        return alone + _evenly(others, lengths, least)
    fewest = min((fill(others, lengths, capacity) for fill in (_first_fit, _fewest_first)), key=len)
    numbers = range(least, rounded(len(fewest)) + 1, multiple)
    place = bisect_left(numbers, True, key=fits)
    if place < len(numbers):
        return alone + _evenly(others, lengths, numbers[place])
    return alone + fewest + [[] for _ in range(numbers[-1] - len(fewest))]


def _evenly(order: Sequence[int], lengths: Sequence[int], number: int) -> list[list[int]]:
    """Each in turn joins the one of `number` that holds the fewest tokens."""
    batches: list[list[int]] = [[] for _ in range(number)]
    emptiest = [(0, batch) for batch in range(number)]
    for index in order:
        used, batch = emptiest[0]
        batches[batch].append(index)
        heapreplace(emptiest, (used + lengths[index], batch))
    return batches


def _first_fit(order: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Each in turn joins the first that has room for it."""
    return _filled(order, lengths, capacity, lambda room, _: np.zeros_like(room))


def _fewest_first(order: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The paper's Algorithm 1: each in turn joins the one with the fewest sequences of those that have room for it."""
    return _filled(order, lengths, capacity, lambda room, held: held * (capacity + 1) - room)


def _filled(
    order: Sequence[int],
    lengths: Sequence[int],
    capacity: int,
    cost: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> list[list[int]]:
    """Each in turn joins the cheapest of those with room for it; where there is none, it begins another."""
    batches: list[list[int]] = []
    room, held = np.full(len(order), capacity), np.zeros(len(order), int)
    for index in order:
        begun = slice(0, len(batches))
        fits = room[begun] >= lengths[index]
        if fits.any():
            batch = int(np.argmin(np.where(fits, cost(room[begun], held[begun]), np.iinfo(int).max)))
        else:
            batch = len(batches)
            batches.append([])
        batches[batch].append(index)
        room[batch] -= lengths[index]
        held[batch] += 1
    return batches


def dealt(lengths: Sequence[int], capacity: int, ranks: int) -> list[list[list[int]]]:
    """Micro-batches for each rank, the same number for all, and those computed at the same time of similar size.

    Where there are too few sequences for that, some micro-batches are empty.
    """
    batches = micro_batches(lengths, capacity, ranks)
    batches.sort(key=lambda batch: -sum(lengths[i] for i in batch))
    return [batches[rank::ranks] for rank in range(ranks)]


def shared_out(samples: Sequence[Sample], capacity: int, ranks: int = 1) -> list[list[list[int]]]:
    """For each rank its micro-batches of samples, those that have much in common together. Within a micro-batch they
    are in the order in which they share most: who trains a token before those who are only given it.

    One rank need not be even. Several wait for each other, so that no bundle is more than a quarter of a rank's share.
    """
    share = -(-distinct_tokens(samples) // (4 * ranks)) if ranks > 1 else capacity
    together = bundles(samples, min(capacity, share))
    shares = dealt([bundle.load for bundle in together], capacity, ranks)
    result = [[[place for i in micro for place in together[i].samples] for micro in mine] for mine in shares]
    for places in (places for mine in result for places in mine):
        places.sort(key=lambda place: first_trained(samples[place]))
    return result


Advantage = float | Returns
"""What a sequence has: one value for all its tokens, or values by token, as runs."""


@dataclass(slots=True)
class Packed:
    """One micro-batch. `rows_A` are the positions whose hidden state predicts the trained tokens `targets_A`."""

    tokens_T: Tensor
    positions_T: Tensor
    lengths: list[int]
    """Tokens that each sequence has among these, its prefix aside."""
    prefixes: list[list[range]]
    """Where the tokens before them are: rows of earlier sequences that begin alike."""
    rows_A: Tensor
    targets_A: Tensor
    behavior_A: Tensor
    """Log-probabilities by whoever sampled the token."""
    advantages_A: Tensor
    versions_A: Tensor
    sequence_A: Tensor
    """Which sequence of the micro-batch a trained token belongs to."""
    weights_A: Tensor
    """What the token counts in the loss of the minibatch."""
    proximal_A: Tensor | None = None
    """Log-probabilities by the weights before the step, where they had to be computed."""
    reference_A: Tensor | None = None
    """Log-probabilities by the model that training began with, where the loss needs them."""
    teacher_A: Tensor | None = None
    """Log-probabilities by the teacher, where there is one."""
    penalty_A: Tensor | None = None
    """What each token's divergence from that model takes from the reward, where that is by token."""
    values_A: Tensor | None = None
    """The critic's, before the step."""
    returns_A: Tensor | None = None
    places: list[int] = field(default_factory=list)
    """Which samples of the batch its sequences are."""
    probe_P: Tensor | None = None
    """Trained tokens at which top-k and top-p are looked at, where there are such (`cutoffs.py`)."""
    cut_off_P: Tensor | None = None
    """What was found there by the weights before the step, where that took a pass of its own."""
    routes_T: Tensor | None = None
    """Which experts each token went through in the engine: its bytes (`models/routes.py`), where that is known."""

    @property
    def num_trained(self) -> int:
        return len(self.targets_A)

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> "Packed":
        if device.type == "cpu":
            return self
        names = [name for name in self.__slots__ if isinstance(getattr(self, name), Tensor)]
        return replace(self, **{n: getattr(self, n).pin_memory().to(device, non_blocking=True) for n in names})


def pack(
    samples: Sequence[Sample], advantages: Sequence[Advantage] | None = None, weights: Sequence[float] | None = None
) -> Packed:
    """A token at position p of its sequence is predicted by p − 1; the first token of a sequence has no prediction.

    A weight is that of each token of a sequence. Without advantages and weights they are 0 and 1. Samples share most
    when they come in the order of their first trained tokens.
    """
    prefixes = shared_ranges(samples)
    skipped = [sum(map(len, prefix)) for prefix in prefixes]
    lengths_S = np.array([len(sample.tokens) - skip for sample, skip in zip(samples, skipped, strict=True)])

    def own(by_token: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([values[skip:] for values, skip in zip(by_token, skipped, strict=True)])

    sequence_T = np.repeat(np.arange(len(samples)), lengths_S)
    place_T = np.arange(len(sequence_T)) - (np.cumsum(lengths_S) - lengths_S)[sequence_T]
    positions_T = place_T + np.array(skipped)[sequence_T]
    at_A = np.flatnonzero(own(sample.loss_mask for sample in samples) & (positions_T > 0))
    of_A = sequence_T[at_A]
    prefix_ends_S = np.array([prefix[-1][-1] if prefix else 0 for prefix in prefixes])
    tokens_T = own(sample.tokens for sample in samples).astype(np.int64)
    arrays = {
        "tokens_T": tokens_T,
        "positions_T": positions_T,
        # the first token with a loss is predicted by the prefix's last, wherever that is
        "rows_A": np.where(place_T[at_A] > 0, at_A - 1, prefix_ends_S[of_A]),
        "targets_A": tokens_T[at_A],
        "behavior_A": own(sample.behavior_logprobs for sample in samples)[at_A],
        "advantages_A": own(map(_by_token, advantages or [0.0] * len(samples), samples))[at_A],
        "versions_A": own(sample.versions.by_token() for sample in samples)[at_A],
        "sequence_A": of_A,
        "weights_A": np.array(weights or [1.0] * len(samples), np.float32)[of_A],
    }
    if all(sample.teacher_logprobs is not None for sample in samples):
        arrays["teacher_A"] = own(s.teacher_logprobs for s in samples if s.teacher_logprobs is not None)[at_A]
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    widths = {sample.routes.shape[1] for sample in samples if sample.routes is not None}
    if widths:
        rows = own(_routes(sample, max(widths)) for sample in samples)
        tensors["routes_T"] = torch.from_numpy(rows)
    return Packed(lengths=lengths_S.tolist(), prefixes=prefixes, places=[], **tensors)


def _routes(sample: Sample, width: int) -> np.ndarray:
    return np.full((len(sample.tokens), width), 255, np.uint8) if sample.routes is None else sample.routes


def _by_token(advantage: Advantage, sample: Sample) -> np.ndarray:
    runs = ((advantage, len(sample.tokens)),) if isinstance(advantage, float | int) else advantage
    return np.repeat(np.array([value for value, _ in runs], np.float32), [count for _, count in runs])


def num_trained(sample: Sample) -> int:
    """How many of its tokens carry a loss."""
    return int(np.count_nonzero(sample.loss_mask[1:]))


def untrained(sample: Sample) -> Sample:
    """The same tokens, none with a loss."""
    marks = np.zeros(len(sample.tokens), np.bool_)
    given = sample.tokens, marks, sample.behavior_logprobs, sample.versions, sample.finish
    routes, taught = sample.routes, sample.teacher_logprobs
    return Sample(*given, reward=sample.reward, routes=routes, teacher_logprobs=taught)
