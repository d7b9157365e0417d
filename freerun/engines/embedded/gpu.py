"""Runs steps on a GPU.

Decoding goes in bursts: one CUDA graph holds a whole step (forward pass, sampling, the next step's input), and is
replayed several times before the host looks at the results. All that is needed per token lives on the device; a
sequence that ends within a burst runs on to its end, and what it sampled after its own end is thrown away. Prompts, and
answers being rebuilt after new weights, go through the same kernels without a graph.
"""

import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import kernels
from freerun.engines.embedded.fused import DecodeAttention, DeviceCache, FusedDecoder, PrefillAttention
from freerun.engines.embedded.sampler import truncated
from freerun.engines.embedded.scheduler import Step
from freerun.engines.embedded.sequence import Chunk, Sequence
from freerun.models.decoder import Decoder

_TILE = 4096
"""Tokens of the vocabulary that one program of the sampling kernel reads."""
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
            vocabulary, self.tiles, TILE=_TILE, num_warps=8,
        )  # fmt: skip
        kernels.sample_rows_kernel[(rows,)](
            self.maxima, self.sums, self.scores, self.choices, self.chosen_logits,
            self.tokens, self.positions, self.counts, self.moment, self.out_tokens, self.out_logprobs,
            self.tiles, self.out_tokens.stride(0), TILES=next_power_of_2(self.tiles), num_warps=1,
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
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.burst = burst

    @torch.inference_mode()
    def run(self, step: Step) -> list[tuple[Sequence, list[int], list[float]]]:
        """What each sequence of the step sampled: one token, or a burst's."""
        self.cache.copy(step.copies)
        decoding = [chunk for chunk in step.chunks if chunk.samples and len(chunk.tokens) == 1]
        reading = [chunk for chunk in step.chunks if not (chunk.samples and len(chunk.tokens) == 1)]
        sampled = self._read(reading) if reading else []
        return sampled + (self._decode(decoding) if decoding else [])

    def _read(self, chunks: list[Chunk]) -> list[tuple[Sequence, list[int], list[float]]]:
        """Prompts and rebuilt answers: many tokens a row."""
        shape, counts = self._decoder.shape, [len(chunk.tokens) for chunk in chunks]
        tokens = torch.tensor([t for chunk in chunks for t in chunk.tokens], device="cuda")
        positions = torch.tensor([p for c in chunks for p in range(c.start, c.end)], dtype=torch.int32, device="cuda")
        count = torch.tensor(counts, device="cuda")
        rows = torch.arange(len(chunks), dtype=torch.int32, device="cuda").repeat_interleave(
            count, output_size=len(tokens)
        )
        tables = self._tables([chunk.table for chunk in chunks])
        attend = PrefillAttention(self.cache, shape, [c.start for c in chunks], counts, tables)
        hidden = self._fused.forward(tokens, positions, rows, tables, attend)
        ends = [(sum_, chunk.samples) for sum_, chunk in zip(_ends(counts), chunks, strict=True) if chunk.samples]
        if not ends:
            return []
        sequences = [sequence for _, sequence in ends]
        sampled = []
        for first in range(0, len(sequences), self._batches[-1]):
            part = sequences[first : first + self._batches[-1]]
            self._load(part, [s.length - 1 for s in part])
            last = torch.tensor([end - 1 for end, _ in ends[first : first + len(part)]], device="cuda")
            self._slots.sample(self._restricted(self._fused.logits(hidden[last]), part))
            sampled += self._results(part, 1)
        return sampled

    def _decode(self, chunks: list[Chunk]) -> list[tuple[Sequence, list[int], list[float]]]:
        sequences = [chunk.samples for chunk in chunks if chunk.samples]
        batch = next(size for size in self._batches if size >= len(chunks))
        self._load(sequences, [chunk.start for chunk in chunks], batch)
        slots = self._slots
        slots.tokens[: len(chunks)] = torch.tensor([c.tokens[0] for c in chunks], dtype=torch.int32, device="cuda")
        tables = self._tables([chunk.table for chunk in chunks])
        slots.tables[:batch].fill_(self._idle_block)
        slots.tables[: len(chunks), : tables.shape[1]] = tables
        longest = max(chunk.end for chunk in chunks) + self.burst
        if any(s.request.sampling.top_k or s.request.sampling.top_p < 1 for s in sequences):
            self._decode_once(batch, longest, sequences)
            return self._results(sequences, 1)
        graph = self._graph(batch, longest)
        for _ in range(self.burst):
            graph.replay()
        return self._results(sequences, self.burst)

    def _decode_once(self, batch: int, longest: int, sequences: list[Sequence] | None = None) -> None:
        """One step of all rows, on the device alone. With sequences: as they restrict their sampling."""
        slots = self._slots
        attend = DecodeAttention(self.cache, self._decoder.shape.kv_heads, slots.positions, slots.tables, longest)
        hidden = self._fused.forward(
            slots.tokens[:batch], slots.positions[:batch], slots.rows[:batch], slots.tables, attend
        )
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
        splits = next_power_of_2(-(-longest // 512))
        if (batch, splits) not in self._graphs:
            slots = self._slots
            kept = [t.clone() for t in (slots.tokens, slots.positions, slots.counts, slots.moment)]
            self._decode_once(batch, splits * 512)  # compiles the kernels
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._decode_once(batch, splits * 512)
            for tensor, value in zip((slots.tokens, slots.positions, slots.counts, slots.moment), kept, strict=True):
                tensor.copy_(value)
            self._graphs[batch, splits] = graph
        return self._graphs[batch, splits]

    def _load(self, sequences: list[Sequence], positions: list[int], batch: int | None = None) -> None:
        """Put the rows' state in its place, in one copy to the device; rows beyond them are idle."""
        rows = batch or len(sequences)
        state = torch.zeros(3, rows, dtype=torch.int32)
        scale = torch.ones(2, rows)
        how = [sequence.request.sampling for sequence in sequences]
        state[0, : len(sequences)] = torch.tensor(positions)
        state[1, : len(sequences)] = torch.tensor([len(sequence.tokens) for sequence in sequences])
        state[2, : len(sequences)] = torch.tensor([sequence.key for sequence in sequences])
        scale[0, : len(sequences)] = torch.tensor([1 / (s.temperature or 1.0) for s in how])
        scale[1, : len(sequences)] = torch.tensor([float(s.temperature > 0) for s in how])
        slots, state, scale = self._slots, state.cuda(), scale.cuda()
        slots.positions[:rows], slots.counts[:rows], slots.seeds[:rows] = state[0], state[1], state[2]
        slots.inverse_temperature[:rows], slots.noise[:rows] = scale[0], scale[1]
        slots.moment.zero_()

    def _tables(self, tables: list[list[int]]) -> Tensor:
        width = max(len(table) for table in tables)
        padded = [table + [self._idle_block] * (width - len(table)) for table in tables]
        return torch.tensor(padded, dtype=torch.int32).cuda()

    def _results(self, sequences: list[Sequence], steps: int) -> list[tuple[Sequence, list[int], list[float]]]:
        """Waits for the device."""
        tokens = self._slots.out_tokens[:steps, : len(sequences)].T.tolist()
        logprobs = self._slots.out_logprobs[:steps, : len(sequences)].T.tolist()
        return list(zip(sequences, tokens, logprobs, strict=True))


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
