"""Ranks that share each sequence, Ulysses' way (Jacobs et al. 2023): for sequences longer than one rank's memory holds.

Each of N ranks has every N-th token of a micro-batch for all that is done token by token; so each has its part of the
trained ones, too, whose logits are much of the work. For attention alone they exchange: each gets all tokens of H / N
heads, attends as one rank would (packed, shared beginnings included), and hands back what those tokens read. What is
computed of trained tokens, a few numbers each, every rank is then told, so that each has all that an objective may ask
of a sequence. Each computes the same loss, and takes from it the gradient of its own tokens: the ranks' gradients add
up to the gradient.

Where there are fewer key/value heads than ranks, or not a multiple, each is sent to all who need it.

Shapes: T tokens of a micro-batch, P of them in a rank's part; N ranks; H query heads, K key/value heads, D head
dimension; A trained tokens.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from freerun.models.decoder import USUAL, Attend, Reading
from freerun.train.packing import Packed


@dataclass(frozen=True)
class Context:
    """The ranks that share each sequence, and which of them this one is. One alone has all of it."""

    size: int = 1
    position: int = 0
    group: dist.ProcessGroup | None = None

    def part(self, micro: Packed) -> "Whole":
        return Part(self, micro) if self.size > 1 else Whole(self, micro)


ONE = Context()


class Whole:
    """All of a micro-batch."""

    def __init__(self, context: Context, micro: Packed) -> None:
        self._context = context
        self.tokens_P, self.positions_P = micro.tokens_T, micro.positions_T
        self.rows_A, self.targets_A = micro.rows_A, micro.targets_A
        """Which rows of the part predict the trained tokens that this rank computes, and which tokens those are."""
        self.probe_P = micro.probe_P
        """Which of these tokens are in the probe, where there is one."""
        self.routes_P = micro.routes_T

    def attention(self, attend: Attend) -> Attend:
        return attend

    def told(self, values_A: Tensor) -> Tensor:
        """What every rank of the context computed of its trained tokens, as of all."""
        return values_A


class Part(Whole):
    """This rank's part of a micro-batch. Parts are equal: behind the last token there may be up to N − 1 more that
    nobody looks at."""

    def __init__(self, context: Context, micro: Packed) -> None:
        super().__init__(context, micro)
        self._num_tokens, self._num_trained = len(micro.tokens_T), micro.num_trained
        self._padding = -self._num_tokens % context.size
        self.tokens_P, self.positions_P = (
            F.pad(x_T, (0, self._padding))[context.position :: context.size]
            for x_T in (micro.tokens_T, micro.positions_T)
        )
        if micro.routes_T is not None:
            padded = F.pad(micro.routes_T, (0, 0, 0, self._padding), value=255)
            self.routes_P = padded[context.position :: context.size]
        self._places = (micro.rows_A % context.size == context.position).nonzero().squeeze(1)
        self.rows_A, self.targets_A = micro.rows_A[self._places] // context.size, micro.targets_A[self._places]
        if micro.probe_P is not None:
            probed_A = torch.zeros_like(micro.rows_A, dtype=torch.bool).index_fill(0, micro.probe_P, True)
            self.probe_P = probed_A[self._places].nonzero().squeeze(1)

    def attention(self, attend: Attend) -> Attend:
        """By heads, on all tokens: what goes in and what comes out is of this rank's part."""
        ranks, group = self._context.size, self._context.group

        def exchanged(layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading = USUAL) -> Tensor:
            width = v_TKD.shape[-1]  # keys may be wider
            v_TKD = F.pad(v_TKD, (0, k_TKD.shape[-1] - width))
            copies = lcm(ranks, k_TKD.shape[1]) // k_TKD.shape[1]
            k_TKD, v_TKD = (x.repeat_interleave(copies, dim=1) if copies > 1 else x for x in (k_TKD, v_TKD))
            by_rank = [_cut(x, 1, ranks, -1).transpose(0, 1) for x in (q_THD, k_TKD, v_TKD)]
            everyones = _exchange(torch.cat(by_rank, dim=2), group)
            qkv_T = everyones.transpose(0, 1).flatten(0, 1)[: self._num_tokens]
            if reading.sinks is not None:
                reading = reading._replace(sinks=reading.sinks.chunk(ranks)[self._context.position])
            q_T, k_T, v_T = torch.split(qkv_T, [x.shape[2] for x in by_rank], dim=1)
            read_THD = attend(layer, q_T, k_T, v_T, reading)
            padded_THD = F.pad(read_THD, (0, 0, 0, 0, 0, self._padding))
            read = _exchange(_cut(padded_THD, 0, -1, ranks).transpose(0, 1), group).transpose(0, 1).flatten(1, 2)
            return read[..., :width]

        return exchanged

    def told(self, values_A: Tensor) -> Tensor:
        everyones: Tensor = _Told.apply(  # type: ignore[no-untyped-call]
            values_A, self._places, self._num_trained, self._context.group
        )
        return everyones


def _cut(x: Tensor, dim: int, *sizes: int) -> Tensor:
    """That dimension as two."""
    return x.view(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _exchange(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The n-th of N blocks goes to rank n, and its block for this rank takes the place."""
    exchanged: Tensor = _Exchange.apply(x, group)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    """Gradients go back the way that values came, which is the same exchange."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_to_all(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grad, ctx.group), None


def _all_to_all(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


class _Told(torch.autograd.Function):
    """Each rank's values at their places, for all. A rank's own gradient comes from its own loss, which is the same as
    everybody's: nothing is summed on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
        ctx.save_for_backward(places)
        everyones = values.new_zeros(count)
        everyones[places] = values
        dist.all_reduce(everyones, group=group)
        return everyones

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return grad[places], None, None, None
