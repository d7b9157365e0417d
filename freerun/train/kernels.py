"""Triton kernels of the head on a GPU: softmax over a large vocabulary, read once. `head.py` has the plain version."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDTH = 4096


def softmax_stats(logits_CV: Tensor, targets_C: Tensor, temperature: float) -> Tensor:
    rows, vocabulary = logits_CV.shape
    out = torch.empty(3, rows, device=logits_CV.device)
    _stats_kernel[(rows,)](
        logits_CV, targets_C, *out, 1 / temperature, logits_CV.stride(0), vocabulary, WIDTH=_WIDTH, num_warps=8
    )
    return out


def softmax_grads(
    logits_CV: Tensor,
    targets_C: Tensor,
    normaliser_C: Tensor,
    entropy_C: Tensor,
    grads_2C: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    rows, vocabulary = logits_CV.shape
    out = torch.empty_like(logits_CV, dtype=dtype)
    grads = grads_2C.contiguous()
    _grads_kernel[(rows, triton.cdiv(vocabulary, _WIDTH))](
        logits_CV, targets_C, normaliser_C, entropy_C, grads[0], grads[1], out,
        1 / temperature, logits_CV.stride(0), vocabulary, WIDTH=_WIDTH, num_warps=8,
    )  # fmt: skip
    return out


# One number a row is read through most pointers: whether they are aligned, which differs from chunk to chunk, is not
# worth a compilation of its own.
@triton.jit(do_not_specialize_on_alignment=["targets", "logprobs", "entropies", "normalisers"])
def _stats_kernel(
    logits, targets, logprobs, entropies, normalisers, inverse_temperature, stride, vocabulary, WIDTH: tl.constexpr
):
    """One program a row. Every lane keeps its own maximum and sums; they are put together once, at the end."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    highest = tl.full([WIDTH], -1e30, tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    weighted = tl.zeros([WIDTH], tl.float32)
    for start in range(0, vocabulary, WIDTH):
        inside = start + lane < vocabulary
        x = tl.load(logits + row * stride + start + lane, mask=inside, other=-1e30) * inverse_temperature
        higher = tl.maximum(highest, x)
        shrink, grown = tl.exp(highest - higher), tl.where(inside, tl.exp(x - higher), 0.0)
        total = total * shrink + grown
        weighted = weighted * shrink + grown * tl.where(inside, x, 0.0)
        highest = higher
    top = tl.max(highest, 0)
    share = tl.exp(highest - top)
    total_all = tl.sum(total * share, 0)
    normaliser = top + tl.log(total_all)
    chosen = tl.load(logits + row * stride + tl.load(targets + row)) * inverse_temperature
    tl.store(logprobs + row, chosen - normaliser)
    tl.store(entropies + row, normaliser - tl.sum(weighted * share, 0) / total_all)
    tl.store(normalisers + row, normaliser)


@triton.jit(do_not_specialize_on_alignment=["targets", "normalisers", "entropies", "grad_logprobs", "grad_entropies"])
def _grads_kernel(
    logits, targets, normalisers, entropies, grad_logprobs, grad_entropies, out,
    inverse_temperature, stride, vocabulary, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = token < vocabulary
    x = tl.load(logits + row * stride + token, mask=inside, other=-1e30) * inverse_temperature
    logp = x - tl.load(normalisers + row)
    of_logprob, of_entropy = tl.load(grad_logprobs + row), tl.load(grad_entropies + row)
    grad = -tl.exp(logp) * (of_logprob + of_entropy * (logp + tl.load(entropies + row)))
    grad += tl.where(token == tl.load(targets + row), of_logprob, 0.0)
    tl.store(out + row * vocabulary + token, (grad * inverse_temperature).to(out.dtype.element_ty), mask=inside)
