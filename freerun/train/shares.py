"""A module's weights shared out among ranks (FSDP2), and filled from a model's folder, each rank its share alone.

A decoder on the meta device has no weights until it is shared out; then each rank reads its rows from the files. So no
rank ever holds more than its share and one tensor's rows. What is not on the meta device when it comes has its values.
What a decoder checks of itself, which takes all of its weights, is a pass like any other then: layer by layer.
FSDP2 is imported where it is used: torch takes half a second for it.
"""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from freerun.models.checkpoint import read_rows
from freerun.models.decoder import Decoder
from freerun.train.ranks import Ranks, own


def decoder_of(module: nn.Module) -> Decoder:
    decoder = module.decoder
    assert isinstance(decoder, Decoder)
    return decoder


def share_out(module: nn.Module, ranks: Ranks, low: bool, folder: Path | None = None) -> None:
    """`low`: it computes in bf16. `folder` has the weights of a decoder that is on the meta device."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # the residual stream stays float32
    if low:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for sharded in [*decoder_of(module).layers, module]:
        fully_shard(sharded, mesh=ranks.mesh, mp_policy=policy)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)  # the sum over ranks: a minibatch's weights are those of all
        sharded.set_force_sum_reduction_for_comms(True)  # gloo takes an average for a sum (pytorch #162338)
    if folder:
        _fill(module, ranks, folder)
        if decoder_of(module).pieces:  # transformers' code
            _check(module)


@torch.no_grad()
def _fill(module: nn.Module, ranks: Ranks, folder: Path) -> None:
    empty = {name: parameter for name, parameter in decoder_of(module).named_parameters() if parameter.is_meta}
    there = ranks.device
    cast(Any, module)._apply(lambda x: torch.empty_like(x, device=there) if x.is_meta else x.to(there))  # keeps ties
    for name, parameter in empty.items():
        share, rows = own(parameter), _rows(parameter, ranks)
        assert len(rows) == len(share)
        if rows:
            share.copy_(read_rows(folder, name, decoder_of(module), parameter.shape, rows))


@torch.no_grad()
def _check(module: nn.Module) -> None:
    """Within a forward pass of the whole module, for which all ranks' shares come together."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    outermost = cast(Any, module)
    outermost.check = decoder_of(module).check
    register_fsdp_forward_method(module, "check")
    outermost.check()
    outermost.reshard()  # FSDP2 leaves that to a backward pass, and none will come
    del outermost.check


def _rows(parameter: Tensor, ranks: Ranks) -> range:
    """Which rows of the parameter this rank has: FSDP2 cuts it into pieces of equal size, the last ones shorter."""
    assert ranks.mesh
    count = len(parameter)
    size = -(-count // ranks.sharing)
    start = min(ranks.mesh.get_local_rank(ranks.mesh.ndim - 1) * size, count)
    return range(start, min(start + size, count))
