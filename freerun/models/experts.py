"""Mixtures of experts: each token goes through the few feed-forward networks that its router chose for it.

Pairs of a token and one of its experts are sorted by expert, so that each expert has its rows in a row, and one grouped
product does all of them: on a GPU in bf16 without the host knowing how many rows an expert has, elsewhere expert by
expert. The weight of a pair is applied before the second product, so that nothing behind it is kept for the backward
pass, and what is inside is computed again from the first product. No expert turns a token away, whatever its load.

Shapes: T tokens, E experts, k of them for each token, S = T · k pairs sorted by expert; C the model's width, F that of
an expert.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class ExpertMatrices(nn.Module):
    """A matrix for each expert, one below the other."""

    def __init__(self, experts: int, rows: int, columns: int) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts * rows, columns))

    @property
    def by_expert(self) -> Tensor:
        return self.weight.view(self.experts, -1, self.weight.shape[1])


def router_scores(x_TC: Tensor, weight_EC: Tensor) -> Tensor:
    """How likely the router finds each expert for each token, in float32 from the product on: rounded to bf16, experts
    that are nearly alike would change places."""
    if x_TC.dtype not in (torch.bfloat16, torch.float16):
        logits_TE = F.linear(x_TC, weight_EC)
    elif x_TC.is_cuda:
        logits_TE = _WideProduct.apply(x_TC, weight_EC)  # type: ignore[no-untyped-call]
    else:
        logits_TE = F.linear(x_TC.float(), weight_EC.float())
    return logits_TE.softmax(dim=-1, dtype=torch.float32)


def weights_of(scores_TE: Tensor, chosen_Tk: Tensor, normed: bool) -> Tensor:
    """What each of a token's experts counts."""
    weights_Tk = scores_TE.gather(1, chosen_Tk)
    return weights_Tk / weights_Tk.sum(-1, keepdim=True) if normed else weights_Tk


def through_experts(
    x_TC: Tensor,
    weights_Tk: Tensor,
    chosen_Tk: Tensor,
    gate_up_E2FC: Tensor,
    down_ECF: Tensor,
    residual_TC: Tensor | None = None,
) -> Tensor:
    """What a token's experts make of it, by their weights, summed, and added to the residual stream: T × C, in float32
    or wider."""
    result: Tensor = _Experts.apply(  # type: ignore[no-untyped-call]
        residual_TC, x_TC, weights_Tk, chosen_Tk, gate_up_E2FC, down_ECF
    )
    return result


class Pairs(NamedTuple):
    """Pairs of tokens and experts, sorted by expert, as they come within one."""

    token_S: Tensor
    place_Tk: Tensor
    """Where each token's pairs are."""
    ends_E: Tensor
    """Where each expert's pairs end."""

    @classmethod
    def of(cls, chosen_Tk: Tensor, experts: int) -> "Pairs":
        expert_S, order_S = chosen_Tk.flatten().to(torch.int32).sort(stable=True)
        place_S = torch.empty_like(order_S).scatter_(0, order_S, torch.arange(len(order_S), device=order_S.device))
        every_E = torch.arange(experts, dtype=torch.int32, device=order_S.device)
        ends_E = torch.searchsorted(expert_S, every_E, right=True, out_int32=True)
        return cls(order_S // chosen_Tk.shape[1], place_S.view(chosen_Tk.shape), ends_E)


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual_TC: Tensor | None,
        x_TC: Tensor,
        weights_Tk: Tensor,
        chosen_Tk: Tensor,
        gate_up: Tensor,
        down: Tensor,
    ) -> Tensor:
        pairs = Pairs.of(chosen_Tk, len(gate_up))
        weights_S = _by_pair(weights_Tk, pairs)
        inner_S2F = grouped(x_TC[pairs.token_S], gate_up.transpose(1, 2), pairs.ends_E)
        outer_SC = grouped(_gated(inner_S2F, weights_S), down.transpose(1, 2), pairs.ends_E)
        ctx.save_for_backward(x_TC, weights_S, inner_S2F, gate_up, down, *pairs)
        return _summed(outer_SC, pairs.place_Tk, residual_TC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TC: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, weights_S, inner_S2F, gate_up, down, *given = ctx.saved_tensors
        pairs = Pairs(*given)
        wants_gate_up, wants_down = ctx.needs_input_grad[4:]
        grad_outer_SC = grad_TC.to(x_TC.dtype)[pairs.token_S]
        grad_middle_SF = grouped(grad_outer_SC, down, pairs.ends_E)
        grad_inner_S2F, grad_weights_S, middle_SF = _gated_backward(inner_S2F, weights_S, grad_middle_SF)
        grad_down = grouped_outer(grad_outer_SC, middle_SF, pairs.ends_E) if wants_down else None
        del grad_outer_SC, grad_middle_SF, middle_SF
        grad_gate_up = grouped_outer(grad_inner_S2F, x_TC[pairs.token_S], pairs.ends_E) if wants_gate_up else None
        grad_x_TC = _summed(grouped(grad_inner_S2F, gate_up, pairs.ends_E), pairs.place_Tk).to(x_TC.dtype)
        grad_residual_TC = grad_TC if ctx.needs_input_grad[0] else None
        return grad_residual_TC, grad_x_TC, grad_weights_S[pairs.place_Tk], None, grad_gate_up, grad_down


class _WideProduct(torch.autograd.Function):
    """x · weightᵀ of short numbers, in float32 out of the product, on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight.T, out_dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        short = grad.to(x.dtype)
        return short @ weight, short.T @ x if ctx.needs_input_grad[1] else None


def grouped(rows_SA: Tensor, matrices_EAB: Tensor, ends_E: Tensor) -> Tensor:
    """Each expert's rows by its matrix: S × B."""
    if _has_grouped_kernel(rows_SA):
        return _grouped_mm()(rows_SA, matrices_EAB, offs=ends_E)  # without asking the device how many rows there are
    out_SB = rows_SA.new_empty(len(rows_SA), matrices_EAB.shape[2])
    for expert, mine in _spans(ends_E):
        torch.mm(rows_SA[mine], matrices_EAB[expert], out=out_SB[mine])
    return out_SB


def grouped_outer(left_SA: Tensor, right_SB: Tensor, ends_E: Tensor) -> Tensor:
    """For each expert leftᵀ · right of its rows: E × A × B, nothing where it has none."""
    if _has_grouped_kernel(left_SA):
        out_EAB = _grouped_mm()(left_SA.T, right_SB, offs=ends_E)
        if torch.cuda.get_device_capability(left_SA.device)[0] > 9:  # pytorch #172439: not zero where there are no rows
            out_EAB.masked_fill_((ends_E.diff(prepend=ends_E.new_zeros(1)) == 0)[:, None, None], 0)
        return out_EAB
    out_EAB = left_SA.new_zeros(len(ends_E), left_SA.shape[1], right_SB.shape[1])
    for expert, mine in _spans(ends_E):
        torch.mm(left_SA[mine].T, right_SB[mine], out=out_EAB[expert])
    return out_EAB


def _has_grouped_kernel(rows: Tensor) -> bool:
    """Its rows are read 16 bytes at a time."""
    return rows.is_cuda and rows.dtype == torch.bfloat16 and rows.shape[1] % 8 == 0 and len(rows) > 0


@cache
def _grouped_mm() -> Callable[..., Tensor]:
    """torch's: its name has lost the underscore."""
    found: Callable[..., Tensor] = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return found


def _spans(ends_E: Tensor) -> Iterator[tuple[int, slice]]:
    """The experts that have rows."""
    start = 0
    for expert, end in enumerate(ends_E.tolist()):
        if end > start:
            yield expert, slice(start, end)
        start = end


def _by_pair(values_Tk: Tensor, pairs: Pairs) -> Tensor:
    return torch.empty_like(values_Tk.flatten()).scatter_(0, pairs.place_Tk.flatten(), values_Tk.flatten())


def _gated(inner_S2F: Tensor, weights_S: Tensor) -> Tensor:
    """silu(gate) · up · weight."""
    if _has_kernels(inner_S2F):
        from freerun.models import expert_kernels  # needs Triton

        return expert_kernels.gated(inner_S2F, weights_S)
    gate, up = inner_S2F.to(_wide(inner_S2F)).chunk(2, dim=1)
    return (F.silu(gate) * up * weights_S[:, None]).to(inner_S2F.dtype)


def _gated_backward(inner_S2F: Tensor, weights_S: Tensor, grad_SF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what goes into `_gated`; and what comes out of it, once more."""
    if _has_kernels(inner_S2F):
        from freerun.models import expert_kernels

        return expert_kernels.gated_backward(inner_S2F, weights_S, grad_SF)
    kind, wide = inner_S2F.dtype, _wide(inner_S2F)
    gate, up = inner_S2F.to(wide).chunk(2, dim=1)
    grad, weight, sigmoid = grad_SF.to(wide), weights_S[:, None].to(wide), gate.sigmoid()
    silu = gate * sigmoid
    grad_gate = grad * weight * up * sigmoid * (1 + gate * (1 - sigmoid))
    grad_inner = torch.cat((grad_gate, grad * weight * silu), dim=1).to(kind)
    return grad_inner, (grad * silu * up).sum(1).to(weights_S.dtype), (silu * up * weight).to(kind)


def _summed(rows_SC: Tensor, place_Tk: Tensor, residual_TC: Tensor | None = None) -> Tensor:
    """Adds up each token's pairs, and the residual: T × C."""
    if _has_kernels(rows_SC):
        from freerun.models import expert_kernels

        return expert_kernels.summed(rows_SC, place_Tk, residual_TC)
    summed = rows_SC[place_Tk].sum(1, dtype=_wide(rows_SC))
    return summed if residual_TC is None else residual_TC + summed


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype != torch.float64


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
