"""How much a new version of the weights moves, and by which way."""

from collections.abc import Iterator

from freerun.config.tree import RunConfig
from freerun.models.shape import Shape
from freerun.plan.placement import Placement

_WAYS = {
    "ipc": "CUDA IPC",
    "shm": "shared memory",
    "nccl": "NCCL",
    "tcp": "TCP, once a machine",
    "files": "weights.folder",
}


def update_in_words(config: RunConfig, shape: Shape, placement: Placement) -> Iterator[str]:
    """A line on a version's size and where it goes, and one on deltas where only they are sent."""
    size = 2 if placement.gpus else 4
    version = shape.num_parameters * size
    source = placement.ranks[0].machine if placement.ranks else ""
    other = {place.machine for place in placement.generating} - {source}
    way = _WAYS[chosen_way(config, placement)]
    gib = f"{version / 2**30:.2f} GiB a version ({'bfloat16' if size == 2 else 'float32'})"
    if not other:
        yield f"{gib}, by {way}, within the machine"
    else:
        total = f"{len(other) * version / 2**30:.1f} GiB a step between machines"
        yield f"{gib} to {len(other)} machine(s): {total}, by {way}"
    if config.weights.deltas:
        yield "only what has changed is sent (weights.deltas): of bfloat16 weights 1 to 3% change in a step"


def chosen_way(config: RunConfig, placement: Placement) -> str:
    """What `weights.way: auto` comes to."""
    if config.weights.way != "auto":
        return config.weights.way
    machines = {place.machine for place in (*placement.generating, *placement.ranks)}
    if len(machines) > 1:
        direct = placement.gpus and config.engine.kind == "embedded" and not config.weights.deltas
        return "nccl" if direct else "tcp"
    return "ipc" if placement.gpus and len(placement.ranks) == 1 else "shm"
