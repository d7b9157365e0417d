"""Who gets how much of a GPU's memory, settled before anything is loaded: nobody then finds it full."""

from collections.abc import Iterator
from dataclasses import dataclass

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.engines.config import TUNING
from freerun.engines.embedded import memory
from freerun.machine.gpus import Gpu
from freerun.models.shape import Shape
from freerun.plan.placement import Placement, rank_name
from freerun.train import needs

_CONTEXT = 2**30
"""What CUDA and its libraries take in each process, whatever it does."""
_SPARE = 0.02
"""Of a GPU's memory: for whoever else looks at it."""
_ROUNDING = 2**29
"""Allocators round up: what a process gets beyond what it was reckoned to need."""


@dataclass(frozen=True)
class Need:
    """Bytes that a process cannot do without, and bytes beyond which it gains nothing."""

    name: str
    gpu: int
    least: int
    most: int
    what: str
    """What it has them for."""


@dataclass(frozen=True)
class MemoryShare:
    need: Need
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    gpus: list[Gpu]
    parts: list[MemoryShare]

    def share(self, name: str) -> float | None:
        """Of its GPU's memory, by the process's name; None for one that has no GPU."""
        for part in self.parts:
            if part.need.name == name:
                return part.bytes / self.gpus[part.need.gpu].total
        return None

    def __str__(self) -> str:
        lines = []
        for index, gpu in enumerate(self.gpus):
            here = [part for part in self.parts if part.need.gpu == index]
            parts = "; ".join(f"{part.need.name} {_gib(part.bytes)} ({part.need.what})" for part in here)
            if here:
                lines.append(f"GPU {index} ({gpu}): {parts}")
        return "\n".join(lines)


def plan_memory(config: RunConfig, shape: Shape, placement: Placement, evaluated: int) -> MemoryPlan:
    """Everybody gets what he needs; of the rest, as much as he can use, in proportion. `evaluated`: answers that the
    evaluator is asked for at a time, 0 without one."""
    parts: list[MemoryShare] = []
    all_needs = list(_needs(config, shape, placement, evaluated))
    for index, gpu in enumerate(placement.gpus):
        here = [need for need in all_needs if need.gpu == index]
        if not here:
            continue
        elsewhere = [*placement.engines, placement.evaluator if evaluated else None]
        visitors = sum(index in placement.engine_sees(gpu_of)[1:] for gpu_of in elsewhere)  # who fetch weights here
        free = gpu.free - int(_SPARE * gpu.total) - _CONTEXT * (len(here) + visitors)
        left = free - sum(need.least for need in here)
        if left < 0:
            raise ConfigError(_refusal(index, gpu, here, free))
        wanted = sum(need.most - need.least for need in here)
        scale = min(1.0, left / wanted) if wanted else 0.0
        parts += [MemoryShare(need, need.least + int(scale * (need.most - need.least))) for need in here]
    return MemoryPlan(placement.gpus, parts)


def _needs(config: RunConfig, shape: Shape, placement: Placement, evaluated: int) -> Iterator[Need]:
    train, longest = config.train, _longest(config)
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
            yield _engine(f"engine {index}", gpu, placement, config, shape, config.engine.max_running)
    if evaluated and placement.evaluator is not None:
        answers = min(evaluated, config.engine.max_running)
        yield _engine("evaluator", placement.evaluator, placement, config, shape, answers)


def _engine(name: str, gpu: int, placement: Placement, config: RunConfig, shape: Shape, answers: int) -> Need:
    """An engine that decodes so many answers together."""
    engine, size = config.engine, 4 if config.engine.dtype == "float32" else 2
    standing = shape.num_parameters * size + memory.working_bytes(shape, size, engine) + _ROUNDING
    if engine.memory_share is not None:
        given = int(engine.memory_share * placement.gpus[gpu].total)
        return Need(name, gpu, given, given, "engine.memory_share")
    longest = _longest(config) + 2 * TUNING.tokens_in_a_block(on_gpu=True)
    most = engine.cache_tokens or answers * longest
    least = engine.cache_tokens or max(2 * longest, most // 16)
    per_token = memory.bytes_per_token(shape, size)
    what = f"{_gib(standing)} for weights and work, then a cache of up to {most:,} tokens"
    return Need(name, gpu, standing + least * per_token, standing + most * per_token, what)


def _longest(config: RunConfig) -> int:
    return config.data.max_prompt_tokens + config.rollout.max_new_tokens


def _refusal(index: int, gpu: Gpu, here: list[Need], free: int) -> str:
    asked = ", ".join(f"{need.name} {_gib(need.least)}" for need in here)
    return (
        f"GPU {index} ({gpu}) has {_gib(max(free, 0))} to give, and the least that is needed is {asked}; lower "
        "rollout.max_new_tokens, engine.max_running or train.micro_batch_tokens, set train.recompute=true or "
        "train.lora.rank=16, or choose a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
