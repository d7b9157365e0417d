"""Packed causal attention: what the trainer uses, and the reference for everything faster.

Shapes: T tokens, H query heads, K key/value heads, D head dimension, N sequences of one bucket, L its longest length,
G = H / K query heads that share a key/value head.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.models.decoder import Attend

LONG = 4096
"""From this length on a sequence is attended on its own by cuDNN on a GPU: twice as fast as the variable-length kernel
(560 against 315 TFLOP/s forward and backward at 16,384 on an H200), which wins where sequences are short and many."""
_ROUND = 512
"""Lengths are padded to multiples of this for cuDNN, which takes its time over every length it has not seen."""


def packed_attention(lengths: Sequence[int], device: torch.device, dtype: torch.dtype) -> Attend:
    """Sequences one after another, each token looking at its own sequence up to itself."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        return GpuPackedAttention(lengths, device)
    return PackedAttention(lengths, device)


class PackedAttention:
    """In plain torch. Sequences of similar length are attended together: they are gathered into one padded block for
    the attention alone, where the causal mask already hides the padding behind each sequence."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self._buckets = [
            (gather.to(device), kept.to(device), back.to(device)) for gather, kept, back in _buckets(lengths)
        ]
        self._back_T = torch.cat([places for _, _, places in self._buckets]).argsort()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        sharing = q_THD.shape[1] // k_TKD.shape[1]
        reads = []
        for gather_NL, kept, _ in self._buckets:
            q = q_THD[gather_NL].transpose(1, 2)
            k = k_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            v = v_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            read_NLHD = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            reads.append(read_NLHD.flatten(0, 1)[kept])
        return torch.cat(reads)[self._back_T]


class GpuPackedAttention:
    """Long sequences one by one through cuDNN; what lies between them through one variable-length kernel."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._stretches: list[tuple[int, int, Tensor | None, int]] = []
        """First and last token; for a stretch of short sequences, their bounds and the longest."""
        start, short = 0, list[int]()
        for length in [*lengths, LONG]:
            if length < LONG:
                short.append(length)
                continue
            if short:
                bounds = torch.tensor([0, *short], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
                self._stretches.append((start, start + sum(short), bounds, max(short)))
                start += sum(short)
                short = []
            self._stretches.append((start, start + length, None, length))
            start += length
        self._stretches.pop()  # the sentinel

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        reads = []
        for start, end, bounds, longest in self._stretches:
            stretch = q_THD[start:end], k_TKD[start:end], v_TKD[start:end]
            reads.append(_alone(*stretch) if bounds is None else _varlen(*stretch, bounds, longest))
        return reads[0] if len(reads) == 1 else torch.cat(reads)


def _varlen(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, bounds: Tensor, longest: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    how: dict[str, Any] = {"window_size": (-1, 0)}
    if "enable_gqa" in signature(varlen_attn).parameters:  # torch 2.11 shares key/value heads without being told
        how["enable_gqa"] = True
    read = varlen_attn(q_THD, k_TKD, v_TKD, bounds, bounds, longest, longest, **how)
    assert isinstance(read, Tensor)
    return read


def _alone(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    """One sequence, padded behind its end, where the causal mask hides it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    length = len(q_THD)
    padding = -length % _ROUND
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding))[None].transpose(1, 2) for x in (q_THD, k_TKD, v_TKD))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return read.transpose(1, 2)[0, :length]


def _buckets(lengths: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each bucket: where to gather (N × L), which gathered places are real, and where those go back to.

    A sequence joins a bucket while padding it to the bucket's longest wastes under a quarter.
    """
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    buckets: list[list[int]] = []
    for sequence in order:
        if buckets and lengths[sequence] * 4 >= lengths[buckets[-1][0]] * 3:
            buckets[-1].append(sequence)
        else:
            buckets.append([sequence])
    return [_indices(bucket, starts, lengths) for bucket in buckets]


def _indices(bucket: list[int], starts: list[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    longest = lengths[bucket[0]]
    first_N1 = torch.tensor([starts[i] for i in bucket])[:, None]
    length_N1 = torch.tensor([lengths[i] for i in bucket])[:, None]
    column_L = torch.arange(longest)
    gather_NL = first_N1 + torch.minimum(column_L, length_N1 - 1)
    kept = (column_L < length_N1).flatten().nonzero().squeeze(1)
    return gather_NL, kept, gather_NL.flatten()[kept]
