"""Packed causal attention: what the trainer uses, and the reference for everything faster.

Shapes: T tokens, H query heads, K key/value heads, D head dimension, N sequences of one bucket, L its longest length,
G = H / K query heads that share a key/value head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from itertools import accumulate, chain, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from freerun.models.decoder import USUAL, Attend, Reading

LONG = 4096
"""From this length on a sequence is attended on its own by cuDNN on a GPU: twice as fast as the variable-length kernel
(560 against 315 TFLOP/s forward and backward at 16,384 on an H200), which wins where sequences are short and many."""
_ROUND = 512
"""Lengths are padded to multiples of this for cuDNN, which takes its time over every length it has not seen."""


Prefixes = Sequence[Sequence[range]]
"""For each sequence the rows that come before its own, in order."""


def packed_attention(
    lengths: Sequence[int], device: torch.device, dtype: torch.dtype, prefixes: Prefixes | None = None
) -> Attend:
    """Sequences one after another, each token looking at its own sequence up to itself; and before that at its
    sequence's prefix, rows of earlier sequences: several that begin alike have their beginning once."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        return GpuPackedAttention(lengths, device, prefixes)
    return PackedAttention(lengths, device, prefixes)


@dataclass(frozen=True)
class _Rows:
    """Where a sequence is among the rows."""

    prefix: Sequence[range]
    own: range

    def __len__(self) -> int:
        return self.num_before + len(self.own)

    @property
    def num_before(self) -> int:
        return sum(map(len, self.prefix))

    @property
    def whole(self) -> list[range]:
        return [*self.prefix, self.own]

    @property
    def is_long(self) -> bool:
        """Whether cuDNN is the faster one, though it attends a prefix again: with a third of the queries its own it
        does 1.8 times the work at 1.8 times the speed."""
        return len(self) >= LONG and 3 * len(self.own) >= len(self)


def _places(ranges: Iterable[range]) -> np.ndarray:
    """All that they hold, one range after another."""
    starts, stops = np.array([(each.start, each.stop) for each in ranges]).T
    lengths = stops - starts
    places: np.ndarray = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return places


def _rows(lengths: Sequence[int], prefixes: Prefixes | None) -> list[_Rows]:
    ends = list(accumulate(lengths))
    owned = [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return [_Rows(prefix, own) for prefix, own in zip(prefixes or [()] * len(owned), owned, strict=True)]


class PackedAttention:
    """In plain torch. Sequences of similar length are attended together: they are gathered into one padded block for
    the attention alone, where the causal mask already hides the padding behind each sequence."""

    def __init__(
        self, lengths: Sequence[int], device: torch.device | str = "cpu", prefixes: Prefixes | None = None
    ) -> None:
        self._buckets = [
            (gather.to(device), kept.to(device), back.to(device))
            for gather, kept, back in map(_indices, _buckets(_rows(lengths, prefixes)))
        ]
        self._back_T = torch.cat([places for _, _, places in self._buckets]).argsort()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading = USUAL) -> Tensor:
        sharing = q_THD.shape[1] // k_TKD.shape[1]
        reads = []
        for gather_NL, kept, _ in self._buckets:
            q = q_THD[gather_NL].transpose(1, 2)
            k = k_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            v = v_TKD[gather_NL].transpose(1, 2).repeat_interleave(sharing, dim=1)
            if not reading.is_masked:
                read = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=reading.scale)
            else:
                place_L = torch.arange(gather_NL.shape[1], device=q.device)
                read = read_masked(q, k, v, seen(place_L[:, None], place_L, reading.window), reading)
            reads.append(read.transpose(1, 2).flatten(0, 1)[kept])
        return torch.cat(reads)[self._back_T]


class GpuPackedAttention:
    """Long sequences one by one through cuDNN; what lies between them through one variable-length kernel."""

    def __init__(self, lengths: Sequence[int], device: torch.device, prefixes: Prefixes | None = None) -> None:
        self._given = lengths, device, prefixes
        self._stretches: list[_Short | _Long] = []
        self._rows = _rows(lengths, prefixes)
        for is_long, group in groupby(self._rows, lambda rows: rows.is_long):
            stretch = list(group)
            self._stretches += [_Long(rows, device) for rows in stretch] if is_long else [_Short(stretch, device)]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading = USUAL) -> Tensor:
        kernel_lacks = reading.softcap is not None or reading.sinks is not None
        if kernel_lacks or q_THD.shape[-1] != v_TKD.shape[-1]:
            return self._plain(layer, q_THD, k_TKD, v_TKD, reading)
        stretches = self._stretches if reading.window is None else [self._one_stretch]
        reads = [stretch(q_THD, k_TKD, v_TKD, reading) for stretch in stretches]
        return reads[0] if len(reads) == 1 else torch.cat(reads)

    @cached_property
    def _one_stretch(self) -> "_Short":
        """For layers in which tokens see a window: length costs them little, and cuDNN does not do it."""
        return _Short(self._rows, self._given[1])

    @cached_property
    def _plain(self) -> PackedAttention:
        return PackedAttention(*self._given)


class _Short:
    """Sequences through the variable-length kernel. Its causal mask is aligned to the end of a sequence, so queries may
    be fewer than keys: what lies before is the prefix, whose keys and values are gathered for each who shares it."""

    def __init__(self, sequences: list[_Rows], device: torch.device) -> None:
        self._mine = slice(sequences[0].own.start, sequences[-1].own.stop)
        self._q_bounds, self._longest_q = _bounds([len(rows.own) for rows in sequences], device)
        self._k_bounds, self._longest_k = _bounds([len(rows) for rows in sequences], device)
        shares = any(rows.prefix for rows in sequences)
        everything = chain.from_iterable(rows.whole for rows in sequences)
        self._gather = torch.from_numpy(_places(everything)).to(device) if shares else None

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        if self._gather is None:
            k, v = k_TKD[self._mine], v_TKD[self._mine]
        else:
            k, v = gathered(k_TKD, self._gather), gathered(v_TKD, self._gather)
        bounds = self._q_bounds, self._k_bounds, self._longest_q, self._longest_k
        read = varlen_attn(q_THD[self._mine], k, v, *bounds, scale=reading.scale, **_causal(reading.window))
        assert isinstance(read, Tensor)
        return read


@cache
def _causal(window: int | None) -> dict[str, Any]:
    """How the variable-length kernel is told. torch 2.11 shares key/value heads without being asked to."""
    from torch.nn.attention.varlen import varlen_attn

    shares = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
    return {"window_size": (-1 if window is None else window - 1, 0), **shares}


class _Long:
    """One sequence, padded behind its end, where the causal mask hides it. A prefix is attended again and forgotten."""

    def __init__(self, rows: _Rows, device: torch.device) -> None:
        self._mine = slice(rows.own.start, rows.own.stop)
        self._gather = torch.from_numpy(_places(rows.whole)).to(device) if rows.prefix else None
        self._own = slice(rows.num_before, len(rows))
        self._padding = -len(rows) % _ROUND

    def __call__(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        whole = [x[self._mine] if self._gather is None else gathered(x, self._gather) for x in (q_THD, k_TKD, v_TKD)]
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, self._padding))[None].transpose(1, 2) for x in whole)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=reading.scale)
        return read.transpose(1, 2)[0, self._own]


def seen(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Which of the keys, by their places in the sequence, a query at its own may look at."""
    causal = key <= query
    return causal if window is None else causal & (key > query - window)


def read_masked(q_NHCD: Tensor, k_NHLD: Tensor, v_NHLD: Tensor, mask: Tensor, reading: Reading) -> Tensor:
    """What queries read where the mask lets them. Sinks are those of the rows' heads: H, or H × C × 1."""
    if reading.softcap is None and reading.sinks is None:
        return F.scaled_dot_product_attention(q_NHCD, k_NHLD, v_NHLD, attn_mask=mask, scale=reading.scale)
    scale = q_NHCD.shape[-1] ** -0.5 if reading.scale is None else reading.scale
    products = q_NHCD @ k_NHLD.transpose(-1, -2) * scale
    if reading.softcap is not None:
        products = reading.softcap * torch.tanh(products / reading.softcap)
    products = products.to(torch.promote_types(products.dtype, torch.float32)).masked_fill(~mask, -torch.inf)
    if reading.sinks is None:
        return products.softmax(-1).to(v_NHLD.dtype) @ v_NHLD
    sinks = reading.sinks if reading.sinks.dim() == 3 else reading.sinks[:, None, None]
    with_sink = torch.cat([products, sinks.to(products.dtype).expand(*products.shape[:-1], 1)], dim=-1)
    return with_sink.softmax(-1)[..., :-1].to(v_NHLD.dtype) @ v_NHLD


def _bounds(lengths: list[int], device: torch.device) -> tuple[Tensor, int]:
    """Where each begins and the last ends; and the longest."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device), max(lengths)


def gathered(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]. The gradient of a row that is there many times is summed in float32."""
    result: Tensor = _Gathered.apply(x, rows)  # type: ignore[no-untyped-call]
    return result


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(x)
        return x[rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.count, *grad.shape[1:], dtype=torch.float32)
        return total.index_add_(0, rows, grad.float()).to(grad.dtype), None


def _buckets(sequences: list[_Rows]) -> list[list[_Rows]]:
    """A sequence joins a bucket while padding it to the bucket's longest wastes under a quarter."""
    buckets: list[list[_Rows]] = []
    for rows in sorted(sequences, key=lambda rows: -len(rows)):
        if buckets and len(rows) * 4 >= len(buckets[-1][0]) * 3:
            buckets[-1].append(rows)
        else:
            buckets.append([rows])
    return buckets


def _indices(bucket: list[_Rows]) -> tuple[Tensor, Tensor, Tensor]:
    """Where to gather (N × L), which gathered places are the sequences' own, and where those go back to."""
    longest = len(bucket[0])
    gather_NL = np.zeros((len(bucket), longest), np.int64)
    for row, rows in zip(gather_NL, bucket, strict=True):
        row[: len(rows)] = _places(rows.whole)
    own = [range(n * longest + rows.num_before, n * longest + len(rows)) for n, rows in enumerate(bucket)]
    kept, back = _places(own), _places(rows.own for rows in bucket)
    return torch.from_numpy(gather_NL), torch.from_numpy(kept), torch.from_numpy(back)
