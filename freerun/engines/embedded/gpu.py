"""Runs steps on a GPU.

Decoding goes in bursts: one CUDA graph holds a whole step (forward pass, sampling, the next step's input), and is
replayed once or several times before the host looks at the results. All that is needed per token lives on the device; a
sequence that ends within a burst runs on, through the next one too, and what it sampled after its own end is thrown
away. Prompts, and answers being rebuilt after new weights, go through the same kernels: short stretches, which would
take longer to launch than to compute, by a graph too.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import few_rows, fp8
from freerun.engines.embedded.burst_length import BurstLength
from freerun.engines.embedded.drafts import Drafts
from freerun.engines.embedded.experts import RouteNotes
from freerun.engines.embedded.fused import (
    DecodeAttention,
    DeviceCache,
    PrefillAttention,
    split_tokens,
    tile_tokens,
    to_device,
)
from freerun.engines.embedded.guess_bursts import MOST_ROWS, STEPS, TOKENS, GuessBursts
from freerun.engines.embedded.launched_step import LaunchedStep, Sampled
from freerun.engines.embedded.memory import reach
from freerun.engines.embedded.prefill_layout import PrefillBatch, PrefillCapacity
from freerun.engines.embedded.routed import NOTHING, Routed, Waited
from freerun.engines.embedded.sampling_slots import Slots
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import UNKNOWN, Chunk, Sequence
from freerun.engines.embedded.shaping import is_special, kernel_uniform, sample_rows
from freerun.models.own import OwnDecoder
from freerun.models.routes import RouteLayout

_SMALL_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_PREFILL_GRAPH_TOKENS = (64, 128, 256, 512, 1_024)
"""Tokens that there are graphs for. More are launched kernel by kernel, which counts the less the more there are."""


class GpuRunner:
    ahead = True
    guesses = 0
    guessing_rows = MOST_ROWS

    def __init__(
        self, decoder: OwnDecoder, blocks: int, block_tokens: int, max_running: int, burst: int, drafts: Drafts
    ) -> None:
        shape = decoder.shape
        self._decoder = decoder
        self._idle_block = blocks  # one block more than the scheduler knows of: rows that pad a batch write there
        self.cache = DeviceCache(shape, blocks + 1, block_tokens, decoder.embed.weight.dtype)
        self._fused = fp8.fused(decoder)
        self._few = few_rows.pays(decoder)
        self._batches = batch_sizes(max_running)
        self.burst = reach(burst)
        assert self.burst >= STEPS * TOKENS
        width = -(-(shape.max_positions + self.burst + TOKENS) // block_tokens)
        self._prefill_sizes = [
            PrefillCapacity.of_graph(tokens, width, tile_tokens(shape)) for tokens in _PREFILL_GRAPH_TOKENS
        ]
        self._slots = Slots(max(self._batches[-1], MOST_ROWS), burst, shape.vocab_size, width)
        self._guesses = GuessBursts(self._logits, self._captured, shape.vocab_size, drafts)
        self._layout = decoder.routes
        rows, moment = len(self._slots.tokens), self._slots.moment
        self._notes = RouteNotes.empty(self._layout, burst, rows, moment) if self._layout else None
        if self._layout:
            self.guessing_rows = 0  # each guess would have experts of its own read
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._prefill_graphs: dict[int, tuple[PrefillBatch, RouteNotes | None, torch.cuda.CUDAGraph]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._row_of: dict[Sequence, int] = {}
        """Where the sequences of the last burst were."""
        self._inv_freq = decoder.inv_freq.float().cuda()
        self._pace = BurstLength(burst)
        self.short = False
        self._waited_s = 0.0
        self._landed_s = 0.0
        torch._foreach_copy_([self._inv_freq], [self._inv_freq.clone()])  # loads what the first swap would wait for

    @property
    def waited_s(self) -> float:
        """How long the host has waited for the device."""
        return self._waited_s + self._guesses.waited_s

    @torch.inference_mode()
    def launch(self, step: Step) -> LaunchedStep:
        """The burst first: it keeps the device busy while the host launches, kernel by kernel, what is to be read.
        Neither needs the other's results."""
        self.cache.copy(step.copies)
        if step.guessing:
            self._row_of = {}
            self._load_tables(step.chunks, MOST_ROWS)
            return self._guesses.launch(step.chunks, self._stretch)
        launched = self._decode([chunk for chunk in step.chunks if chunk.samples])
        reading = [chunk for chunk in step.chunks if not chunk.samples]
        if reading:
            notes = self._read(reading)
            if notes and self._layout:
                launched.routed = with_read(launched.routed, reading, notes.out[0], self._layout)
        return launched

    def _read(self, chunks: list[Chunk]) -> RouteNotes | None:
        """Prompts, and answers being rebuilt: many tokens a row, into the cache. Where there are experts, what is noted
        of them, until the next time."""
        for capacity in self._prefill_sizes:
            if capacity.fits(chunks):
                batch, notes, graph = self._prefill_graph(capacity)
                batch.load(chunks)
                graph.replay()
                return notes
        capacity = PrefillCapacity.just_for(chunks, self._prefill_sizes[0].tile)
        notes = self._prefill_notes(capacity)
        self._prefill_once(PrefillBatch(capacity, self._idle_block, chunks), notes)
        return notes

    def _prefill_notes(self, capacity: PrefillCapacity) -> RouteNotes | None:
        moment = torch.zeros(1, dtype=torch.int32, device="cuda")
        return RouteNotes.empty(self._layout, 1, capacity.sizes[0], moment) if self._layout else None

    def _prefill_once(self, batch: PrefillBatch, notes: RouteNotes | None) -> None:
        self._fused.forward(batch.tensors.tokens, PrefillAttention(self.cache, self._inv_freq, batch), notes)

    def _prefill_graph(self, capacity: PrefillCapacity) -> tuple[PrefillBatch, RouteNotes | None, torch.cuda.CUDAGraph]:
        """Captured when first needed, with nothing to read."""
        if capacity.tokens not in self._prefill_graphs:
            batch, notes = PrefillBatch(capacity, self._idle_block), self._prefill_notes(capacity)
            graph = self._captured(lambda: self._prefill_once(batch, notes))
            self._prefill_graphs[capacity.tokens] = batch, notes, graph
        return self._prefill_graphs[capacity.tokens]

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """It is also done once: that compiles the kernels."""
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread may be staging new weights meanwhile, which allocates
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph

    def _decode(self, chunks: list[Chunk]) -> LaunchedStep:
        """Launch a burst."""
        sequences = [chunk.samples for chunk in chunks if chunk.samples]
        if not sequences:
            self._row_of = {}
            return LaunchedStep.none()
        batch = next(size for size in self._batches if size >= len(chunks))
        self._load(chunks, sequences, batch)
        longest = max(chunk.end for chunk in chunks) + self.burst
        if self.short and is_special(sequences):
            return self._decode_in_torch(sequences, batch, longest)
        graph, steps = self._graph(batch, longest), 1 if self.short else self._pace.steps
        for _ in range(steps):
            graph.replay()
        return self._launched(sequences, steps)

    def _decode_in_torch(self, sequences: list[Sequence], batch: int, longest: int) -> LaunchedStep:
        """One token each, when somebody asks for what the sampling kernels cannot do. The host waits for it."""
        self._row_of = {}
        start_s = time.monotonic()
        logits_RV = self._next_logits(batch, self._stretch(batch, longest))[: len(sequences)]
        drawn = [kernel_uniform(sequence.key, sequence.sampled) for sequence in sequences]
        tokens, logprobs = sample_rows(logits_RV, sequences, drawn)
        self._landed_s = time.monotonic()
        self._waited_s += self._landed_s - start_s
        return LaunchedStep(
            sequences,
            [1] * len(sequences),
            lambda: ([[token] for token in tokens], [[logprob] for logprob in logprobs]),
            self._sampled_routes(1, len(sequences)),
        )

    def _sampled_routes(self, steps: int, rows: int) -> Waited:
        """Which experts the rows' tokens went through, on its way to the host."""
        notes, layout = self._notes, self._layout
        if notes is None or layout is None:
            return lambda: NOTHING
        found = notes.out[:steps, :rows].contiguous().to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def routed() -> Routed:
            copied.synchronize()
            by_row = found.transpose(0, 1).contiguous().numpy().view(np.uint8).reshape(rows, steps, layout.width)
            return Routed([], list(by_row))

        return routed

    def _launched(self, sequences: list[Sequence], steps: int) -> LaunchedStep:
        """The results start for the host when the burst ends, whatever is launched behind it."""
        self._row_of = {sequence: row for row, sequence in enumerate(sequences)}
        where = slice(0, steps), slice(0, len(sequences))
        tokens = self._slots.out_tokens[where].contiguous().to("cpu", non_blocking=True)
        logprobs = self._slots.out_logprobs[where].contiguous().to("cpu", non_blocking=True)
        routes = self._sampled_routes(steps, len(sequences))
        copied = torch.cuda.Event()
        copied.record()
        launched_s = time.monotonic()

        def wait() -> Sampled:
            start_s = time.monotonic()
            copied.synchronize()
            now_s = time.monotonic()
            self._waited_s += now_s - start_s
            self._pace.took(steps, now_s - max(launched_s, self._landed_s), now_s - start_s)
            self._landed_s = now_s
            return tokens.T.tolist(), logprobs.T.tolist()

        return LaunchedStep(sequences, [steps] * len(sequences), wait, routes)

    def _decode_once(self, batch: int, longest: int) -> None:
        """One step of all rows, on the device alone."""
        self._slots.sample(self._next_logits(batch, longest))

    def _next_logits(self, batch: int, longest: int) -> Tensor:
        return self._logits(self._slots.tokens[:batch], self._slots.positions[:batch], longest, self._notes)

    def _logits(self, tokens_T: Tensor, positions_R: Tensor, longest: int, notes: RouteNotes | None = None) -> Tensor:
        """Behind each token; as many of each row, one behind the other from its position on."""
        few = self._few if len(tokens_T) <= few_rows.MOST_TOKENS else few_rows.Pays.NOT
        begun = few_rows.begin(self._decoder, self._inv_freq, tokens_T, positions_R)
        overlap = few is few_rows.Pays.OVERLAPPING
        attend = DecodeAttention(self.cache, begun.rotary, positions_R, self._slots.tables, longest, overlap)
        if few is not few_rows.Pays.NOT:
            return self._fused.logits(few_rows.forward(self._decoder, begun, attend, overlap))
        return self._fused.logits(self._fused.through(begun.residual, attend, notes))

    def _stretch(self, batch: int, longest: int) -> int:
        """The longest context of a graph for so many rows that is long enough."""
        split, splits = self._splits(batch, longest)
        return split * splits

    def _splits(self, batch: int, longest: int) -> tuple[int, int]:
        """Tokens of context in one stretch, and how many of these there are: a power of two, since kernels are compiled
        for each number of them."""
        split = split_tokens(batch * self._decoder.shape.kv_heads, self._decoder.shape.head_dim)
        return split, next_power_of_2(-(-longest // split))

    def _graph(self, batch: int, longest: int) -> torch.cuda.CUDAGraph:
        """One step of that many rows, contexts up to `longest`; captured when first needed."""
        split, splits = self._splits(batch, longest)
        if (batch, splits) not in self._graphs:
            slots = self._slots
            kept = [t.clone() for t in (slots.tokens, slots.positions, slots.counts, slots.moment)]
            self._graphs[batch, splits] = self._captured(lambda: self._decode_once(batch, splits * split))
            for tensor, value in zip((slots.tokens, slots.positions, slots.counts, slots.moment), kept, strict=True):
                tensor.copy_(value)
        return self._graphs[batch, splits]

    def _load(self, chunks: list[Chunk], sequences: list[Sequence], rows: int) -> None:
        """Put the rows' state in its place; rows beyond the sequences are idle. Tokens that the host does not know yet
        are where the burst before left them, in the row that the sequence had there."""
        slots, how, idle = self._slots, [s.request.sampling for s in sequences], [0] * (rows - len(sequences))
        known = to_device([chunk.tokens[0] for chunk in chunks])
        row_before = [self._row_of[s] if s.ahead else 0 for s in sequences]
        before = slots.tokens[to_device(row_before, torch.int64)]
        slots.tokens[: len(chunks)] = torch.where(known == UNKNOWN, before, known)
        slots.positions[:rows] = to_device([chunk.start for chunk in chunks] + idle)
        slots.counts[:rows] = to_device([sequence.sampled for sequence in sequences] + idle)
        slots.seeds[:rows] = to_device([sequence.key for sequence in sequences] + idle)
        slots.inverse_temperature[:rows] = to_device([1 / (s.temperature or 1.0) for s in how] + idle, torch.float32)
        slots.noise[:rows] = to_device([float(s.temperature > 0) for s in how] + idle, torch.float32)
        slots.top_k[:rows] = to_device([s.top_k for s in how] + idle)
        slots.top_p[:rows] = to_device([s.top_p for s in how] + [1.0] * len(idle), torch.float32)
        slots.moment.zero_()
        self._load_tables(chunks, rows)

    def _load_tables(self, chunks: list[Chunk], rows: int) -> None:
        tables = self._tables([chunk.table for chunk in chunks])
        self._slots.tables[:rows].fill_(self._idle_block)
        self._slots.tables[: len(chunks), : tables.shape[1]] = tables

    def _tables(self, tables: list[list[int]]) -> Tensor:
        width = max(len(table) for table in tables)
        padded = np.full((len(tables), width), self._idle_block, dtype=np.int32)
        for row, table in enumerate(tables):
            padded[row, : len(table)] = table
        return to_device(padded)


def with_read(sampled: Waited, chunks: list[Chunk], notes_TLk: Tensor, layout: RouteLayout) -> Waited:
    """Besides those of the rows that sample, the experts of what is read, on their way to the host."""
    tokens = sum(len(chunk.tokens) for chunk in chunks)
    found = notes_TLk[:tokens].contiguous().to("cpu", non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def routed() -> Routed:
        copied.synchronize()
        rows = found.numpy().view(np.uint8).reshape(tokens, layout.width)
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        return Routed(list(zip(chunks, np.split(rows, ends[:-1]), strict=True)), sampled().sampled)

    return routed


def batch_sizes(largest: int) -> list[int]:
    """The sizes that graphs are made for: fine steps for small batches, an eighth of the way between powers of two."""
    sizes, size = [size for size in _SMALL_BATCHES if size < largest], _SMALL_BATCHES[-1]
    while (size := size + max(16, next_power_of_2(size) // 8)) < largest:
        sizes.append(size)
    return [*sizes, largest]
