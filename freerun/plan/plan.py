"""A run's configuration and this machine, worked out into who runs where, with how much, and with which settings.

Everything is decided here once, before a process starts, and handed on: processes get settings without anything left
to work out. What cannot fit is a ConfigError. What is left to the processes is what only they can see, how much of
their GPU's memory is really free: see `memory.py`. No torch.
"""

from dataclasses import dataclass, replace

from freerun.config.tree import RunConfig
from freerun.engines.config import ResolvedEngineConfig
from freerun.machine.device import any_gpu, choose_device
from freerun.machine.gpus import Gpu, visible_gpus
from freerun.models.shape import Shape
from freerun.plan.lengths import Lengths, check_lengths
from freerun.plan.memory import Demand, MemoryPlan, plan_memory
from freerun.plan.placement import EVALUATOR, Placement, RunKind, engine_name, place, rank_name
from freerun.rewards.config import RewardConfig
from freerun.train.config import ResolvedTrainConfig


@dataclass(frozen=True)
class GpuAssignment:
    """What one process gets of the machine's GPUs."""

    process: str
    """Its name."""
    sees: list[int]
    """Indices of GPUs, its own first; none on a CPU."""
    goes_first: bool
    """Whether its work has priority on a GPU that it shares."""
    memory_share: float | None
    """How much of its GPU's memory it may take; None without a GPU, or where that is not divided."""


@dataclass(frozen=True)
class Plan:
    kind: RunKind
    lengths: Lengths
    engine: ResolvedEngineConfig
    """The settings of every engine, but for its share of memory."""
    train: ResolvedTrainConfig
    threads: int
    """CPU threads of each engine and each rank."""
    reward: RewardConfig
    """The rewards' settings, with the number of workers filled in."""
    placement: Placement
    memory: MemoryPlan
    engines: list[GpuAssignment]
    ranks: list[GpuAssignment]
    evaluator: GpuAssignment | None

    def engine_settings(self, assignment: GpuAssignment) -> ResolvedEngineConfig:
        if assignment.memory_share is None:
            return self.engine
        return self.engine.model_copy(update={"memory_share": assignment.memory_share})


def make_plan(
    config: RunConfig,
    shape: Shape,
    lengths: Lengths,
    kind: RunKind = RunKind.TRAIN,
    evaluated: int = 0,
    gpus: list[Gpu] | None = None,
) -> Plan:
    """`evaluated` is how many answers the evaluator is asked for at a time, 0 for a run without one; `gpus` are this
    machine's unless given."""
    has_gpu = any_gpu() if gpus is None else bool(gpus)
    generates = kind is not RunKind.SFT
    engine = config.engine.on(choose_device(has_gpu))
    train = config.train.on(choose_device(has_gpu), shape.num_parameters)
    if generates:
        check_lengths(lengths, shape, engine)
    placement = place(config, visible_gpus() if gpus is None else gpus, kind)
    memory = plan_memory(Demand(shape, lengths, engine, train, evaluated, config.engine.memory_share), placement)
    num_engines = len(placement.engines) + bool(evaluated)
    threads = config.resources.threads
    busy_threads = (num_engines + len(placement.ranks)) * threads + 1  # one is the controller's
    assignments = _Assignments(placement, memory)
    return Plan(
        *(kind, lengths, engine, train, threads, config.reward.beside(busy_threads), placement, memory),
        engines=[assignments.engine(engine_name(i), gpu) for i, gpu in enumerate(placement.engines)],
        ranks=[assignments.rank(rank, gpu) for rank, gpu in enumerate(placement.ranks)],
        evaluator=assignments.beside_engines(assignments.engine(EVALUATOR, placement.evaluator)) if evaluated else None,
    )


@dataclass(frozen=True)
class _Assignments:
    placement: Placement
    memory: MemoryPlan

    def engine(self, name: str, gpu: int | None) -> GpuAssignment:
        return GpuAssignment(name, self.placement.engine_sees(gpu), True, self.memory.share(name))

    def rank(self, rank: int, gpu: int | None) -> GpuAssignment:
        name, sees = rank_name(rank), [] if gpu is None else [gpu]
        return self.beside_engines(GpuAssignment(name, sees, False, self.memory.share(name)))

    def beside_engines(self, assignment: GpuAssignment) -> GpuAssignment:
        """It gives way to the engine on its GPU; where there are several, all have the same priority."""
        return replace(assignment, goes_first=self.placement.several_engines(assignment.sees))
