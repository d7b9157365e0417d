"""Evaluation: beside a run, by an engine of its own, and `freerun eval`."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from freerun.control.evaluate import Evaluator
from freerun.control.waiting import background
from freerun.core.reports import Evaluation
from freerun.engines.base import Engine
from freerun.engines.http import HttpEngine
from freerun.machine.processes import Processes
from freerun.observe.folder import RunFolder
from freerun.observe.status import StatusFile
from freerun.plan.placement import RunKind
from freerun.rewards.service import JudgeService
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.load import make_rollout
from freerun.run.agents import AgentServices, agent_services
from freerun.run.begin import gone_if_nothing_was_done
from freerun.run.environments import gpu_environments
from freerun.run.evaluation_folder import KeptEvaluation, evaluation_folder, what_it_measures
from freerun.run.hosts import hosts_of
from freerun.run.judges import judge_service
from freerun.run.prepare import CHILD, Prepared
from freerun.run.running import RunProcesses
from freerun.run.start import Start
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


async def evaluate(prepared: Prepared, progress: Callable[[], None], folder: RunFolder | None = None) -> Evaluation:
    """`freerun eval`: one engine, one judge service, every held-out task. What comes of it is kept in the folder."""
    folder = folder or evaluation_folder(prepared)
    with gone_if_nothing_was_done(Start(folder)), KeptEvaluation(folder) as kept:
        found = await _evaluate(prepared, progress, folder, kept)
        kept.done(found, prepared.config, what_it_measures(prepared.config))
        return found


async def _evaluate(
    prepared: Prepared, progress: Callable[[], None], folder: RunFolder, kept: KeptEvaluation
) -> Evaluation:
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(hosts_of(prepared.config, lambda _: None))
        plan = prepared.plan(RunKind.EVALUATE, machines=await hosts.machines())
        stack.enter_context(StatusFile(folder).kept())
        environments = await stack.enter_async_context(gpu_environments(plan, hosts, lambda _: None))
        processes = await stack.enter_async_context(Processes(CHILD, folder.logs))
        starter = Starter(prepared.config, plan, processes, environments, hosts, prepared.model_folder)
        judge = await stack.enter_async_context(judge_service(starter, None, lambda _: None))
        agents = await stack.enter_async_context(agent_services(prepared, folder.logs))
        started = await starter.engine(plan.engines[0])
        engine = await stack.enter_async_context(HttpEngine(started.url, hosts.key))
        async with background(processes.watch()):
            evaluator = _evaluator(prepared, judge, engine, agents, beside=False)
            return await evaluator.evaluate(progress, judged=kept.judged)
