"""From hidden states to log-probability and entropy, without ever holding tokens × vocabulary.

Rows are taken a chunk at a time, forward and backward. The backward pass computes a chunk's logits again instead of
keeping them: at 32,768 tokens and a vocabulary of 150,000 they would be 20 GB. Logits are float32 out of the matrix
product, as the engine's are: in bf16 they would cost the log-probabilities two digits.

Shapes: A trained tokens, C of them in a chunk; V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from freerun.models.decoder import AS_IT_IS, Readout
from freerun.train.cutoffs import cut_off
from freerun.train.how_sampled import HowSampled

_CHUNK = {"cuda": 2**28, "cpu": 2**22}
"""Logits held at a time."""
_CHUNK_OF_FROZEN = {"cuda": 2**26, "cpu": 2**22}
"""The same where the head's weights do not learn: with each chunk their gradient would be read and written."""


def logprobs_and_entropy(
    hidden_A: Tensor,
    weight_V: Tensor,
    targets_A: Tensor,
    temperature: float,
    readout: Readout = AS_IT_IS,
    bias_V: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target token under softmax(logits / temperature), and that softmax's entropy. Logits are
    hidden · weightᵀ + bias, as `readout` has them.

    Both float32 (or wider, as the weights), both with a gradient to `hidden_A`, `weight_V` and `bias_V`.
    """
    logprobs_A, entropy_A = _Head.apply(hidden_A, weight_V, bias_V, targets_A, temperature, readout)
    return logprobs_A, entropy_A


@torch.no_grad()
def cut_off_at(
    hidden_P: Tensor,
    weight_V: Tensor,
    temperature: float,
    how: HowSampled,
    readout: Readout = AS_IT_IS,
    bias_V: Tensor | None = None,
) -> Tensor:
    """What top-k and top-p cut off at these positions: see `cutoffs.py`. Float32."""
    chunks = [hidden_P.new_zeros(0, dtype=torch.float32)]
    for rows in _chunks(len(hidden_P), weight_V):
        chunks.append(cut_off(_logits(hidden_P[rows], weight_V, bias_V, readout), temperature, how))
    return torch.cat(chunks)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_A: Tensor,
        weight_V: Tensor,
        bias_V: Tensor | None,
        targets_A: Tensor,
        temperature: float,
        readout: Readout,
    ) -> tuple[Tensor, Tensor]:
        chunks = []
        for rows in _chunks(len(hidden_A), weight_V):
            chunks.append(_stats(_logits(hidden_A[rows], weight_V, bias_V, readout), targets_A[rows], temperature))
        empty = hidden_A.new_zeros(3, 0, dtype=_precise(weight_V))
        logprobs_A, entropy_A, normaliser_A = torch.cat([empty, *chunks], dim=1)
        ctx.save_for_backward(hidden_A, weight_V, bias_V, targets_A, normaliser_A, entropy_A)
        ctx.temperature, ctx.readout = temperature, readout
        ctx.set_materialize_grads(False)
        return logprobs_A, entropy_A.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs_A: Tensor | None, grad_entropy_A: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden_A, weight_V, bias_V, targets_A, normaliser_A, entropy_A = ctx.saved_tensors
        both = (grad_logprobs_A, grad_entropy_A)
        grads_2A = torch.stack([torch.zeros_like(entropy_A) if grad is None else grad for grad in both])
        grad_hidden_A = torch.empty_like(hidden_A)
        grad_weight_V = torch.zeros_like(weight_V, dtype=_precise(weight_V)) if ctx.needs_input_grad[1] else None
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=_precise(weight_V))
        for rows in _chunks(len(hidden_A), weight_V):
            logits_CV = _logits(hidden_A[rows], weight_V, bias_V, ctx.readout)
            known = targets_A[rows], normaliser_A[rows], entropy_A[rows]
            grad_CV = _grad_logits(logits_CV, *known, grads_2A[:, rows], ctx.temperature, weight_V.dtype)
            grad_CV = ctx.readout.slope(logits_CV, grad_CV)
            torch.mm(grad_CV, weight_V, out=grad_hidden_A[rows])
            if grad_weight_V is not None:
                grad_weight_V = _add_product(grad_weight_V, grad_CV.T, hidden_A[rows])
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0, dtype=grad_bias_V.dtype)
        return grad_hidden_A, grad_weight_V, grad_bias_V, None, None, None


def _chunks(count: int, weight_V: Tensor) -> list[slice]:
    chunk = _CHUNK if weight_V.requires_grad else _CHUNK_OF_FROZEN
    rows = max(1, chunk[weight_V.device.type] // len(weight_V))
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _precise(weight_V: Tensor) -> torch.dtype:
    return torch.promote_types(weight_V.dtype, torch.float32)


def _logits(hidden_C: Tensor, weight_V: Tensor, bias_V: Tensor | None, readout: Readout) -> Tensor:
    if weight_V.is_cuda and weight_V.dtype == torch.bfloat16:
        products_CV = torch.mm(hidden_C, weight_V.T, out_dtype=torch.float32)
    else:
        products_CV = torch.mm(hidden_C, weight_V.T).to(_precise(weight_V))
    return readout.of(products_CV if bias_V is None else products_CV + bias_V)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a·b, the sum in the type of `total`."""
    if total.is_cuda and a.dtype == torch.bfloat16:
        return torch.addmm(total, a, b, out_dtype=torch.float32)
    return total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _stats(logits_CV: Tensor, targets_C: Tensor, temperature: float) -> Tensor:
    """Log-probability of the target, entropy, and the logarithm of the normaliser; 3 × C."""
    if logits_CV.is_cuda and logits_CV.dtype == torch.float32:
        from freerun.train.kernels import softmax_stats

        stats: Tensor = softmax_stats(logits_CV, targets_C, temperature)
        return stats
    scaled_CV = logits_CV / temperature
    normaliser_C = scaled_CV.logsumexp(-1)
    logprobs_C = scaled_CV.gather(1, targets_C[:, None]).squeeze(1) - normaliser_C
    mean_C = (scaled_CV - normaliser_C[:, None]).exp().mul(scaled_CV).sum(-1)
    return torch.stack([logprobs_C, normaliser_C - mean_C, normaliser_C])


def _grad_logits(
    logits_CV: Tensor,
    targets_C: Tensor,
    normaliser_C: Tensor,
    entropy_C: Tensor,
    grads_2C: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """∂/∂logits of  g₁ · log p(target) + g₂ · H:  ( g₁ (1[target] − p) − g₂ p (log p + H) ) / temperature."""
    if logits_CV.is_cuda and logits_CV.dtype == torch.float32:
        from freerun.train.kernels import softmax_grads

        grads: Tensor = softmax_grads(logits_CV, targets_C, normaliser_C, entropy_C, grads_2C, temperature, dtype)
        return grads
    grad_logprobs_C1, grad_entropy_C1 = grads_2C[0, :, None], grads_2C[1, :, None]
    logp_CV = logits_CV / temperature - normaliser_C[:, None]
    grad_CV = -logp_CV.exp() * (grad_logprobs_C1 + grad_entropy_C1 * (logp_CV + entropy_C[:, None]))
    grad_CV.scatter_add_(1, targets_C[:, None], grad_logprobs_C1)
    return (grad_CV / temperature).to(dtype)
