"""Runs steps on a GPU.

Decoding goes in bursts: one CUDA graph holds a whole step (forward pass, sampling, the next step's input), and is
replayed several times before the host looks at the results. All that is needed per token lives on the device; a
sequence that ends within a burst runs on to its end, and what it sampled after its own end is thrown away. Prompts, and
answers being rebuilt after new weights, go through the same kernels without a graph.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import kernels
from freerun.engines.embedded.fused import DecodeAttention, DeviceCache, FusedDecoder, PrefillAttention, split_tokens
from freerun.engines.embedded.sampler import truncated
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import Chunk, Sequence
from freerun.models.decoder import Decoder

_TILE, _WIDTH = 16_384, 1_024
"""Tokens of the vocabulary that one program of the sampling kernel reads, and that it reads at a time."""
_SMALL_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64)


class Slots:
    """The device's view of the rows of a burst, and where their tokens come out."""

    def __init__(self, rows: int, burst: int, vocabulary: int, blocks: int) -> None:
        def ints(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.int32, device="cuda")

        def floats(*size: int) -> Tensor:
            return torch.zeros(*size, device="cuda")

        self.tiles = -(-vocabulary // _TILE)
        self.tokens, self.positions, self.counts, self.seeds = ints(rows), ints(rows), ints(rows), ints(rows)
        self.rows = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.inverse_temperature, self.noise = floats(rows), floats(rows)
        self.tables = ints(rows, blocks)
        self.moment = ints(1)
        self.out_tokens, self.out_logprobs = ints(burst, rows), floats(burst, rows)
        self.maxima, self.sums, self.scores = (floats(rows, self.tiles) for _ in range(3))
        self.choices, self.chosen_logits = ints(rows, self.tiles), floats(rows, self.tiles)

    def sample(self, logits_RV: Tensor) -> None:
        """Each row's next token, into the output and as the next input."""
        rows, vocabulary = logits_RV.shape
        kernels.sample_tiles_kernel[(rows, self.tiles)](
            logits_RV, self.seeds, self.counts, self.inverse_temperature, self.noise,
            self.maxima, self.sums, self.scores, self.choices, self.chosen_logits,
            vocabulary, self.tiles, TILE=_TILE, WIDTH=_WIDTH, num_warps=4,
        )  # fmt: skip
        kernels.sample_rows_kernel[(rows,)](
            self.maxima, self.sums, self.scores, self.choices, self.chosen_logits,
            self.tokens, self.positions, self.counts, self.moment, self.out_tokens, self.out_logprobs,
            self.tiles, self.out_tokens.stride(0), TILES=max(2, next_power_of_2(self.tiles)), num_warps=1,
        )  # fmt: skip
        self.moment.add_(1)


class GpuRunner:
    def __init__(self, decoder: Decoder, blocks: int, block_tokens: int, max_running: int, burst: int) -> None:
        shape = decoder.shape
        self._decoder = decoder
        self._idle_block = blocks  # one block more than the scheduler knows of: rows that pad a batch write there
        self.cache = DeviceCache(shape, blocks + 1, block_tokens, decoder.embed.weight.dtype)
        self._fused = FusedDecoder(decoder, self.cache)
        self._batches = batch_sizes(max_running)
        width = -(-(shape.max_positions + burst) // block_tokens)
        self._slots = Slots(self._batches[-1], burst, shape.vocab_size, width)
        self._read_slots = Slots(self._batches[-1], 1, shape.vocab_size, 1)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.burst = burst
        self.waited_s = 0.0

    @torch.inference_mode()
    def run(self, step: Step) -> list[tuple[Sequence, list[int], list[float]]]:
        """What each sequence of the step sampled: one token, or a burst's.

        The burst is launched first: it keeps the device busy while the host launches, kernel by kernel, what is to be
        read. Neither needs the other's results.
        """
        self.cache.copy(step.copies)
        decoding = [chunk for chunk in step.chunks if chunk.samples and len(chunk.tokens) == 1]
        reading = [chunk for chunk in step.chunks if not (chunk.samples and len(chunk.tokens) == 1)]
        steps = self._decode(decoding) if decoding else 0
        ended = self._read(reading) if reading else []
        sampled = self._results(self._slots, [chunk.samples for chunk in decoding if chunk.samples], steps)
        return sampled + self._results(self._read_slots, ended, 1)

    def _read(self, chunks: list[Chunk]) -> list[Sequence]:
        """Prompts and rebuilt answers: many tokens a row. Those whose turn it is sample one."""
        counts = [len(chunk.tokens) for chunk in chunks]
        tokens = _device([t for chunk in chunks for t in chunk.tokens])
        positions = _device([p for c in chunks for p in range(c.start, c.end)])
        rows = _device([row for row, count in enumerate(counts) for _ in range(count)])
        tables = self._tables([chunk.table for chunk in chunks])
        attend = PrefillAttention(self.cache, self._decoder.shape, [c.start for c in chunks], counts, tables)
        hidden = self._fused.forward(tokens, positions, rows, tables, attend)
        ends = [(end - 1, chunk.samples) for end, chunk in zip(_ends(counts), chunks, strict=True) if chunk.samples]
        sequences = [sequence for _, sequence in ends]
        if sequences:
            self._load(self._read_slots, sequences, [s.length - 1 for s in sequences], len(sequences))
            logits = self._fused.logits(hidden[_device([last for last, _ in ends])])
            self._read_slots.sample(self._restricted(logits, sequences))
        return sequences

    def _decode(self, chunks: list[Chunk]) -> int:
        """Launch a burst, and return how many steps it has."""
        sequences = [chunk.samples for chunk in chunks if chunk.samples]
        batch = next(size for size in self._batches if size >= len(chunks))
        slots = self._slots
        self._load(slots, sequences, [chunk.start for chunk in chunks], batch)
        slots.tokens[: len(chunks)] = _device([chunk.tokens[0] for chunk in chunks])
        tables = self._tables([chunk.table for chunk in chunks])
        slots.tables[:batch].fill_(self._idle_block)
        slots.tables[: len(chunks), : tables.shape[1]] = tables
        longest = max(chunk.end for chunk in chunks) + self.burst
        if any(s.request.sampling.top_k or s.request.sampling.top_p < 1 for s in sequences):
            self._decode_once(batch, longest, sequences)
            return 1
        graph = self._graph(batch, longest)
        for _ in range(self.burst):
            graph.replay()
        return self.burst

    def _decode_once(self, batch: int, longest: int, sequences: list[Sequence] | None = None) -> None:
        """One step of all rows, on the device alone. With sequences: as they restrict their sampling."""
        slots = self._slots
        positions = slots.positions[:batch]
        attend = DecodeAttention(self.cache, self._decoder.shape.kv_heads, positions, slots.tables, longest)
        hidden = self._fused.forward(slots.tokens[:batch], positions, slots.rows[:batch], slots.tables, attend)
        logits = self._fused.logits(hidden)
        if sequences is not None:
            logits[: len(sequences)] = self._restricted(logits[: len(sequences)], sequences)
        slots.sample(logits)

    def _restricted(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        """Top-k and top-p act on the distribution after temperature."""
        how = [sequence.request.sampling for sequence in sequences]
        if all(s.top_k == 0 and s.top_p == 1.0 for s in how):
            return logits
        temperature = torch.tensor([[s.temperature or 1.0] for s in how], device="cuda")
        return truncated(logits / temperature, how) * temperature

    def _graph(self, batch: int, longest: int) -> torch.cuda.CUDAGraph:
        """One step of that many rows, contexts up to `longest`; captured when first needed."""
        split = split_tokens(batch * self._decoder.shape.kv_heads)
        splits = next_power_of_2(-(-longest // split))
        if (batch, splits) not in self._graphs:
            slots = self._slots
            kept = [t.clone() for t in (slots.tokens, slots.positions, slots.counts, slots.moment)]
            self._decode_once(batch, splits * split)  # compiles the kernels
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # thread_local: another thread may be staging new weights meanwhile, which allocates
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._decode_once(batch, splits * split)
            for tensor, value in zip((slots.tokens, slots.positions, slots.counts, slots.moment), kept, strict=True):
                tensor.copy_(value)
            self._graphs[batch, splits] = graph
        return self._graphs[batch, splits]

    def _load(self, slots: Slots, sequences: list[Sequence], positions: list[int], rows: int) -> None:
        """Put the rows' state in its place; rows beyond the sequences are idle."""
        how, idle = [sequence.request.sampling for sequence in sequences], [0] * (rows - len(sequences))
        slots.positions[:rows] = _device(positions + idle)
        slots.counts[:rows] = _device([len(sequence.tokens) for sequence in sequences] + idle)
        slots.seeds[:rows] = _device([sequence.key for sequence in sequences] + idle)
        slots.inverse_temperature[:rows] = _device([1 / (s.temperature or 1.0) for s in how] + idle, torch.float32)
        slots.noise[:rows] = _device([float(s.temperature > 0) for s in how] + idle, torch.float32)
        slots.moment.zero_()

    def _tables(self, tables: list[list[int]]) -> Tensor:
        width = max(len(table) for table in tables)
        padded = np.full((len(tables), width), self._idle_block, dtype=np.int32)
        for row, table in enumerate(tables):
            padded[row, : len(table)] = table
        return torch.from_numpy(padded).pin_memory().to("cuda", non_blocking=True)

    def _results(
        self, slots: Slots, sequences: list[Sequence], steps: int
    ) -> list[tuple[Sequence, list[int], list[float]]]:
        """Waits for the device."""
        if not sequences:
            return []
        start_s = time.monotonic()
        tokens = slots.out_tokens[:steps, : len(sequences)].T.tolist()
        self.waited_s += time.monotonic() - start_s
        logprobs = slots.out_logprobs[:steps, : len(sequences)].T.tolist()
        return list(zip(sequences, tokens, logprobs, strict=True))


def _device(values: list[Any], dtype: torch.dtype = torch.int32) -> Tensor:
    """Through pinned memory, so that the host does not wait for what the device is doing."""
    return torch.tensor(values, dtype=dtype).pin_memory().to("cuda", non_blocking=True)


def batch_sizes(largest: int) -> list[int]:
    """The sizes that graphs are made for: fine steps for small batches, an eighth of the way between powers of two."""
    sizes, size = [size for size in _SMALL_BATCHES if size < largest], _SMALL_BATCHES[-1]
    while (size := size + max(16, next_power_of_2(size) // 8)) < largest:
        sizes.append(size)
    return [*sizes, largest]


def _ends(counts: list[int]) -> list[int]:
    sums, total = [], 0
    for count in counts:
        total += count
        sums.append(total)
    return sums
