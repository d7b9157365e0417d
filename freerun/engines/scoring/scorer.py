"""The log-probabilities that a model gives to given tokens, at temperature 1: packed passes without padding."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from freerun.core import ConfigError
from freerun.core.stretches import within
from freerun.machine.device import Device
from freerun.models.attention import packed_attention
from freerun.models.checkpoint import load_decoder
from freerun.models.shape import Backend

PASS_TOKENS: dict[Device, int] = {"cpu": 8_192, "cuda": 32_768}
"""More in a pass gain little."""
_LOGITS: dict[Device, int] = {"cpu": 2**22, "cuda": 2**27}
"""Held at a time."""
_FEWEST = 1_024
"""If memory does not suffice for a pass of so many tokens, it will not for fewer."""


class Scorer:
    def __init__(self, folder: Path, device: Device, backend: Backend = "auto") -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._decoder = load_decoder(folder, dtype, device, backend).eval().requires_grad_(False)
        self._device, self._pass_tokens = device, PASS_TOKENS[device]
        self.shape = self._decoder.shape

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probabilities of each row's tokens but the first, which nothing predicts."""
        found: list[list[float] | None] = [None if len(row) > 1 else [] for row in rows]
        while left := [place for place, scores in enumerate(found) if scores is None]:
            for places in within(left, [len(row) for row in rows], self._pass_tokens):
                try:
                    scores = self._pass([rows[place] for place in places])
                except torch.OutOfMemoryError:
                    self._shorten()
                    break
                for place, logprobs in zip(places, scores, strict=True):
                    found[place] = logprobs
        return [scores or [] for scores in found]

    def _pass(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        lengths, weight = [len(row) for row in rows], self._decoder.embed.weight
        tokens_T = torch.tensor([token for row in rows for token in row], device=self._device)
        positions_T = torch.cat([torch.arange(length) for length in lengths]).to(self._device)
        attend = packed_attention(lengths, weight.device, weight.dtype)
        hidden_T = self._decoder(tokens_T, positions_T, attend)
        ends = torch.cumsum(torch.tensor(lengths), 0) - 1
        predicts = torch.ones(len(tokens_T), dtype=torch.bool)
        predicts[ends] = False
        at = predicts.nonzero().squeeze(1).to(self._device)
        logprobs = self._logprobs(hidden_T, at, tokens_T[at + 1])
        return [part.tolist() for part in torch.split(logprobs, [length - 1 for length in lengths])]

    def _logprobs(self, hidden_T: Tensor, at: Tensor, targets: Tensor) -> Tensor:
        size = max(1, _LOGITS[self._device] // len(self._decoder.head.weight))
        found = [
            self._logits(hidden_T[rows]).log_softmax(-1).gather(1, wanted[:, None]).squeeze(1).cpu()
            for rows, wanted in zip(torch.split(at, size), torch.split(targets, size), strict=True)
        ]
        return torch.cat(found)

    def _logits(self, hidden: Tensor) -> Tensor:
        """In float32, out of the matrix product: in bf16 they would cost two digits."""
        weight, bias = self._decoder.head.weight, self._decoder.head.bias
        if weight.is_cuda and weight.dtype == torch.bfloat16:
            products = torch.mm(hidden.to(weight.dtype), weight.T, out_dtype=torch.float32)
        else:
            products = torch.mm(hidden, weight.T).float()
        return self._decoder.readout.of(products if bias is None else products + bias)

    def _shorten(self) -> None:
        torch.cuda.empty_cache()
        if self._pass_tokens <= _FEWEST:
            raise ConfigError(f"the GPU's memory does not suffice for a teacher's pass of {_FEWEST} tokens")
        self._pass_tokens = max(self._pass_tokens // 2, _FEWEST)
