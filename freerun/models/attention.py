"""Packed causal attention: what the trainer uses, and the reference for everything faster.

Shapes: T tokens, H query heads, K key/value heads, D head dimension, N sequences of one bucket, L its longest length,
G = H / K query heads that share a key/value head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


class PackedAttention:
    """Sequences one after another, each token looking at its own sequence up to itself.

    On a CPU, sequences of similar length are attended together: they are gathered into one padded block for the
    attention alone, where the causal mask already hides the padding behind each sequence. On a GPU it is one
    variable-length kernel.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self._cuda = torch.device(device).type == "cuda"
        if self._cuda:
            ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            self._bounds = ends.to(device)
            self._longest = max(lengths)
        else:
            self._buckets = _buckets(lengths)
            self._back_T = torch.cat([places for _, _, places in self._buckets]).argsort()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        return self._varlen(q_THD, k_TKD, v_TKD) if self._cuda else self._bucketed(q_THD, k_TKD, v_TKD)

    def _bucketed(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        sharing = q_THD.shape[1] // k_TKD.shape[1]
        reads = []
        for gather_NL, kept, _ in self._buckets:
            q = q_THD[gather_NL].transpose(1, 2)
            k = k_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            v = v_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            read_NLHD = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            reads.append(read_NLHD.flatten(0, 1)[kept])
        return torch.cat(reads)[self._back_T]

    def _varlen(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        sharing = q_THD.shape[1] // k_TKD.shape[1]
        k, v = k_TKD.repeat_interleave(sharing, dim=1), v_TKD.repeat_interleave(sharing, dim=1)
        bounds, longest = self._bounds, self._longest
        read = varlen_attn(q_THD, k, v, bounds, bounds, longest, longest, window_size=(-1, 0))
        assert isinstance(read, Tensor)
        return read


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
