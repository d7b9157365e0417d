"""By which way a new version of the weights gets to the engines, and how much it moves."""

from collections.abc import Iterator

from freerun.config.tree import RunConfig
from freerun.engines.config import ResolvedEngineConfig
from freerun.machine.device import Device
from freerun.models.shape import Shape
from freerun.plan.placement import Placement
from freerun.weights.way import WeightsWay, choose_way

_WAYS = {
    "ipc": "CUDA IPC",
    "shm": "shared memory",
    "nccl": "NCCL",
    "tcp": "TCP, once a machine",
    "files": "weights.folder",
}
_LATER = "a machine that may join later"


def plan_way(config: RunConfig, placement: Placement, engine: ResolvedEngineConfig, device: Device) -> WeightsWay:
    """`device` is the trainer's. Where machines can join later, they can be reached as well."""
    fetching = {place.machine for place in placement.generating}
    fetching |= {_LATER} if config.launcher != "local" else set()
    on_gpus = engine.kind == "embedded" and device == "cuda"  # what drives other engines has no GPU
    ranks = [place.machine for place in placement.ranks]
    return choose_way(config.weights, ranks, fetching, device, engine.dtype, on_gpus)


def update_in_words(way: WeightsWay, shape: Shape, placement: Placement) -> Iterator[str]:
    """A line on a version's size and where it goes, and one on deltas where only they are sent."""
    version = shape.num_parameters * (2 if way.dtype == "bfloat16" else 4)
    source = placement.ranks[0].machine if placement.ranks else ""
    other = {place.machine for place in placement.generating} - {source}
    size = f"{_in_words(version)} a version ({way.dtype})"
    if not other:
        yield f"{size}, by {_WAYS[way.name]}, within the machine"
    else:
        total = f"{_in_words(len(other) * version)} a step between machines"
        yield f"{size} to {len(other)} machine(s): {total}, by {_WAYS[way.name]}"
    if way.deltas:
        yield "only what has changed is sent (weights.deltas): of bfloat16 weights 1 to 3% change in a step"


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size > 2**30 else f"{size / 2**20:.1f} MiB"
