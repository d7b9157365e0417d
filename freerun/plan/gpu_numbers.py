"""The GPUs of all machines under one numbering, and which of them train and which generate."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from freerun.config.tree import ResourcesConfig, RunConfig
from freerun.core import ConfigError
from freerun.machine.machines import Machine


@dataclass(frozen=True)
class GpuNumbers:
    """GPUs are numbered from 0 through all machines in their order."""

    machine_names: list[str]
    """The machine that each GPU is in."""
    usable: tuple[int, ...]
    """Those that the run may use: the first `resources.gpus`."""

    @classmethod
    def of(cls, machines: Sequence[Machine], resources: ResourcesConfig) -> "GpuNumbers":
        names = [machine.name for machine in machines for _ in machine.gpus]
        if resources.gpus and resources.gpus > len(names):
            where = f"on {len(machines)} machines" if len(machines) > 1 else "here"
            raise ConfigError(
                f"resources.gpus is {resources.gpus}, but there are {len(names)} GPUs {where}: lower or unset it"
            )
        return cls(names, tuple(range(resources.gpus or len(names))))

    def check(self, key: str, named: Sequence[int]) -> None:
        if unknown := [gpu for gpu in named if gpu not in self.usable]:
            raise ConfigError(
                f"resources.{key} names GPU {unknown[0]}, but there are {len(self.usable)} to use, from 0 on"
            )

    @cached_property
    def by_machine(self) -> list[tuple[int, ...]]:
        """The usable ones of each machine that has any."""
        return self.groups(self.usable, None)

    def groups(self, gpus: Sequence[int], size: int | None) -> list[tuple[int, ...]]:
        """Those GPUs in groups of that size, each in one machine; without a size, all that a machine has of them. A
        machine's rest that makes no group is left out."""
        found: list[tuple[int, ...]] = []
        for name in dict.fromkeys(self.machine_names[gpu] for gpu in gpus):
            here = [gpu for gpu in gpus if self.machine_names[gpu] == name]
            step = size or len(here)
            found += [tuple(here[i : i + step]) for i in range(0, len(here) - step + 1, step)]
        return found


@dataclass(frozen=True)
class TrainerGpus:
    config: RunConfig
    numbers: GpuNumbers
    generates: int
    """The fewest GPUs that generation needs; 0 where nothing generates here."""
    shares: bool
    """Whether three quarters generate; else all that `generates` leaves trains."""

    def chosen(self) -> tuple[int, ...]:
        """One for each rank."""
        named, ranks = self.config.resources.trainer_gpus, self.config.train.ranks
        self.numbers.check("trainer_gpus", named)
        trainer = named or (self._last(ranks) if ranks else self._by_default())
        if len(set(trainer)) < (ranks or len(trainer)):
            wanted = ranks or len(trainer)
            raise ConfigError(f"train.ranks is {wanted}, but the trainer has {len(set(trainer))} GPU(s): one a rank")
        return trainer[:ranks]

    def _last(self, count: int) -> tuple[int, ...]:
        """The last ones: of as few machines as hold so many, and equally many of each where that is possible."""
        machines: list[tuple[int, ...]] = []
        for gpus in reversed(self.numbers.by_machine):
            machines.insert(0, gpus)
            if sum(map(len, machines)) >= count:
                break
        each, rest = divmod(count, len(machines))
        if not rest and all(len(gpus) >= each for gpus in machines):
            return tuple(gpu for gpus in machines for gpu in gpus[-each:])
        return tuple(gpu for gpus in machines for gpu in gpus)[-count:]

    def _by_default(self) -> tuple[int, ...]:
        usable, machines = self.numbers.usable, self.numbers.by_machine
        if left := self._left_by_engines():
            return left
        if len(machines) > 1:
            quarter = max(1, len(machines) // 4) if self.shares and self.generates else len(machines)
            if not self.shares and self.generates:
                quarter -= 1
            return tuple(gpu for gpus in machines[-quarter:] for gpu in gpus)
        if not self.generates or len(usable) == 1:
            return usable
        most = 3 * len(usable) // 4 if self.shares else 1
        engines = max(most // self.generates, 1) * self.generates
        if engines >= len(usable):
            raise ConfigError(
                f"engine.tensor_parallel is {self.generates}, which leaves the trainer none of {len(usable)} GPU(s): "
                "lower it, or let them share by resources.trainer_gpus"
            )
        return usable[engines:]

    def _left_by_engines(self) -> tuple[int, ...]:
        """What `resources.engine_gpus` leaves; nothing where it says nothing."""
        engine = self.config.resources.engine_gpus
        return tuple(gpu for gpu in self.numbers.usable if gpu not in engine) if engine else ()


@dataclass(frozen=True)
class EngineGpus:
    config: RunConfig
    numbers: GpuNumbers
    trainer: tuple[int, ...]

    def chosen(self) -> tuple[int, ...]:
        """As told; else those of the machines that do not train, else those that do not train, else all."""
        named = self.config.resources.engine_gpus
        self.numbers.check("engine_gpus", named)
        names, usable = self.numbers.machine_names, self.numbers.usable
        training = {names[gpu] for gpu in self.trainer}
        elsewhere = tuple(gpu for gpu in usable if names[gpu] not in training)
        return named or elsewhere or tuple(gpu for gpu in usable if gpu not in self.trainer) or usable
