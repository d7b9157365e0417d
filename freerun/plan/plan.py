"""A run's configuration and its machines, worked out into who runs where, with how much, and with which settings.

Everything is decided here once, before a process starts, and handed on: processes get settings without anything left
to work out. What cannot fit is a ConfigError. What is left to the processes is what only they can see, how much of
their GPU's memory is really free: see `memory.py`. No torch.
"""

from collections import Counter
from dataclasses import dataclass, replace

from freerun.config.tree import ResourcesConfig, RunConfig
from freerun.core import ConfigError
from freerun.engines.config import ResolvedEngineConfig
from freerun.machine.device import Device, any_gpu, choose_device
from freerun.machine.machines import LOCAL, Machine, this_machine
from freerun.models.shape import AdapterShape, Shape, refuse_fp8
from freerun.plan.gpu_numbers import GpuNumbers
from freerun.plan.judging import Judging, plan_judging
from freerun.plan.lengths import Lengths, check_lengths
from freerun.plan.memory import Demand, MemoryPlan, plan_memory, with_readers
from freerun.plan.placement import EVALUATOR, Place, Placement, RunKind, engine_name, place, rank_name
from freerun.plan.readers import readers_of
from freerun.plan.update import adapter_of, base_of, lending_gpus, plan_way
from freerun.rewards.config import RewardConfig
from freerun.train.config import ResolvedTrainConfig
from freerun.train.needs import refuse_uneven_heads
from freerun.weights.way import Base, WeightsWay

_SMALL_GIB = 32
"""GPUs with less are small."""
_LARGE = 10_000_000_000
"""Models of so many parameters are large: to read 8,192 tokens takes one of 32 billion more than a second."""


@dataclass(frozen=True)
class Assignment:
    """Where one process runs, and what it gets of that machine's GPUs."""

    process: str
    """Its name."""
    machine: str
    """The name of its machine."""
    sees: list[int]
    """GPUs, numbered through all machines, its own first; none on a CPU."""
    goes_first: bool
    """Whether its work has priority on a GPU that it shares."""
    memory_share: float | None
    """How much of its GPU's memory it may take; None without a GPU, or where that is not divided."""
    base: Base = "own"
    url: str | None = None
    """Where the engine runs already, for one that the run does not start."""


@dataclass(frozen=True)
class Plan:
    kind: RunKind
    lengths: Lengths
    engine: ResolvedEngineConfig
    """The settings of every engine, but for its share of memory."""
    train: ResolvedTrainConfig
    threads: int
    """CPU threads of each engine and each rank."""
    judging: Judging
    placement: Placement
    memory: MemoryPlan
    engines: list[Assignment]
    ranks: list[Assignment]
    evaluator: Assignment | None
    readers: list[Assignment]
    """Models that only read: reward models."""
    demand: Demand
    """What its memory follows from."""
    way: WeightsWay | None
    """How new weights get to the engines; None without a trainer."""
    adapter: AdapterShape | None = None
    """What versions are of, where that is all that is trained and the engines compute with it."""

    @property
    def reward(self) -> RewardConfig:
        """The rewards' settings, with the number of workers filled in."""
        return self.judging.reward

    @property
    def everyone(self) -> list[Assignment]:
        """Engines, ranks, the evaluator, models that only read."""
        return [*self.engines, *self.ranks, *([self.evaluator] if self.evaluator else []), *self.readers]

    def engine_settings(self, assignment: Assignment) -> ResolvedEngineConfig:
        if assignment.memory_share is None:
            return self.engine
        in_place = tuple(assignment.sees) == self.demand.in_place  # it sees more GPUs where they come from another
        return self.engine.model_copy(update={"memory_share": assignment.memory_share, "fetched_in_place": in_place})


def make_plan(
    config: RunConfig,
    shape: Shape,
    lengths: Lengths,
    kind: RunKind = RunKind.TRAIN,
    evaluated: int = 0,
    machines: list[Machine] | None = None,
) -> Plan:
    """`evaluated` is how many answers the evaluator is asked for at a time, 0 for a run without one; `machines` are
    this one alone unless given."""
    there = [this_machine()] if machines is None else machines
    device = choose_device(_have_gpu(there))
    placement = place(config, there, kind, evaluates=bool(evaluated))
    engine = _engine_on(config, shape, device, placement)
    if engine.weights == "fp8":
        refuse_fp8(shape)
    train = config.train.on(device, shape.num_parameters, ranks=len(placement.ranks))
    refuse_uneven_heads(shape, train.context_parallel)
    if not kind.supervised:
        check_lengths(lengths, shape, engine)
    if kind.trains:
        refuse_uneven_heads(shape, train.context_parallel)
    way = plan_way(config, placement, engine, train.device) if kind.trains else None
    on_gpu = way is not None and way.name == "ipc"
    adapter = adapter_of(config, placement, engine) if way is not None else None
    lending = lending_gpus(way, shape, placement, engine, train)
    readers = readers_of(config, kind, bool(evaluated), shape)
    demand = Demand(
        *(shape, lengths, engine, train, evaluated, config.engine.memory_share, on_gpu),
        adapter=adapter,
        lending=lending,
        in_place=placement.ranks[0].gpus if on_gpu and train.dtype == engine.dtype else (),
        cap=None if config.resources.gpu_memory is None else int(config.resources.gpu_memory * 2**30),
        readers=readers,
    )
    placement = with_readers(demand, placement, GpuNumbers.of(there, config.resources).usable)
    memory = plan_memory(demand, placement)
    assignments = _Assignments(placement, memory, demand, way)
    urls = config.engine.urls or [None] * (len(placement.engines) + 1)
    engines = [assignments.engine(engine_name(i), at, urls[i]) for i, at in enumerate(placement.engines)]
    ranks = [assignments.rank(rank, at) for rank, at in enumerate(placement.ranks)]
    at = placement.evaluator
    evaluator = assignments.beside_engines(assignments.engine(EVALUATOR, at, urls[-1])) if at else None
    busy = [at.machine for at in (*placement.generating, *placement.ranks)]
    judging = plan_judging(config, there, busy, [rank.machine for rank in ranks])
    threads = config.resources.threads
    reading = [assignments.reader(one.name, at) for one, at in zip(readers, placement.readers, strict=True)]
    return Plan(
        *(kind, lengths, engine, train, threads, judging, placement, memory),
        *(engines, ranks, evaluator, reading, demand, way),
        adapter=adapter,
    )


def _engine_on(config: RunConfig, shape: Shape, device: Device, placement: Placement) -> ResolvedEngineConfig:
    """On small GPUs, or where little is to be taken, steps read fewer tokens, so that more is left for the cache; and
    of large models, since new weights wait for a step to end."""
    cap = config.resources.gpu_memory or float("inf")
    room = min((min(gpu.total / 2**30, cap) for gpu in placement.gpus), default=float("inf"))
    small, large = room < _SMALL_GIB, shape.num_parameters >= _LARGE
    short = 2_048 if device == "cuda" and (small or large) else None
    engine = config.engine.on(device, step_tokens=short)
    spare = min(engine.spare_bytes, int(room * 2**30) // 16) if small else engine.spare_bytes
    adapter = AdapterShape(config.train.lora.rank, 0.0, config.train.lora.bits)
    spare += adapter.widened_bytes(shape, 4 if engine.dtype == "float32" else 2)
    return engine.model_copy(update={"spare_bytes": spare})


def joined_by(plan: Plan, machine: Machine) -> Plan:
    """The plan of a run that goes on when one more machine has joined it: there it has engines, after those that there
    are, whose numbers and GPUs stay as they were. A machine without GPUs is of no use to a run on GPUs."""
    before = plan.placement
    first = len(before.gpus)
    together = replace(before, machines=[*before.machines, machine])
    if plan.engine.device == "cpu":
        added = [Place(machine.name)]
    else:
        numbers, parallel = range(first, first + len(machine.gpus)), plan.engine.tensor_parallel
        groups = zip(*[iter(numbers)] * parallel, strict=False)  # what is left over makes no engine
        added = [Place(machine.name, group) for group in groups]
    return _with_engines(plan, together, added)


def one_more(plan: Plan, resources: ResourcesConfig) -> Plan:
    """The plan of a run that goes on when it is to have one more engine, after those that there are, whose memory stays
    as it was: on GPUs that nobody has; or, without GPUs, on the machine of engines that has the fewest."""
    before = plan.placement
    if plan.engine.device == "cpu":
        machines = Counter(at.machine for at in before.engines)
        return _with_engines(plan, before, [Place(min(machines, key=machines.__getitem__))])
    numbers = GpuNumbers.of(before.machines, resources)
    taken = {gpu for at in (*before.generating, *before.ranks) for gpu in at.gpus}
    free = [gpu for gpu in resources.engine_gpus or numbers.usable if gpu not in taken]
    if not (groups := numbers.groups(free, plan.engine.tensor_parallel)):
        count = len(plan.engines)
        raise ConfigError(
            f"resources.engines is more than {count}, and there are no GPUs for one more: all that there are have an "
            f"engine or train; the run goes on with {count}, and more can share GPUs once it is resumed"
        )
    return _with_engines(plan, before, [Place(numbers.machine_names[groups[0][0]], groups[0])])


def _with_engines(plan: Plan, placement: Placement, added: list[Place]) -> Plan:
    placement = replace(placement, engines=[*placement.engines, *added])
    memory = plan_memory(plan.demand, placement)
    assignments, number = _Assignments(placement, memory, plan.demand, plan.way), len(plan.engines)
    engines = [assignments.engine(engine_name(number + i), at, None) for i, at in enumerate(added)]
    return replace(plan, placement=placement, memory=memory, engines=[*plan.engines, *engines])


def _have_gpu(machines: list[Machine]) -> bool:
    """This machine may have one whose memory the driver does not tell, so that it is not listed."""
    return any(machine.gpus for machine in machines) or (any(one.name == LOCAL for one in machines) and any_gpu())


@dataclass(frozen=True)
class _Assignments:
    placement: Placement
    memory: MemoryPlan
    demand: Demand
    way: WeightsWay | None

    def engine(self, name: str, at: Place, url: str | None) -> Assignment:
        sees, share = self.placement.engine_sees(at), self.memory.share(name)
        return Assignment(name, at.machine, sees, True, share, self._base(at), url)

    def reader(self, name: str, at: Place) -> Assignment:
        return Assignment(name, at.machine, list(at.gpus), False, self.memory.share(name))

    def rank(self, rank: int, at: Place) -> Assignment:
        name = rank_name(rank)
        base = self._base(at) if len(self.placement.ranks) == 1 else "own"
        return self.beside_engines(Assignment(name, at.machine, list(at.gpus), False, self.memory.share(name), base))

    def _base(self, at: Place) -> Base:
        """On a GPU that is not listed, and so not to be divided, everybody has all of it."""
        if self.demand.engine.device == "cuda" and not at.gpus:
            return "own"
        return base_of(at.gpus, self.demand.lending, self.way, self.demand.shape)

    def beside_engines(self, assignment: Assignment) -> Assignment:
        """It gives way to the engine on its GPU; where there are several, all have the same priority."""
        return replace(assignment, goes_first=self.placement.several_engines(assignment.sees))
