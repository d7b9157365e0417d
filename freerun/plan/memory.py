"""How much of a GPU's memory each process gets, decided before anything is loaded, so that none finds it full.

How many tokens an engine's cache then holds, and how many the trainer takes in a pass, is found when they have loaded
their weights (`engines/embedded/memory.py`, `train/budget.py`): only then is it known what is really free.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from freerun.core import ConfigError
from freerun.engines.config import ResolvedEngineConfig
from freerun.engines.embedded import memory
from freerun.machine.gpus import Gpu
from freerun.models.shape import Shape
from freerun.plan.lengths import Lengths
from freerun.plan.placement import EVALUATOR, Placement, engine_name, rank_name
from freerun.train import needs
from freerun.train.config import ResolvedTrainConfig

_CONTEXT = 2**30
"""What CUDA and its libraries take in each process, whatever it does."""
_SPARE = 0.02
"""The share of a GPU's memory that is left for whoever else uses it."""
_ROUNDING = 2**29
"""Allocators round up: what a process gets beyond what it was estimated to need."""


@dataclass(frozen=True)
class Need:
    """Bytes that a process cannot do without, and bytes beyond which it gains nothing."""

    name: str
    gpu: int
    least: int
    most: int
    what: str
    """What it uses them for."""


@dataclass(frozen=True)
class MemoryShare:
    need: Need
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    gpus: list[Gpu]
    shares: list[MemoryShare]

    def share(self, name: str) -> float | None:
        """The share of its GPU's memory that the process of this name gets; None for one that has no GPU."""
        for share in self.shares:
            if share.need.name == name:
                return share.bytes / self.gpus[share.need.gpu].total
        return None

    def __str__(self) -> str:
        lines = []
        for index, gpu in enumerate(self.gpus):
            here = [share for share in self.shares if share.need.gpu == index]
            processes = "; ".join(f"{share.need.name} {_gib(share.bytes)} ({share.need.what})" for share in here)
            if here:
                lines.append(f"GPU {index} ({gpu}): {processes}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Demand:
    """What a run's need of memory follows from."""

    shape: Shape
    lengths: Lengths
    engine: ResolvedEngineConfig
    train: ResolvedTrainConfig
    evaluated: int
    """Answers that the evaluator is asked for at a time; 0 without one."""
    engine_share: float | None = None
    """The share of a GPU that the user gives each engine; None: what it needs."""


def plan_memory(demand: Demand, placement: Placement) -> MemoryPlan:
    """Every process gets what it needs; the rest is divided in proportion to what each can use."""
    shares: list[MemoryShare] = []
    all_needs = list(_needs(demand, placement))
    for index, gpu in enumerate(placement.gpus):
        here = [need for need in all_needs if need.gpu == index]
        if not here:
            continue
        elsewhere = [*placement.engines, placement.evaluator if demand.evaluated else None]
        visitors = sum(
            index in placement.engine_sees(gpu_of)[1:] for gpu_of in elsewhere
        )  # they fetch weights from here
        free = gpu.free - int(_SPARE * gpu.total) - _CONTEXT * (len(here) + visitors)
        left = free - sum(need.least for need in here)
        if left < 0:
            raise ConfigError(_refusal(index, gpu, here, free))
        wanted = sum(need.most - need.least for need in here)
        scale = min(1.0, left / wanted) if wanted else 0.0
        shares += [MemoryShare(need, need.least + int(scale * (need.most - need.least))) for need in here]
    return MemoryPlan(placement.gpus, shares)


def _needs(demand: Demand, placement: Placement) -> Iterator[Need]:
    shape, train, longest = demand.shape, demand.train, demand.lengths.sequence
    per_token = needs.bytes_per_token(shape, train)
    in_a_pass = train.micro_batch_tokens or max(needs.PASS_TOKENS, longest)
    for rank, gpu in enumerate(placement.ranks):
        if gpu is not None:
            standing = needs.standing_bytes(shape, train, publishes=rank == 0) + _ROUNDING
            most, least = max(in_a_pass, longest), longest if train.micro_batch_tokens is None else in_a_pass
            what = f"{_gib(standing)} for weights and optimizer, then passes of up to {most:,} tokens"
            yield Need(rank_name(rank), gpu, standing + least * per_token, standing + most * per_token, what)
    for index, gpu in enumerate(placement.engines):
        if gpu is not None:
            yield _engine(engine_name(index), gpu, placement, demand, demand.engine.max_running)
    if demand.evaluated and placement.evaluator is not None:
        answers = min(demand.evaluated, demand.engine.max_running)
        yield _engine(EVALUATOR, placement.evaluator, placement, demand, answers)


def _engine(name: str, gpu: int, placement: Placement, demand: Demand, answers: int) -> Need:
    """An engine that decodes so many answers together."""
    shape, engine, size = demand.shape, demand.engine, 4 if demand.engine.dtype == "float32" else 2
    standing = shape.num_parameters * size + memory.working_bytes(shape, size, engine) + _ROUNDING
    if demand.engine_share is not None:
        given = int(demand.engine_share * placement.gpus[gpu].total)
        return Need(name, gpu, given, given, "engine.memory_share")
    longest = memory.cache_for(demand.lengths.sequence, engine.block_tokens, engine.burst)
    most = engine.cache_tokens or answers * longest
    least = engine.cache_tokens or max(2 * longest, most // 16)
    per_token = memory.bytes_per_token(shape, size)
    what = f"{_gib(standing)} for weights and work, then a cache of up to {most:,} tokens"
    return Need(name, gpu, standing + least * per_token, standing + most * per_token, what)


def _refusal(index: int, gpu: Gpu, here: list[Need], free: int) -> str:
    asked = ", ".join(f"{need.name} {_gib(need.least)}" for need in here)
    return (
        f"GPU {index} ({gpu}) has {_gib(max(free, 0))} to give, and the least that is needed is {asked}; lower "
        "rollout.max_new_tokens, engine.max_running or train.micro_batch_tokens, set train.recompute=true or "
        "train.lora.rank=16, or choose a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
