"""How many tokens one forward and backward pass may have: what fits the memory that is free for it, found by
trying small; and less, where that turns out to be too much."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from freerun.core import FinishReason, Sample, TrainerError
from freerun.train.packing import pack
from freerun.train.ranks import Ranks
from freerun.train.shares import decoder_of
from freerun.train.trained import Trained

MOST = 131_072
_FUSED_BELOW = 5 * 2**20
"""Elements of a tensor: torch.compile (2.11) fuses differently from here on, and so compiles once for either side."""
_SPARE = 0.85
"""The share of free memory to use: allocators fragment. At 1.5B and lengths of 32 to 8,192 sparing a tenth was too
little."""

_FEWEST = 1_024
"""If memory does not suffice for a pass of so many tokens, it will not for fewer."""

T = TypeVar("T")


class Passes:
    """How many tokens a pass may have: as configured, or as found out when first asked. An estimate may be wrong, or
    free memory fragmented; a trainer that is `alone`, with no other ranks in the step, then begins again with less."""

    def __init__(self, tokens: int | None, find: Callable[[], int], alone: bool) -> None:
        self._tokens, self._find, self._alone = tokens, find, alone
        self._notes: list[str] = []

    @property
    def tokens(self) -> int:
        if self._tokens is None:
            self._tokens = self._find()
        return self._tokens

    def fitting(self, attempt: Callable[[], T], undo: Callable[[], None]) -> T:
        """What the attempt gives; after `undo`, in shorter passes, as often as memory runs out."""
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                self._shorten(error)
            undo()
            gc.collect()
            torch.cuda.empty_cache()

    @contextmanager
    def for_good(self) -> Iterator[None]:
        """What is done in here cannot be undone, so that memory that runs out ends it."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise self._refusal(error) from None

    def take_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def _shorten(self, error: torch.OutOfMemoryError) -> None:
        if not self._alone or self.tokens <= _FEWEST:
            raise self._refusal(error) from None
        shorter = max(self.tokens * 3 // 4, _FEWEST)
        self._notes.append(f"passes of {self.tokens} tokens did not fit into memory; goes on with {shorter}")
        self._tokens = shorter

    def _refusal(self, error: torch.OutOfMemoryError) -> TrainerError:
        return TrainerError(
            f"passes of {self.tokens} tokens do not fit into the GPU's memory; set train.micro_batch_tokens to less "
            "than that, or train.recompute=true, or give the engine less by engine.memory_share",
            str(error),
        )


def micro_batch_budget(
    policy: Trained, critic: Trained | None, device: torch.device, ranks: Ranks, most: int = MOST
) -> int:
    """What fits every rank's GPU, and no more than that."""
    fewest = -ranks.max(torch.tensor([-float(_fitting(policy, critic, device))], device=device)).item()
    return int(min(fewest, most))


def _fitting(policy: Trained, critic: Trained | None, device: torch.device) -> int:
    """Two passes of different size say what a token costs. The optimizer's moments, not there yet, are set aside, and
    the critic's; its passes come after the policy's, and take no more."""
    probes = _probes(decoder_of(policy.module).shape.hidden)
    small, small_bytes = _peak(policy, device, *probes[0])
    try:
        large, large_bytes = _peak(policy, device, *probes[1])
    except torch.OutOfMemoryError:
        policy.forget_gradients()
        return small
    per_token = max((large_bytes - small_bytes) / (large - small), 1.0)
    fixed = small_bytes - per_token * small
    later = policy.bytes_to_come + (critic.bytes_to_come if critic else 0)
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total - torch.cuda.memory_reserved(device)
    free = min(free, int(allowed))
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(int(((free + unused) * _SPARE - later - fixed) / per_token), small)


def _probes(width: int) -> tuple[tuple[int, list[int]], tuple[int, list[int]]]:
    """Two groups, as the tokens of a prompt and of its answers: short answers, and one long answer that makes large
    tensors. These take different ways through attention and torch.compile, and what either needs is compiled and loaded
    before the first step. No sum is a model's width: torch.compile would take it for that, and compile again."""
    long = max(6_128, _FUSED_BELOW // width // 16 * 16 + 32)
    return (8, [508] * 4), (8, [long])


@torch.enable_grad()
def _peak(policy: Trained, device: torch.device, prompt: int, answers: list[int]) -> tuple[int, int]:
    """The tokens of a pass over one group, and the bytes that it takes beyond what was there before it."""
    samples = []
    for answer in answers:
        length, mask = prompt + answer, [False] * prompt + [True] * answer
        samples.append(Sample([1] * length, mask, [0.0] * length, [0] * length, FinishReason.STOP))
    micro = pack(samples).to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    logprobs_A = policy(micro).logprobs_A
    torch.autograd.backward(logprobs_A.sum() * 0.0)
    policy.forget_gradients()
    return len(micro.tokens_T), torch.cuda.max_memory_allocated(device) - before
