"""Sequences into padding-free micro-batches. Answers to the same prompt that go together have it once.

Shapes: S sequences; T their tokens in a row, without prompts that are there already; A trained tokens (those with a
loss).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace

import numpy as np
import torch
from torch import Tensor

from freerun.core import Sample
from freerun.core.nouns import Tokens


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


@dataclass(slots=True)
class Bundle:
    """Samples with the same prompt, which should stay together: it is computed once for all of them."""

    samples: list[int]
    load: int
    """What it takes of a micro-batch's capacity, in tokens. Who shares a prompt still has its keys and values to
    himself while he looks at them: each of its tokens counts a quarter."""


def bundles(samples: Sequence[Sample], capacity: int) -> list[Bundle]:
    """As many samples together as an eighth of a micro-batch holds, so that bundles still fill micro-batches evenly."""
    result: list[Bundle] = []
    growing: dict[bytes, Bundle] = {}
    for index, sample in enumerate(samples):
        prompt, length = prompt_of(sample), len(sample.tokens)
        more = length - len(prompt) * 3 // 4
        key = prompt.tobytes()
        bundle = growing.get(key)
        if bundle and key and 8 * (bundle.load + more) <= capacity:
            bundle.samples.append(index)
            bundle.load += more
        else:
            growing[key] = Bundle([index], length)
            result.append(growing[key])
    return result


def prompt_of(sample: Sample) -> Tokens:
    """What comes before the first token with a loss; nothing, where there is none."""
    return sample.tokens[: sample.loss_mask.argmax()] if sample.loss_mask.any() else sample.tokens[:0]


@dataclass(slots=True)
class Packed:
    """One micro-batch. `rows_A` are the positions whose hidden state predicts the trained tokens `targets_A`."""

    tokens_T: Tensor
    positions_T: Tensor
    lengths: list[int]
    """Tokens that each sequence has among these, its prefix aside."""
    prefixes: list[range]
    """Where the tokens before them are: empty, or the prompt of an earlier sequence with the same one."""
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
    penalty_A: Tensor | None = None
    """What each token's divergence from that model takes from the reward, where that is by token."""
    values_A: Tensor | None = None
    """The critic's, before the step."""
    returns_A: Tensor | None = None

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
    samples: Sequence[Sample], advantages: Sequence[float] | None = None, weights: Sequence[float] | None = None
) -> Packed:
    """A token at position p of its sequence is predicted by p − 1; the first token of a sequence has no prediction.

    Advantage and weight are those of each token of a sequence; without them, 0 and 1.
    """
    prefixes = _shared(samples)
    skipped = [len(prefix) for prefix in prefixes]
    lengths_S = np.array([len(sample.tokens) - skip for sample, skip in zip(samples, skipped, strict=True)])

    def own(by_token: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([values[skip:] for values, skip in zip(by_token, skipped, strict=True)])

    sequence_T = np.repeat(np.arange(len(samples)), lengths_S)
    place_T = np.arange(len(sequence_T)) - (np.cumsum(lengths_S) - lengths_S)[sequence_T]
    positions_T = place_T + np.array(skipped)[sequence_T]
    at_A = np.flatnonzero(own(sample.loss_mask for sample in samples) & (positions_T > 0))
    of_A = sequence_T[at_A]
    prompt_ends_S = np.array([prefix[-1] if prefix else 0 for prefix in prefixes])
    tokens_T = own(sample.tokens for sample in samples).astype(np.int64)
    arrays = {
        "tokens_T": tokens_T,
        "positions_T": positions_T,
        # the first token with a loss is predicted by the prompt's last, wherever that is
        "rows_A": np.where(place_T[at_A] > 0, at_A - 1, prompt_ends_S[of_A]),
        "targets_A": tokens_T[at_A],
        "behavior_A": own(sample.behavior_logprobs for sample in samples)[at_A],
        "advantages_A": np.array(advantages or [0.0] * len(samples), np.float32)[of_A],
        "versions_A": own(sample.versions.by_token() for sample in samples)[at_A],
        "sequence_A": of_A,
        "weights_A": np.array(weights or [1.0] * len(samples), np.float32)[of_A],
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Packed(lengths=lengths_S.tolist(), prefixes=prefixes, **tensors)


def _shared(samples: Sequence[Sample]) -> list[range]:
    """For each sample, where an earlier one has the same prompt among the tokens of all; empty where none has."""
    prefixes: list[range] = []
    prompts: dict[bytes, range] = {}
    start = 0
    for sample in samples:
        prompt = prompt_of(sample)
        key = prompt.tobytes()
        prefix = prompts.get(key, range(0))
        prompts.setdefault(key, range(start, start + len(prompt)))
        prefixes.append(prefix)
        start += len(sample.tokens) - len(prefix)
    return prefixes


def num_trained(sample: Sample) -> int:
    """How many of its tokens carry a loss."""
    return int(np.count_nonzero(sample.loss_mask[1:]))


def untrained(sample: Sample) -> Sample:
    """The same tokens, none with a loss."""
    marks = np.zeros(len(sample.tokens), np.bool_)
    return Sample(sample.tokens, marks, sample.behavior_logprobs, sample.versions, sample.finish, reward=sample.reward)


def within(order: Sequence[int], lengths: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """Stretches of `order` of at most that many tokens, or one sequence."""
    stretch: list[int] = []
    for index in order:
        if stretch and sum(lengths[i] for i in stretch) + lengths[index] > capacity:
            yield stretch
            stretch = []
        stretch.append(index)
    if stretch:
        yield stretch
