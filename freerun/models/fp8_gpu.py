"""Rounding and multiplying in FP8 on a GPU, and which of the ways to cut a product up is the fastest there. Needs
Triton."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from triton import OutOfResources, next_power_of_2

from freerun.models import fp8_kernels as kernels
from freerun.models.fp8 import Fp8Linear, Rounded, rounded
from freerun.models.fp8_tiling import Tiling, Tilings, kinds

_TRIES = 4


def round_into(x: Tensor, target: Rounded) -> None:
    rows, width = x.shape
    padded = next_power_of_2(width)
    kernels.round_kernel[(rows,)](
        x.contiguous(), *target, width, WIDTH=padded, num_warps=4 if padded <= 4096 else 8
    )  # fmt: skip


def product(layer: Fp8Linear, x: Rounded, how: Tiling) -> Tensor:
    """Parts × rows × outputs, to be added up."""
    (rows, ins), outs, parts = x.codes.shape, layer.out_features, how.split
    kind = layer.dtype if parts == 1 else torch.float32
    out = torch.empty(parts, rows, outs, dtype=kind, device=x.codes.device)
    bias = layer.scales if layer.bias is None else layer.bias
    kernels.product_kernel[(-(-rows // how.rows), -(-outs // how.outs), parts)](
        *x, layer.weight, layer.scales, bias, out, rows, ins, outs,
        BIAS=layer.bias is not None, M=how.rows, BN=how.outs, BK=how.ins, EVEN=ins % how.ins == 0, SPLIT=parts,
        SWAP=how.swap, num_warps=how.warps, num_stages=how.stages,
    )  # fmt: skip
    return out


@torch.inference_mode()
def choose_tilings(layers: Sequence[Fp8Linear], may_split: bool, tilings: Tilings) -> None:
    """For products of these, which are alike, and of any number of rows. It takes seconds where kernels have to be
    compiled."""
    device, ins, outs = layers[0].weight.device, layers[0].in_features, layers[0].out_features
    generator = torch.Generator(device).manual_seed(0)
    for kind in kinds(outs, ins):
        x = rounded(torch.randn(kind.rows, ins, device=device, generator=generator))
        tilings.choose(kind, lambda how, x=x: _took_us(layers, x, how), may_split)  # type: ignore[misc]


def _took_us(layers: Sequence[Fp8Linear], x: Rounded, how: Tiling) -> float:
    """Microseconds of a product, one layer's after another's, so that no weight is in the GPU's cache already."""

    def work() -> None:
        for layer in layers:
            product(layer, x, how)

    try:
        return _replay_us(work) / len(layers)
    except OutOfResources:  # it takes more of a processor's memory than this GPU's have
        return float("inf")


def _replay_us(work: Callable[[], None]) -> float:
    """Microseconds the work takes in a graph: to launch it may take longer than itself."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    took_ms: list[float] = []
    for _ in range(_TRIES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took_ms.append(begin.elapsed_time(end))
    return 1e3 * min(took_ms)
