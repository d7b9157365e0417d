"""Starts the engines and the trainer of a run as processes, each with its settings from the plan, on its machine."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from freerun.config.tree import RunConfig
from freerun.control.waiting import together
from freerun.core import ConfigError, RewardError
from freerun.core.resolve import IMPORT_PATH, import_path
from freerun.machine.machines import LOCAL
from freerun.machine.parent import RUN_KEY
from freerun.machine.processes import Child, Host, Processes
from freerun.plan.placement import RunKind
from freerun.plan.plan import Assignment, Plan
from freerun.plan.readers import TEACHER
from freerun.rewards.machines.server import JudgeSettings
from freerun.rewards.pools import PoolSettings
from freerun.run.child import EngineSettings, TeacherSettings, TrainerSettings
from freerun.run.hosts import Hosts
from freerun.train.how_sampled import ALL, HowSampled
from freerun.train.remote import RemoteTrainer


@dataclass(frozen=True)
class StartedEngine:
    child: Child
    host: Host
    url: str


@dataclass(frozen=True)
class StartedTrainer:
    remote: RemoteTrainer
    """Not entered yet."""
    ranks: list[Child]

    async def end(self) -> None:
        """All that is left of it."""
        await asyncio.gather(*(rank.end() for rank in self.ranks))


@dataclass(frozen=True)
class Starter:
    config: RunConfig
    plan: Plan
    processes: Processes
    environments: Mapping[str, dict[str, str]]
    """By the names of processes."""
    hosts: Hosts
    model: Path | None = None
    """The folder of the model's files; None: it is the configuration's."""

    @property
    def key(self) -> str:
        """This run's processes answer whoever has it, and nobody else."""
        return self.hosts.key

    async def engine(self, assignment: Assignment) -> StartedEngine:
        """As soon as its machine is there; returns when it can be reached. A run that trains by reinforcement starts it
        again when it ends, which is the caller's to see to; any other cannot go on without it."""
        name, engine = assignment.process, self.plan.engine_settings(assignment)
        if assignment.url:
            engine = engine.model_copy(update={"urls": (assignment.url,)})
        host = await self.hosts.host(assignment.machine)
        settings = EngineSettings(
            *(self._model, engine.plain(), host.machine.address, host.scratch, self.config.model.code),
            adapter=self.plan.adapter,
            base=assignment.base,
        )
        vital = self.plan.kind is not RunKind.TRAIN
        child = await self.processes.begin(
            name, "engine", settings, self.plan.threads, self._environment(name, host), host, vital=vital
        )
        try:
            return StartedEngine(child, host, await _ready(child, host))
        except BaseException:  # nobody wants it any more, or it is ending already
            await child.end()
            raise

    async def trainer(self, checkpoint: Path | None) -> StartedTrainer:
        """All ranks, at the same time: each waits for the others. Returns when the first can be reached; failed or
        cancelled, nothing is left. When a rank ends, it is the caller's to see to it. Supervised training is at
        temperature 1: nothing in it is sampled."""
        config, plan = self.config, self.plan
        assert plan.way is not None, "a run that trains has one"
        hosts = [await self.hosts.host(one.machine) for one in plan.ranks]
        first = TrainerSettings(
            self._model,
            plan.train.plain(),
            1.0 if plan.kind.supervised else config.rollout.temperature,
            config.seed,
            plan.lengths.answer,
            f"tcp://{hosts[0].machine.address}:*" if self.hosts.apart else f"ipc://{self.hosts.scratch}/trainer",
            hosts[0].machine.address,
            hosts[0].scratch,
            plan.way,
            ALL if plan.kind.supervised else _how_sampled(config),
            str(checkpoint.absolute()) if checkpoint else None,
            self.config.model.code,
            rendezvous=await self._rendezvous(hosts),
        )
        begun: list[Child] = []
        starting = (self._rank(first, rank, one, hosts[rank], begun) for rank, one in enumerate(plan.ranks))
        try:
            endpoint, *_ = await together(*starting)
        except BaseException:
            await asyncio.gather(*(child.end() for child in begun))
            raise
        return StartedTrainer(RemoteTrainer(endpoint, self.key, hosts[0].clock), begun)

    async def reward_model(self, name: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
        """The same for a reward model, where the plan has it."""
        (one,) = (one for one in self.plan.readers if one.process == name)
        host = await self.hosts.host(one.machine)
        settings = JudgeSettings(host.machine.address, pools, one.memory_share)
        environment = self._environment(name, host)
        child = await self.processes.begin(name, "judge", settings, self.plan.threads, environment, host, vital=False)
        return child, await _ready(child, host)

    async def teacher(self, folder: Path) -> tuple[Child, str]:
        """The same for the teacher, whose model is in that folder."""
        (one,) = (one for one in self.plan.readers if one.process == TEACHER)
        host = await self.hosts.host(one.machine)
        settings = TeacherSettings(str(folder.absolute()), host.machine.address, one.memory_share)
        environment, threads = self._environment(TEACHER, host), self.plan.threads
        child = await self.processes.begin(TEACHER, "teacher", settings, threads, environment, host, vital=False)
        return child, await _ready(child, host)

    async def judge(self, name: str, machine: str, pools: dict[int, PoolSettings]) -> tuple[Child, str]:
        """As soon as its machine is there; returns when every worker is ready. It is the caller's to see to it when it
        ends. It looks for modules where this process does."""
        host = await self.hosts.host(machine)
        settings = JudgeSettings(host.machine.address, pools)
        environment = {IMPORT_PATH: f"{import_path()}{os.pathsep}{Path.cwd()}"} | self._key_on(host)
        child = await self.processes.begin(name, "judge", settings, 1, environment, host, vital=False, light=True)
        return child, await _ready(child, host)

    async def _rendezvous(self, hosts: list[Host]) -> str:
        if self.hosts.apart:
            return f"tcp://{hosts[0].machine.address}:{await hosts[0].free_port()}"
        meeting = self.hosts.scratch / "ranks"
        meeting.unlink(missing_ok=True)  # of a trainer that died
        return f"file://{meeting}"

    async def _rank(
        self, first: TrainerSettings, rank: int, assignment: Assignment, host: Host, begun: list[Child]
    ) -> str:
        name, threads = assignment.process, self.plan.threads
        settings = replace(
            first,
            rank=rank,
            host=host.machine.address,
            scratch=host.scratch,
            machine=host.machine.name,
            memory_share=assignment.memory_share,
            base=assignment.base,
        )
        environment = self._environment(name, host)
        child = await self.processes.begin(name, "trainer", settings, threads, environment, host, vital=False)
        begun.append(child)
        return await _ready(child, host)

    @property
    def _model(self) -> str:
        """On other machines there is another working folder."""
        return str((self.model or Path(self.config.model.path)).absolute())

    def _environment(self, name: str, host: Host) -> dict[str, str]:
        return self.environments[name] | self._key_on(host)

    def _key_on(self, host: Host) -> dict[str, str]:
        """Nodes work the key out themselves."""
        return {RUN_KEY: self.key} if host.machine.name == LOCAL else {}


async def _ready(child: Child, host: Host) -> str:
    """Where it can be reached. A refusal on another machine says on which."""
    try:
        return await child.ready()
    except (ConfigError, RewardError) as error:
        if host.machine.name == LOCAL:
            raise
        raise type(error)(f"on machine {host.machine.name}: {error.message}", error.detail) from None


def _how_sampled(config: RunConfig) -> HowSampled:
    return HowSampled(config.rollout.top_k, config.rollout.top_p, config.engine.on_update in ("keep", "auto"))
