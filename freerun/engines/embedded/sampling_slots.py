"""The device's view of rows that sample, and where their tokens come out."""

import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import sampling_kernels as kernels

_TILE, _WIDTH, _WAYS = 16_384, 1_024, 8
"""Tokens of the vocabulary that one program of the sampling kernel reads, and that it reads at a time; floors for a
restricted row that are tried in one pass over it."""


class Slots:
    """The device's view of the rows of a burst, and where their tokens come out."""

    def __init__(self, rows: int, burst: int, vocabulary: int, blocks: int) -> None:
        def ints(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.int32, device="cuda")

        def floats(*size: int) -> Tensor:
            return torch.zeros(*size, device="cuda")

        self.tiles = -(-vocabulary // _TILE)
        self.tokens, self.positions, self.counts, self.seeds = ints(rows), ints(rows), ints(rows), ints(rows)
        self.inverse_temperature, self.noise = floats(rows), floats(rows)
        self.top_k, self.top_p = ints(rows), torch.ones(rows, device="cuda")
        self.floors, self.masses = floats(rows), floats(rows)
        self.tables = ints(rows, blocks)
        self.moment = ints(1)
        self.out_tokens, self.out_logprobs = ints(burst, rows), floats(burst, rows)
        self.maxima, self.sums = floats(rows, self.tiles), floats(rows, self.tiles)
        self.choices = ints(rows, self.tiles)

    def sample(self, logits_RV: Tensor) -> None:
        """Each row's next token, into the output and as the next input."""
        rows, vocabulary = logits_RV.shape
        kernels.floor_kernel[(rows,)](
            logits_RV, self.inverse_temperature, self.top_k, self.top_p, self.floors, self.masses, vocabulary,
            WIDTH=_WIDTH, WAYS=_WAYS, num_warps=8,
        )  # fmt: skip
        kernels.sample_tiles_kernel[(rows, self.tiles)](
            logits_RV, self.inverse_temperature, self.floors, self.maxima, self.sums, self.choices,
            vocabulary, self.tiles, TILE=_TILE, WIDTH=_WIDTH, num_warps=4,
        )  # fmt: skip
        kernels.sample_rows_kernel[(rows,)](
            logits_RV, self.seeds, self.inverse_temperature, self.noise, self.floors, self.masses,
            self.maxima, self.sums, self.choices,
            self.tokens, self.positions, self.counts, self.moment, self.out_tokens, self.out_logprobs,
            vocabulary, self.tiles, self.out_tokens.stride(0),
            TILE=_TILE, WIDTH=_WIDTH, TILES=max(2, next_power_of_2(self.tiles)), num_warps=8,
        )  # fmt: skip
        self.moment.add_(1)
