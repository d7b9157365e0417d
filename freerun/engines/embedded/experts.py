"""A layer's experts in the engine, on a GPU: what `models/experts.py` computes, for few tokens by kernels of its own.

Nothing here asks the device anything, and sizes depend on the number of tokens alone: a CUDA graph may hold all of it.
Many tokens, of long prompts, go through the trainer's grouped products.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from freerun.engines.embedded import expert_kernels as kernels
from freerun.models.experts import through_experts
from freerun.models.own import ExpertLayer
from freerun.models.routes import RouteLayout

_FEW = 1_024
"""Tokens of a pass up to which an expert has so few that reading its weights is what takes the time."""
_FULL = 264
"""Programs that keep a GPU busy: two on each of its processors."""


class RouteNotes(NamedTuple):
    """Where it is noted which experts tokens went through."""

    out: Tensor
    """Moments × tokens × layers with experts × experts of a token."""
    moment: Tensor
    """Which moment it is, on the device."""

    @classmethod
    def empty(cls, layout: RouteLayout, moments: int, tokens: int, moment: Tensor) -> "RouteNotes":
        kind = torch.uint8 if layout.kind.itemsize == 1 else torch.int16
        out = torch.zeros(moments, tokens, layout.layers, layout.per_token, dtype=kind, device=moment.device)
        return cls(out, moment)


class Tiles(NamedTuple):
    """How products are cut up."""

    rows: int
    columns: int
    step: int

    warps: int

    @classmethod
    def of(cls, pairs: int, experts: int, width: int, bytes_each: int) -> "Tiles":
        """Rows for about as many pairs as an expert has; columns such that there are programs enough; steps such that
        what is read ahead fits the memory of a processor."""
        rows = min(max(int(next_power_of_2(2 * -(-pairs // experts))), 16), 256 // bytes_each)
        busy = min(pairs, experts)
        columns = next((size for size in (64, 32) if busy * -(-width // size) >= _FULL), 16)
        step = (128 if columns == 64 else 256) // bytes_each
        return cls(rows, columns, step, 8 if rows * columns > 4_096 else 4)


def feed(layer: ExpertLayer, x_TC: Tensor, notes: RouteNotes | None) -> Tensor:
    """What their experts make of tokens: T × C, in float32."""
    chosen_Tk, weights_Tk = chosen(layer, x_TC, notes)
    gate_up, down = layer.expert_gate_up.by_expert, layer.expert_down.by_expert
    if len(x_TC) > _FEW and x_TC.dtype == torch.bfloat16:
        return through_experts(x_TC, weights_Tk, chosen_Tk, gate_up, down)
    return through_few(x_TC, weights_Tk, chosen_Tk, gate_up, down)


def chosen(layer: ExpertLayer, x_TC: Tensor, notes: RouteNotes | None) -> tuple[Tensor, Tensor]:
    """Which experts each token goes through, and what they count."""
    weight, experts = layer.router.weight, layer.experts
    if x_TC.dtype == torch.float32 or not x_TC.is_cuda:
        logits_TE = x_TC.float() @ weight.float().T
    else:
        logits_TE = torch.mm(x_TC, weight.T, out_dtype=torch.float32)
    tokens, k = len(x_TC), experts.per_token
    chosen_Tk = torch.empty(tokens, k, dtype=torch.int32, device=x_TC.device)
    weights_Tk = torch.empty(tokens, k, dtype=torch.float32, device=x_TC.device)
    out, moment = notes if notes else (chosen_Tk, chosen_Tk)
    kernels.choose_kernel[(tokens,)](
        logits_TE, chosen_Tk, weights_Tk, out, moment, layer.place, experts.count, out.stride(0), out.stride(1),
        K=k, KS=next_power_of_2(k), ES=next_power_of_2(experts.count), NORMED=experts.normed, NOTED=notes is not None,
        num_warps=1,
    )  # fmt: skip
    return chosen_Tk, weights_Tk


def through_few(x_TC: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """By programs that each read some columns of one expert's weights once."""
    device, kind = x_TC.device, x_TC.dtype
    (tokens, width), (experts, _, ffn), k = x_TC.shape, down.shape, chosen_Tk.shape[1]
    pairs = tokens * k
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=device)
    kernels.order_kernel[(experts,)](
        chosen_Tk, order, starts, pairs, WIDTH=min(max(int(next_power_of_2(pairs)), 32), 2_048), num_warps=4
    )
    precision = "ieee" if kind == torch.float32 else "tf32"
    inner = torch.empty(pairs, ffn, dtype=kind, device=device)
    first = Tiles.of(pairs, experts, ffn, x_TC.element_size())
    kernels.inner_kernel[(experts, -(-ffn // first.columns))](
        x_TC, gate_up, weights_Tk, order, starts, inner,
        C=width, F=ffn, K=k, M=first.rows, N=first.columns, STEP=first.step, PRECISION=precision,
        num_warps=first.warps, num_stages=3,
    )  # fmt: skip
    outer = torch.empty(pairs, width, dtype=kind, device=device)
    second = Tiles.of(pairs, experts, width, x_TC.element_size())
    kernels.outer_kernel[(experts, -(-width // second.columns))](
        inner, down, order, starts, outer,
        C=width, F=ffn, M=second.rows, N=second.columns, STEP=second.step, PRECISION=precision,
        num_warps=second.warps, num_stages=3,
    )  # fmt: skip
    out = torch.empty(tokens, width, dtype=torch.float32, device=device)
    block = min(int(next_power_of_2(width)), 1_024)
    kernels.sum_kernel[(tokens, -(-width // block))](outer, out, width, K=k, WIDTH=block, num_warps=4)
    return out
