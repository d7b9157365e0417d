"""How many processes judge answers, and on which machines."""

from collections.abc import Sequence
from dataclasses import dataclass

from freerun.config.tree import RunConfig
from freerun.machine.host import processors
from freerun.machine.machines import LOCAL, Machine
from freerun.rewards.config import RewardConfig


@dataclass(frozen=True)
class Judging:
    reward: RewardConfig
    """The settings, with the number of workers, over all machines, filled in."""
    workers: dict[str, int]
    """How many of them each machine has, by its name; empty where all are beside the controller."""


def plan_judging(config: RunConfig, machines: list[Machine], busy: Sequence[str], training: Sequence[str]) -> Judging:
    """Workers get the processors that other processes leave: of the controller's machine, or of those machines that do
    not train, where there are any. `busy` has the machine of every engine and rank."""
    threads = config.resources.threads
    if config.reward.where == "controller":
        own = _controllers(config, machines)
        cores, here = (own.processors, busy.count(own.name)) if own else (processors(), 0)
        return Judging(config.reward.beside(here * threads + 1, cores), {})
    free = [machine for machine in machines if machine.name not in training] or machines
    spare = {one.name: _workers(config.reward, one.processors, busy.count(one.name) * threads) for one in free}
    if (told := config.reward.workers) is not None:
        names = list(spare)
        spare = {name: told // len(names) + (index < told % len(names)) for index, name in enumerate(names)}
        spare = {name: count for name, count in spare.items() if count}
    return Judging(config.reward.model_copy(update={"workers": sum(spare.values())}), spare)


def _workers(reward: RewardConfig, cores: int, busy_threads: int) -> int:
    return reward.model_copy(update={"workers": None}).beside(busy_threads, cores).processes


def _controllers(config: RunConfig, machines: list[Machine]) -> Machine | None:
    """The controller's machine, if the run's processes are on it too."""
    if config.launcher == "local":
        return machines[0]
    return next((machine for machine in machines if machine.name == LOCAL), None)
