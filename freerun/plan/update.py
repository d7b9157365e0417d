"""By which way a new version of the weights gets to the engines, and how much it moves."""

from collections.abc import Iterator

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.engines.config import ResolvedEngineConfig
from freerun.machine.device import Device
from freerun.models.shape import AdapterShape, Shape
from freerun.plan.placement import Placement
from freerun.train.config import ResolvedTrainConfig
from freerun.weights.way import Base, WeightsWay, choose_way

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
    adapter = adapter_of(config, placement, engine) is not None
    return choose_way(config.weights, ranks, fetching, device, engine.dtype, on_gpus, adapter)


def adapter_of(config: RunConfig, placement: Placement, engine: ResolvedEngineConfig) -> AdapterShape | None:
    """What versions are of where an adapter is trained and the engines compute with it: our own, which the run starts.
    All others are given merged weights."""
    lora, ours = config.train.lora, engine.kind == "embedded" and not engine.urls
    if lora.bits < 16 and (not ours or len(placement.ranks) > 1):
        raise ConfigError(
            f"train.lora.bits={lora.bits} works with one trainer rank, and with engines of Freerun's own that the run "
            "starts: leave it at 16"
        )
    return AdapterShape(lora.rank, lora.effective_alpha, lora.bits) if lora.rank and ours else None


def lending_gpus(
    way: WeightsWay | None, shape: Shape, placement: Placement, engine: ResolvedEngineConfig, train: ResolvedTrainConfig
) -> tuple[int, ...]:
    """The GPU of a trainer that lends its base to the engines there, so that it is there once; none otherwise."""
    is_alone = len(placement.ranks) == 1 and shape.backend == "own" and train.dtype == engine.dtype
    if way is None or not way.adapter or not is_alone:
        return ()
    at = placement.ranks[0].gpus
    return at if any(place.gpus == at for place in placement.generating) else ()


def base_of(gpus: tuple[int, ...], lending: tuple[int, ...], way: WeightsWay | None, shape: Shape) -> Base:
    """Where a process on those GPUs, or on none, has the weights below an adapter. Several ranks read a share each."""
    if gpus:
        return "lent" if gpus == lending else "own"
    return "file" if way is not None and way.adapter and shape.backend == "own" else "own"


def update_in_words(
    way: WeightsWay, shape: Shape, placement: Placement, adapter: AdapterShape | None = None
) -> Iterator[str]:
    """A line on a version's size and where it goes, and one on deltas where only they are sent."""
    numbers = adapter.num_parameters(shape) if adapter else shape.num_parameters
    version = numbers * (2 if way.dtype == "bfloat16" else 4)
    source = placement.ranks[0].machine if placement.ranks else ""
    other = {place.machine for place in placement.generating} - {source}
    size = f"{_in_words(version)} a version ({way.dtype}{', the adapter alone' if adapter else ''})"
    if not other:
        yield f"{size}, by {_WAYS[way.name]}, within the machine"
    else:
        total = f"{_in_words(len(other) * version)} a step between machines"
        yield f"{size} to {len(other)} machine(s): {total}, by {_WAYS[way.name]}"
    if way.deltas:
        yield "only what has changed is sent (weights.deltas): of bfloat16 weights 1 to 3% change in a step"


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size > 2**30 else f"{size / 2**20:.1f} MiB"
