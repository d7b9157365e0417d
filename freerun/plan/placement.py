"""Which GPU each process of a run has, if any."""

from dataclasses import dataclass
from enum import Enum

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.machine.gpus import Gpu


class RunKind(Enum):
    """What a run does."""

    TRAIN = "train"
    """Engines generate, and the trainer learns from rewards."""
    SFT = "sft"
    """The trainer learns from given answers; the only engine is the evaluator, if there is one."""
    EVALUATE = "eval"
    """One engine generates; there is no trainer."""

    @property
    def trains(self) -> bool:
        return self is not RunKind.EVALUATE


@dataclass(frozen=True)
class Placement:
    """Indices in `gpus`; None is the CPU."""

    gpus: list[Gpu]
    engines: list[int | None]
    ranks: list[int | None]
    """The trainer's."""
    evaluator: int | None
    """The same as the first engine's."""

    @property
    def shared(self) -> bool:
        """Whether generation and training share a GPU."""
        return any(gpu is not None and gpu in self.ranks for gpu in (*self.engines, self.evaluator))

    def engine_sees(self, gpu: int | None) -> list[int]:
        """Its own GPU first; then the one that weights come from, if that is another."""
        first = self.ranks[0] if self.ranks else None
        return [] if gpu is None else list(dict.fromkeys(place for place in (gpu, first) if place is not None))

    def several_engines(self, sees: list[int]) -> bool:
        """Whether a process that sees those shares its own, the first, with more than one engine. Then no process on
        that GPU goes first: if several engines did, hardly anything would be left for the trainer."""
        return self.engines.count(sees[0]) > 1 if sees else False

    def environment(self, sees: list[int]) -> dict[str, str]:
        """What makes a process see just those, in that order; nothing, where there is only one GPU."""
        if len(self.gpus) < 2 or not sees:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[place].uuid for place in sees)}


def place(config: RunConfig, gpus: list[Gpu], kind: RunKind = RunKind.TRAIN) -> Placement:
    """As `resources` says. Where it says nothing, trainer ranks take the last GPUs and engines the others; when none is
    left, all of them share."""
    resources, num_ranks = config.resources, config.train.ranks if kind.trains else 0
    everywhere = tuple(range(len(gpus)))
    trainer = (resources.trainer_gpus or everywhere[-num_ranks:]) if num_ranks else ()
    engine = resources.engine_gpus or tuple(gpu for gpu in everywhere if gpu not in trainer) or everywhere
    for key, named in (("trainer_gpus", trainer), ("engine_gpus", engine)):
        if unknown := [gpu for gpu in named if gpu not in everywhere]:
            raise ConfigError(f"resources.{key} names GPU {unknown[0]}, but there are {len(gpus)} here, from 0 on")
    if trainer and len(set(trainer)) < num_ranks:
        raise ConfigError(f"train.ranks is {num_ranks}, but the trainer has {len(set(trainer))} GPU(s): one a rank")
    count = {RunKind.TRAIN: resources.engines or max(len(engine), 1), RunKind.SFT: 0, RunKind.EVALUATE: 1}[kind]
    engines = [engine[i % len(engine)] if engine else None for i in range(count)]
    return Placement(gpus, engines, list(trainer[:num_ranks]) or [None] * num_ranks, engine[0] if engine else None)


EVALUATOR = "evaluator"
"""The name of the engine process that evaluates."""


def engine_name(index: int) -> str:
    return f"engine {index}"


def rank_name(rank: int) -> str:
    """The name of a trainer's process."""
    return f"trainer {rank}" if rank else "trainer"
