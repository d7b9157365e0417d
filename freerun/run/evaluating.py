"""Evaluation: beside a run, by an engine of its own, and `freerun eval`."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from freerun.control.evaluate import Evaluator
from freerun.control.waiting import background
from freerun.core.reports import Evaluation
from freerun.engines.base import Engine
from freerun.engines.http import HttpEngine
from freerun.machine.processes import Processes
from freerun.observe.status import StatusFile
from freerun.plan.placement import RunKind
from freerun.rewards.service import JudgeService
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.load import make_rollout
from freerun.run.agents import AgentServices, agent_services
from freerun.run.environments import gpu_environments
from freerun.run.hosts import hosts_of
from freerun.run.judges import judge_service
from freerun.run.prepare import Prepared
from freerun.run.running import RunProcesses
from freerun.run.start import create_folder
from freerun.run.starter import Starter


def evaluator_of(running: RunProcesses) -> Evaluator | None:
    """While training goes on; None in a run that does not evaluate."""
    if running.evaluation_engine is None:
        return None
    return _evaluator(running.prepared, running.judge, running.evaluation_engine, running.agents, beside=True)


def _evaluator(
    prepared: Prepared, judge: JudgeService, engine: Engine, agents: AgentServices | None, beside: bool
) -> Evaluator:
    """`beside`: while training goes on."""
    config = prepared.config
    sampling, samples = config.rollout.sampling(temperature=config.evaluate.temperature), config.evaluate.samples
    rollout: GroupRollout
    if agents:
        rollout = agents.rollout(sampling, samples, beside=beside)
    else:
        rollout = make_rollout(prepared.rollout, prepared.tokenizer, prepared.text, sampling, samples)
    return Evaluator(prepared.held_out, rollout, judge, engine, config.evaluate.pass_reward, config.seed)


async def evaluate(prepared: Prepared, progress: Callable[[], None]) -> Evaluation:
    """`freerun eval`: one engine, one judge service, every held-out task."""
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(hosts_of(prepared.config, lambda _: None))
        plan, folder = prepared.plan(RunKind.EVALUATE, machines=await hosts.machines()), create_folder(prepared)
        stack.enter_context(StatusFile(folder).kept())
        environments = await stack.enter_async_context(gpu_environments(plan, hosts, lambda _: None))
        processes = await stack.enter_async_context(Processes("freerun.run.child", folder.logs))
        starter = Starter(prepared.config, plan, processes, environments, hosts)
        judge = await stack.enter_async_context(judge_service(starter, None, lambda _: None))
        agents = await stack.enter_async_context(agent_services(prepared, folder.logs))
        started = await starter.engine(plan.engines[0])
        engine = await stack.enter_async_context(HttpEngine(started.url, hosts.key))
        async with background(processes.watch()):
            return await _evaluator(prepared, judge, engine, agents, beside=False).evaluate(progress)
