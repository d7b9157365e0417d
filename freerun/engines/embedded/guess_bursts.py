"""Bursts on a GPU in which each step checks guesses: few rows, several tokens of each.

A step seeks what followed where a row's newest tokens stood before (in its prompt, its answer, the others of its group,
earlier answers to the prompt), computes that many tokens more, samples at each of them with the noise of its place, and
keeps what it would have sampled without guessing. All of that is one CUDA graph; the host looks after several steps.

Consumes rows that run, of which the host knows all tokens; produces what each of them sampled. Nothing but the texts
stays on the device between bursts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import guess_kernels as kernels
from freerun.engines.embedded.drafts import Drafts, Source
from freerun.engines.embedded.launched_step import LaunchedStep, Sampled
from freerun.engines.embedded.sampling_slots import Slots
from freerun.engines.embedded.sequence import Chunk, Sequence

TOKENS = 4
"""Tokens of a row in a step: its newest one, and guesses."""
STEPS = 4
"""Steps of a burst."""
MOST_ROWS = 32
_BATCHES = (1, 2, 4, 8, 16, 32)
_BACK = 12
"""Tokens that are compared at most."""
_NOBODYS = _BACK + STEPS * TOKENS
"""Tokens before the texts."""
_CAPACITY = 1 << 22
"""Tokens of texts on the device."""
_ROOM = 512
"""Tokens that an answer may grow by before the texts are put on the device again."""
_PROGRAMS, _WIDTH = 32, 512
"""That look through a row's stretch, and places that one of them looks at together."""

Compute = Callable[[Tensor, Tensor, int], Tensor]
"""Computes logits from inputs, the positions of their rows, and the longest context."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one answer lies among the texts."""

    begin: int
    """The first token of all that is known about its prompt."""
    end: int
    """The place behind the last one."""
    first: int
    """Where its first token would be, if none had been left out."""
    room: int
    """Where its place ends."""
    sources: list[tuple[int, Source]]
    """The beginnings of the texts between `begin` and `end`, and what each is to the other answers."""

    def source(self, at: int) -> Source:
        if self.first - _BACK <= at < self.room:
            return Source.OWN
        return next((source for begin, source in reversed(self.sources) if begin <= at), Source.OWN)


class DeviceTexts:
    """All that is known about the prompts of some answers, one prompt after another."""

    def __init__(self, drafts: Drafts) -> None:
        self.tokens = torch.full((_CAPACITY,), -1, dtype=torch.int32, device="cuda")
        self._drafts = drafts
        self._places: dict[Sequence, _Place] = {}

    def places(self, sequences: list[Sequence]) -> list[_Place]:
        """Where each of these answers is; they have room for a burst."""
        if any(self._is_full(sequence) for sequence in sequences):
            self._put(sequences)
        return [self._places[sequence] for sequence in sequences]

    def _is_full(self, sequence: Sequence) -> bool:
        place = self._places.get(sequence)
        return place is None or place.first + len(sequence.tokens) + STEPS * TOKENS >= place.room

    def _put(self, sequences: list[Sequence]) -> None:
        self._places = {}
        running = set(sequences)
        pieces: list[list[int]] = [[-1] * _NOBODYS]
        length = _NOBODYS
        prompts = {self._drafts.number(sequence): sequence for sequence in sequences}
        for one in prompts.values():
            share = _CAPACITY // len(prompts) - (_ROOM + 2) * (len(sequences) + 1) - _NOBODYS
            begin, mine, sources = length, [], []
            for text in self._drafts.spoken(one, running, share):
                sources.append((length, text.source))
                end = length + len(text.tokens)
                pieces.append(text.tokens)
                if text.writer is not None:
                    mine.append((text.writer, end - len(text.writer.tokens), end + _ROOM))
                    pieces.append([-1] * _ROOM)
                    end += _ROOM
                pieces.append([-1])
                length = end + 1
            for writer, first, room in mine:
                self._places[writer] = _Place(begin, length, first, room, sources)
        flat = np.fromiter(chain.from_iterable(pieces), dtype=np.int32, count=length)
        self.tokens[:length] = torch.from_numpy(flat).pin_memory().to("cuda", non_blocking=True)


class _State:
    """What the device must know of the rows, in one piece of memory: it comes over in one copy."""

    FIELDS = ("tokens", "positions", "writes", "begins", "ends", "moment", "seeds", "counts", "top_k")
    FLOATS = ("inverse_temperature", "noise", "top_p")

    def __init__(self) -> None:
        size = len(self.FIELDS) + len(self.FLOATS), MOST_ROWS * TOKENS
        self.host = torch.zeros(size, dtype=torch.int32, pin_memory=True)
        self.device = torch.zeros(size, dtype=torch.int32, device="cuda")

    def on_device(self, name: str) -> Tensor:
        if name in self.FLOATS:
            return self.device[len(self.FIELDS) + self.FLOATS.index(name)].view(torch.float32)
        return self.device[self.FIELDS.index(name)]

    def fill(self, name: str, values: list[int] | list[float], every: int = 1) -> None:
        """A row's value, as the first of `every` so many."""
        if name in self.FLOATS:
            row = self.host[len(self.FIELDS) + self.FLOATS.index(name)].view(torch.float32)
        else:
            row = self.host[self.FIELDS.index(name)]
        row.numpy()[: len(values) * every : every] = values

    def send(self) -> None:
        self.device.copy_(self.host, non_blocking=True)


class GuessBursts:
    def __init__(
        self, compute: Compute, captured: Callable[[Callable[[], None]], torch.cuda.CUDAGraph], vocabulary: int,
        drafts: Drafts,
    ) -> None:  # fmt: skip
        self._compute, self._captured = compute, captured
        self._texts = DeviceTexts(drafts)
        self._state = _State()
        self._slots = Slots(MOST_ROWS * TOKENS, 1, vocabulary, 1)
        for name in ("seeds", "counts", "top_k", *_State.FLOATS):
            setattr(self._slots, name, self._state.on_device(name))
        self._found = torch.zeros(MOST_ROWS, dtype=torch.int64, device="cuda")
        sizes = STEPS, MOST_ROWS
        self._out = [
            torch.zeros(*sizes, TOKENS, dtype=torch.int32, device="cuda"),
            torch.zeros(*sizes, TOKENS, device="cuda"),
            torch.zeros(*sizes, dtype=torch.int32, device="cuda"),
            torch.zeros(*sizes, dtype=torch.int64, device="cuda"),
        ]
        """Tokens, their log-probabilities, how many of them are kept, and where guesses were found."""
        self._landed = [torch.empty_like(out, device="cpu", pin_memory=True) for out in self._out]
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._drafts = drafts
        self.waited_s = 0.0

    def launch(self, chunks: list[Chunk], stretch: Callable[[int, int], int]) -> LaunchedStep:
        """`stretch`: for so many rows and so long a context, the context that a graph is made for."""
        sequences = [chunk.samples for chunk in chunks if chunk.samples]
        places = self._texts.places(sequences)
        self._load(chunks, sequences, places)
        batch = next(size for size in _BATCHES if size >= len(chunks))
        graph = self._graph(batch, stretch(batch, max(chunk.end for chunk in chunks) + (STEPS + 1) * TOKENS))
        for _ in range(STEPS):
            graph.replay()
        for landed, out in zip(self._landed, self._out, strict=True):
            landed.copy_(out, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def wait() -> Sampled:
            start_s = time.monotonic()
            copied.synchronize()
            self.waited_s += time.monotonic() - start_s
            return self._results(places)

        return LaunchedStep(sequences, [STEPS * TOKENS] * len(sequences), wait)

    def _load(self, chunks: list[Chunk], sequences: list[Sequence], places: list[_Place]) -> None:
        state, how = self._state, [one.request.sampling for one in sequences]
        state.host.zero_()
        state.fill("tokens", [chunk.tokens[0] for chunk in chunks], TOKENS)
        state.fill("positions", [chunk.start for chunk in chunks])
        writes = [place.first + len(one.tokens) for place, one in zip(places, sequences, strict=True)]
        idle = [_BACK] * (MOST_ROWS - len(writes))  # idle rows look at nothing, and write what is nobody's
        state.fill("writes", writes + idle)
        state.fill("begins", [place.begin for place in places])
        state.fill("ends", [place.end for place in places])
        for offset in range(TOKENS):
            state.host.numpy()[_State.FIELDS.index("counts"), offset : len(chunks) * TOKENS : TOKENS] = [
                one.sampled + offset for one in sequences
            ]
        for name, values in (
            ("seeds", [one.key for one in sequences]),
            ("top_k", [s.top_k for s in how]),
            ("inverse_temperature", [1 / (s.temperature or 1.0) for s in how]),
            ("noise", [float(s.temperature > 0) for s in how]),
            ("top_p", [s.top_p for s in how]),
        ):
            state.fill(name, [value for value in values for _ in range(TOKENS)])
        state.send()

    def _results(self, places: list[_Place]) -> Sampled:
        tokens, logprobs, kept, found = (landed.tolist() for landed in self._landed)
        all_tokens, all_logprobs = [], []
        for row, place in enumerate(places):
            new_tokens: list[int] = []
            new_logprobs: list[float] = []
            for step in range(STEPS):
                count = kept[step][row]
                new_tokens += tokens[step][row][:count]
                new_logprobs += logprobs[step][row][:count]
                if at := found[step][row]:
                    source = place.source(at % (1 << 32))
                    self._drafts.guessed[source] += TOKENS - 1
                    self._drafts.right[source] += count - 1
            all_tokens.append(new_tokens)
            all_logprobs.append(new_logprobs)
        return all_tokens, all_logprobs

    def _graph(self, batch: int, longest: int) -> torch.cuda.CUDAGraph:
        if (batch, longest) not in self._graphs:
            kept = self._state.device.clone()
            self._graphs[batch, longest] = self._captured(lambda: self._step(batch, longest))
            self._state.device.copy_(kept)
        return self._graphs[batch, longest]

    def _step(self, batch: int, longest: int) -> None:
        """One step of all rows, on the device alone."""
        state, text, slots = self._state.on_device, self._texts.tokens, self._slots
        count, width = batch * TOKENS, next_power_of_2(TOKENS)
        kernels.seek_kernel[(batch, _PROGRAMS)](
            text, state("begins"), state("ends"), state("writes"), self._found,
            BACK=_BACK, WIDTH=_WIDTH, PROGRAMS=_PROGRAMS, num_warps=4,
        )  # fmt: skip
        kernels.guess_kernel[(batch,)](
            text, state("ends"), self._found, state("tokens"), TOKENS=TOKENS, WIDTH=width, num_warps=1
        )
        slots.sample(self._compute(state("tokens")[:count], state("positions")[:batch], longest))
        kernels.keep_kernel[(batch,)](
            text, state("writes"), self._found, state("tokens"), slots.tokens, slots.out_logprobs,
            state("positions"), state("counts"), state("moment"), slots.moment, *self._out, MOST_ROWS,
            TOKENS=TOKENS, WIDTH=width, num_warps=1,
        )  # fmt: skip
