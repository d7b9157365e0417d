"""Starts the engines and the trainer of a run as processes, each with its settings from the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex

from freerun.config.tree import RunConfig
from freerun.control.waiting import together
from freerun.machine.machines import LOCAL, LOOPBACK
from freerun.machine.processes import Processes
from freerun.plan.placement import RunKind
from freerun.plan.plan import GpuAssignment, Plan
from freerun.run.child import RUN_KEY, EngineSettings, TrainerSettings
from freerun.weights.way import WeightsWay, choose_way


@dataclass(frozen=True)
class Starter:
    config: RunConfig
    plan: Plan
    processes: Processes
    environments: Mapping[str, dict[str, str]]
    """By the names of processes."""
    scratch: Path
    key: str = field(default_factory=token_hex)
    """This run's processes answer whoever has it, and nobody else."""

    async def engine(self, assignment: GpuAssignment) -> str:
        """Returns where it can be reached."""
        name, engine = assignment.process, self.plan.engine_settings(assignment)
        settings = EngineSettings(self.config.model.path, engine.plain(), LOOPBACK, str(self.scratch))
        return await self.processes.start(name, "engine", settings, self.plan.threads, self._environment(name))

    async def trainer(self, checkpoint: Path | None) -> str:
        """All ranks, at the same time: each waits for the others. Returns where the first can be reached. Supervised
        training is at temperature 1: nothing in it is sampled."""
        config, plan = self.config, self.plan
        first = TrainerSettings(
            config.model.path,
            plan.train.plain(),
            1.0 if plan.kind is RunKind.SFT else config.rollout.temperature,
            config.seed,
            plan.lengths.answer,
            f"ipc://{self.scratch}/trainer",
            LOOPBACK,
            str(self.scratch),
            self._way,
            str(checkpoint) if checkpoint else None,
            rendezvous=f"file://{self.scratch}/ranks",
        )
        endpoint, *_ = await together(*(self._rank(first, rank, one) for rank, one in enumerate(plan.ranks)))
        return endpoint

    @property
    def _way(self) -> WeightsWay:
        """How versions get from the trainer to the engines."""
        plan, here = self.plan, [LOCAL]
        return choose_way(self.config.weights, here * len(plan.ranks), here, plan.train.device, plan.engine.dtype)

    async def _rank(self, first: TrainerSettings, rank: int, assignment: GpuAssignment) -> str:
        name, threads = assignment.process, self.plan.threads
        settings = replace(first, rank=rank, memory_share=assignment.memory_share)
        return await self.processes.start(name, "trainer", settings, threads, self._environment(name))

    def _environment(self, name: str) -> dict[str, str]:
        return {**self.environments[name], RUN_KEY: self.key}
