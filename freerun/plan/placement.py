"""Which machine each process of a run is on, and which GPUs it has there, if any.

Three quarters of what there is generate, as in the paper, and the rest trains: machines where there are several, else
GPUs; one GPU alone is shared. `resources`, `train.ranks` and `engine.tensor_parallel` say otherwise.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import combinations

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.machine.gpus import Gpu
from freerun.machine.machines import LOCAL, Machine
from freerun.plan.gpu_numbers import EngineGpus, GpuNumbers, TrainerGpus


class RunKind(Enum):
    """What a run does."""

    TRAIN = "train"
    """Engines generate, and the trainer learns from rewards."""
    SFT = "sft"
    """The trainer learns from given answers; the only engine is the evaluator, if there is one."""
    DPO = "dpo"
    """The trainer learns from pairs of a better and a worse answer; there is no engine."""
    EVALUATE = "eval"
    """One engine generates; there is no trainer."""

    @property
    def trains(self) -> bool:
        return self is not RunKind.EVALUATE

    @property
    def supervised(self) -> bool:
        """Whether the trainer learns from given answers."""
        return self in (RunKind.SFT, RunKind.DPO)


@dataclass(frozen=True)
class Place:
    """Where one process runs."""

    machine: str
    gpus: tuple[int, ...] = ()
    """Its GPUs, numbered through all machines in their order; none on a CPU."""


@dataclass(frozen=True)
class Placement:
    machines: list[Machine]
    engines: list[Place]
    ranks: list[Place]
    """The trainer's, those of a machine beside each other."""
    evaluator: Place | None
    """The same as the first engine's."""
    readers: list[Place] = field(default_factory=list)
    """Where the models run that only read: reward models, a teacher."""

    @cached_property
    def gpus(self) -> list[Gpu]:
        """All of them, in the order of the machines."""
        return [gpu for machine in self.machines for gpu in machine.gpus]

    @cached_property
    def machine_of(self) -> list[Machine]:
        """The machine that each GPU is in."""
        return [machine for machine in self.machines for _ in machine.gpus]

    @property
    def generating(self) -> list[Place]:
        """The engines and the evaluator."""
        return [*self.engines, *([self.evaluator] if self.evaluator else [])]

    @property
    def training(self) -> list[str]:
        """The names of the machines that ranks are on."""
        return list(dict.fromkeys(rank.machine for rank in self.ranks))

    @property
    def shared(self) -> bool:
        """Whether processes of two kinds share a GPU: generation, training, models that only read."""
        kinds = (self.generating, self.ranks, self.readers)
        used = [{gpu for place in places for gpu in place.gpus} for places in kinds]
        return any(one & other for one, other in combinations(used, 2))

    def engine_sees(self, place: Place) -> list[int]:
        """Its own GPUs first; then the one that weights come from by CUDA IPC: that of a trainer with one rank, on the
        same machine. Several ranks publish another way."""
        alone = self.ranks[0] if len(self.ranks) == 1 else None
        source = alone.gpus if alone and place.gpus and alone.machine == place.machine else ()
        return list(dict.fromkeys((*place.gpus, *source)))

    def several_engines(self, sees: list[int]) -> bool:
        """Whether a process that sees those shares its own, the first, with more than one engine. Then no process on
        that GPU goes first: if several engines did, hardly anything would be left for the trainer."""
        return sum(sees[0] in place.gpus for place in self.engines) > 1 if sees else False

    def environment(self, sees: list[int]) -> dict[str, str]:
        """What makes a process see just those, in that order; nothing, where its machine has only one GPU."""
        if not sees or len(self.machine_of[sees[0]].gpus) < 2:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[place].uuid for place in sees)}


def place(
    config: RunConfig, machines: list[Machine], kind: RunKind = RunKind.TRAIN, evaluates: bool = False
) -> Placement:
    """As `resources` says, or as the top of this file does. `evaluates`: whether there is an evaluator; supervised
    training leaves it a GPU or a machine of its own, where there are two."""
    if len(machines) < config.resources.machines:
        raise ConfigError(
            f"resources.machines is {config.resources.machines}, but there are {len(machines)}: join more, or lower it"
        )
    numbers = GpuNumbers.of(machines, config.resources)
    on = _on_gpus(config, numbers, kind, evaluates) if numbers.usable else _on_cpus(config, machines, kind, evaluates)
    generating, ranks = on
    if config.engine.urls and not kind.supervised:  # they run already: what drives them is beside the controller
        generating = [Place(LOCAL)]
    count = _num_engines(config, kind, len(generating), evaluates)
    engines = [generating[index % len(generating)] for index in range(count)]
    _check_ranks(config, ranks)
    return Placement(machines, engines, ranks, generating[0] if evaluates else None)


def _num_engines(config: RunConfig, kind: RunKind, places: int, evaluates: bool) -> int:
    if kind is not RunKind.TRAIN:
        return int(kind is RunKind.EVALUATE)
    if not (urls := len(config.engine.urls)):
        return config.resources.engines or places
    if evaluates and urls == 1:
        raise ConfigError("the evaluator needs an engine of its own: add a URL to engine.urls, or unset evaluate.every")
    return urls - evaluates


def _on_gpus(config: RunConfig, numbers: GpuNumbers, kind: RunKind, evaluates: bool) -> tuple[list[Place], list[Place]]:
    """Where engines can be, and where the ranks are."""
    tensor_parallel = 1 if config.engine.urls else config.engine.tensor_parallel
    trainer: tuple[int, ...] = ()
    generates = not config.engine.urls and (not kind.supervised or evaluates)
    if kind.trains:
        fewest = tensor_parallel if generates else 0
        trainer = TrainerGpus(config, numbers, fewest, shares=kind is RunKind.TRAIN).chosen()
    engine = EngineGpus(config, numbers, trainer).chosen()
    groups = numbers.groups(engine, tensor_parallel)
    if not groups and generates:
        raise ConfigError(
            f"engine.tensor_parallel is {tensor_parallel}, but no machine has so many GPUs for engines: lower it, or "
            "give engines more by resources.engine_gpus"
        )
    names = numbers.machine_names
    engines = [Place(names[group[0]], group) for group in groups or [engine[:1]]]
    return engines, [Place(names[gpu], (gpu,)) for gpu in trainer]


def _on_cpus(
    config: RunConfig, machines: Sequence[Machine], kind: RunKind, evaluates: bool
) -> tuple[list[Place], list[Place]]:
    """One engine or rank a machine, more ranks where several share each sequence: the last quarter of the machines
    trains, or as many as there are to be ranks."""
    names, ranks, together = [machine.name for machine in machines], config.train.ranks, config.train.context_parallel
    if not kind.trains:
        return [Place(name) for name in names], []
    if len(names) == 1:
        return [Place(names[0])], [Place(names[0])] * (ranks or together)
    alone = kind.supervised and not evaluates
    most = len(names) if alone or config.engine.urls else len(names) - 1
    quarter = most if kind.supervised or config.engine.urls else max(1, len(names) // 4)
    training = names[-min(ranks or quarter, most) :]
    count = ranks or -(-len(training) // together) * together
    generating = [name for name in names if name not in training] or names
    return (
        [Place(name) for name in generating],
        [Place(training[rank * len(training) // count]) for rank in range(count)],
    )


def _check_ranks(config: RunConfig, ranks: list[Place]) -> None:
    """Refuse numbers of ranks that cannot share the work out evenly."""
    together = config.train.context_parallel
    if ranks and len(ranks) % together:
        raise ConfigError(
            f"the trainer has {len(ranks)} rank(s), which is no multiple of train.context_parallel={together}: set "
            f"train.ranks={(len(ranks) // together or 1) * together}, or lower train.context_parallel"
        )
    by_machine = Counter(rank.machine for rank in ranks).values()
    if config.train.shard == "machine" and len(set(by_machine)) > 1:
        raise ConfigError(
            f"train.shard is machine, but one machine of the trainer has {min(by_machine)} ranks and another "
            f"{max(by_machine)}: name the same number of GPUs of each in resources.trainer_gpus, or set train.shard=all"
        )


EVALUATOR = "evaluator"
"""The name of the engine process that evaluates."""


def engine_name(index: int) -> str:
    return f"engine {index}"


def rank_name(rank: int) -> str:
    """The name of a trainer's process."""
    return f"trainer {rank}" if rank else "trainer"
