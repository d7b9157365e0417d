"""Which tokens go into the next forward pass.

Running sequences come first, oldest first, so an answer once begun moves on; what is left of the step's token budget
goes to prompts, and new sequences start when there is room for their next block. When the blocks run out, the youngest
running sequence gives its own back and is recomputed later: nothing fails for lack of memory.

Knows tokens and blocks; knows neither tensors nor the model.
"""

import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from freerun.core import EngineError, FinishReason, Version
from freerun.engines.embedded.blocks import Blocks
from freerun.engines.embedded.memory import cache_for
from freerun.engines.embedded.sequence import UNKNOWN, Chunk, Request, Sequence

_UNKNOWN = [UNKNOWN]


@dataclass(slots=True)
class Step:
    """One forward pass: the chunks, the blocks to copy (from, to) before it, and the prompts being read by it."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    prompts: set[str] = field(default_factory=set)
    guesses: Mapping[Sequence, list[int]] = field(default_factory=dict)
    guessing: bool = False
    """Whether the runner is to guess by itself."""

    @property
    def only_samples(self) -> bool:
        return not self.prompts and not self.copies and all(chunk.samples for chunk in self.chunks)


class Scheduler:
    def __init__(self, blocks: Blocks, max_running: int, step_tokens: int, burst: int = 1, ahead: bool = False) -> None:
        """A running sequence may sample up to `burst` tokens in a step, and gets blocks for as many. With `ahead`, a
        step is scheduled while the one before is under way, and a sequence reads and samples in different steps."""
        self._blocks = blocks
        self._burst = burst
        self._ahead = ahead
        self._max_running = max_running
        self._step_tokens = step_tokens
        self.running: dict[Sequence, None] = {}
        """In order of their start, oldest first."""
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.reused_tokens = 0
        """Tokens of prompts whose cache was there already. A prompt that gave way and is read again does not count
        twice: it would find itself."""
        self.read_tokens = 0
        """Put into steps without being sampled by them, of prompts and of answers that are rebuilt; about."""
        self.version: Version = 0
        self.holding = False
        """While it is set no further answer begins; those that have begun go on, and come back if they give way."""
        self.stops: Callable[[Sequence], None] = lambda sequence: None
        """Called before a sequence that ran gives its blocks back."""
        self._just_read: list[Request] = []
        self._reading: set[Request] = set()
        """Requests whose prompt is being read, and cannot be found in the cache yet."""

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def answering(self) -> bool:
        """Whether an answer has begun that is not over. Those that gave way are first in the queue."""
        return bool(self.running) or bool(self.waiting and self.waiting[0].epoch)

    def submit(self, request: Request) -> list[Sequence]:
        """Queue a request's sequences. One that could never fit, even alone, is refused."""
        sequences = [Sequence(request, index) for index in range(request.n)]
        needed = cache_for(sequences[0].most_tokens, self._blocks.block_tokens, self._burst)
        if needed > self._blocks.tokens:
            raise EngineError(
                f"a prompt of {len(request.prompt)} and an answer of {request.sampling.max_new_tokens} tokens need "
                f"{needed} tokens of cache; engine.cache_tokens is {self._blocks.tokens}"
            )
        request.unfinished = request.n
        self.waiting.extend(sequences)
        return sequences

    @property
    def sampling(self) -> list[Sequence]:
        """Those that run, where the next step has nothing to do but sample for each of them, and knows what they have:
        as it is when no more answers are to begin."""
        if self.waiting or any(one.ahead or one.computed != one.length - 1 for one in self.running):
            return []
        return list(self.running)

    def schedule(self, guesses: Mapping[Sequence, list[int]] = {}) -> Step:
        """`guesses`: how answers may go on, which the step is to check."""
        for request in self._just_read:  # their blocks are filled now, and others may use them
            self._remember(request, request.prompt[: request.computed], request.blocks)
            self._reading.discard(request)
        self._just_read.clear()
        step = Step(guesses=guesses)
        budget = self._step_tokens
        preemptions = self.preemptions
        for sequence in list(self.running):
            if sequence.sampled >= sequence.request.sampling.max_new_tokens:
                continue  # its last tokens are under way
            if budget and sequence in self.running:  # an older one may just have preempted it
                budget -= self._advance(sequence, budget, step)
        while budget and self.preemptions == preemptions and self._can_start():
            sequence = self.waiting.popleft()
            self.running[sequence] = None
            sequence.started_s = sequence.started_s or time.monotonic()
            sequence.request.running += 1
            budget -= self._advance(sequence, budget, step)
        self.read_tokens += self._step_tokens - budget - len(step.chunks)
        return step

    def _can_start(self) -> bool:
        """Room for the next one's prompt, if that is not there yet, and a margin, lest it be preempted at once."""
        if not self.waiting or len(self.running) >= self._max_running:
            return False
        if self.holding and not self.waiting[0].epoch:
            return False
        more = self._blocks.needed(self.waiting[0].length) - len(self.waiting[0].request.blocks)
        margin = 1 + len(self.running) // 4
        return max(more, 0) + margin <= self._blocks.free

    def _advance(self, sequence: Sequence, budget: int, step: Step) -> int:
        """Put the next stretch of the sequence, or of its prompt, into the step; how many tokens that is."""
        if sequence.ahead:
            return self._go_on(sequence, step)
        request = sequence.request
        if not sequence.apart and request.id in step.prompts:
            return 0  # its prompt's cache is complete only after this step
        if not sequence.apart and request.computed < request.prefix:
            return self._advance_prompt(sequence, budget, step)
        if not sequence.computed and not self._join(sequence, step):
            return 0
        start, length = sequence.computed, sequence.length
        end = min(length, start + budget)
        if self._ahead and start < length - 1:
            end = min(end, length - 1)
        if not self._grow(sequence, end + self._burst - 1 if end == length else end):
            return 0
        samples = sequence if end == length else None
        tokens, guesses = sequence.slice(start, end), self._guesses(sequence, step, start + budget - end)
        step.chunks.append(Chunk(tokens + guesses, start, sequence.table, samples, len(guesses)))
        sequence.computed = end
        return end - start + len(guesses)

    def _guesses(self, sequence: Sequence, step: Step, budget: int) -> list[int]:
        """Where there is room for them without taking it from others."""
        guesses = step.guesses.get(sequence, [])[:budget]
        if not guesses:
            return []
        end = sequence.length + len(guesses)
        if self._blocks.needed(end) - len(sequence.table) > self._blocks.free or not self._grow(sequence, end):
            return []
        return guesses

    def _go_on(self, sequence: Sequence, step: Step) -> int:
        """The one token behind those that are under way: what nearly all sequences of nearly all steps do."""
        start = sequence.computed
        if not self._grow(sequence, start + self._burst):
            return 0
        step.chunks.append(Chunk(_UNKNOWN, start, sequence.table, sequence))
        sequence.computed = start + 1
        return 1

    def _advance_prompt(self, sequence: Sequence, budget: int, step: Step) -> int:
        request = sequence.request
        if not request.blocks:
            if self._is_being_read(request):
                return 0
            request.blocks = self._blocks.match(request.prompt[: request.prefix])
            request.computed = len(request.blocks) * self._blocks.block_tokens
            request.cached_by = self.version
            if request.cached is None:
                request.cached = request.computed
                self.reused_tokens += request.computed
            if request.computed == request.prefix:
                return self._advance(sequence, budget, step)
        end = min(request.prefix, request.computed + budget)
        if not self._have(sequence, self._blocks.needed(end) - len(request.blocks)):
            return 0
        request.blocks.extend(self._blocks.take(self._blocks.needed(end) - len(request.blocks)))
        step.prompts.add(request.id)
        self._reading.add(request)
        step.chunks.append(Chunk(request.prompt[request.computed : end], request.computed, request.blocks))
        spent = end - request.computed
        request.computed = end
        if end == request.prefix:
            self._just_read.append(request)
        return spent

    def _is_being_read(self, request: Request) -> bool:
        """Whether somebody else is reading at least half of this prompt, which can be used as soon as that is done: the
        members of a group ask the same at the same time."""
        half = request.prefix // 2
        if not self._reading or half < self._blocks.block_tokens:
            return False
        begins = request.prompt[:half]
        alike = any(other.prompt[:half] == begins for other in self._reading if other is not request)
        return alike and self._blocks.remembered(begins) < self._blocks.needed(half) - 1

    def _remember(self, request: Request, tokens: list[int], table: list[int]) -> None:
        if request.cached_by == self.version:
            self._blocks.remember(tokens, table)

    def _join(self, sequence: Sequence, step: Step) -> bool:
        """Begin behind the prompt's shared blocks, with a copy of the partial one, if there is one."""
        request, size = sequence.request, self._blocks.block_tokens
        if not sequence.table:
            sequence.table = request.blocks[: request.prefix // size]
        if request.prefix % size:
            if not sequence.blocks and not self._grow(sequence, request.prefix):
                return False
            step.copies.append((request.blocks[request.prefix // size], sequence.blocks[0]))
        sequence.computed = request.prefix
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Own blocks up to that many tokens; false when the sequence itself had to give way."""
        more = self._blocks.needed(tokens) - len(sequence.table)
        if more <= 0:
            return True
        if not self._have(sequence, more):
            return False
        new = self._blocks.take(more)
        sequence.blocks.extend(new)
        sequence.table.extend(new)
        return True

    def _have(self, sequence: Sequence, blocks: int) -> bool:
        """Free that many blocks, taking them from younger sequences if need be."""
        while blocks > self._blocks.free:
            victim = next(reversed(self.running))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _stop_running(self, sequence: Sequence) -> None:
        """Give its blocks back; and its prompt's, when nobody else is using them."""
        request = sequence.request
        self.stops(sequence)
        del self.running[sequence]
        sequence.ahead = 0
        sequence.epoch += 1
        filled = min(sequence.computed, sequence.length - 1)
        if filled > request.prefix and not sequence.behind:
            self._remember(request, sequence.slice(0, filled), sequence.table)
        self._blocks.give_back(sequence.blocks)
        sequence.table = []
        sequence.computed = sequence.behind = 0
        sequence.apart = False
        request.running -= 1
        if not request.running:
            self._blocks.give_back(request.blocks)
            request.computed = request.behind = 0
            self._reading.discard(request)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The sequence is over, wherever it was."""
        sequence.finish = reason
        sequence.request.unfinished -= 1
        if sequence in self.running:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)

    def new_weights(self, version: Version, rebuilt: Container[Sequence]) -> int:
        """What is cached was made by older weights: nobody new may use it. Those of the running that are `rebuilt` fill
        their blocks again, the others go on with theirs. Returns how many tokens are to be filled again."""
        versions, self.version = version - self.version, version
        self._just_read.clear()
        self._reading.clear()
        self._blocks.forget()
        lost = 0
        members: dict[Request, list[Sequence]] = {}
        for sequence in self.running:
            members.setdefault(sequence.request, []).append(sequence)
        for request, sequences in members.items():
            kept = [one for one in sequences if one not in rebuilt and one.computed]
            for one in kept:
                one.behind += versions * (one.computed if one.apart else max(one.computed - request.prefix, 0))
            request.behind += versions * request.computed
            if any(one in rebuilt for one in sequences):
                again = [one for one in sequences if one in rebuilt or not one.computed]
                lost += self._read_again(request, again, [one for one in kept if not one.apart])
        return lost

    def _read_again(self, request: Request, again: list[Sequence], kept: list[Sequence]) -> int:
        """The request's prompt, and these answers to it. It goes where it was, unless `kept` ones go on with that: then
        those have it for themselves, and the others begin with new blocks."""
        lost = request.computed
        shared = request.blocks[: request.prefix // self._blocks.block_tokens] if kept else []
        for one in kept:
            self._blocks.share(shared)
            one.blocks[:0] = shared
            one.behind += request.behind
            one.apart = True
        for one in again:
            lost += max(one.computed - request.prefix, 0)
            one.computed = one.behind = 0
            if one.apart or shared:
                self._blocks.give_back(one.blocks)
                one.table = []
                one.apart = False
        if shared:
            self._blocks.give_back(request.blocks)
        request.computed = request.behind = 0
        request.cached_by = self.version
        return lost
