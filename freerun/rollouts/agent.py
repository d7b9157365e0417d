"""Agents as a rollout: each member of a group is a session with the gateway, and a process that runs the agent.

A member that fails (it raises, hangs, dies, never asks the policy, returns what is no reward) is tried again, and then
left out of its group and counted by reason. It costs the other members nothing.
"""

import asyncio
from collections.abc import Callable

from freerun.core import Task
from freerun.core.reports import SessionReport
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import AgentResult, SessionFailure
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.gateway.session import Session
from freerun.rollouts.said_once import SaidOnce

TRIES = 2


class AgentRollout:
    """Consumes tasks; produces a trajectory for each member. Waits for a free process of the pool and for the agent; is
    unblocked by the agent's end or its deadline."""

    def __init__(
        self,
        gateway: Gateway,
        pool: AgentPool,
        rules: SessionRules,
        group_size: int,
        deadline_s: float,
        note: Callable[[str], None] = lambda text: None,
        at_a_time: int = 10**9,
    ) -> None:
        """`at_a_time`: how many of the pool's processes it may have, where it shares them with another."""
        self._gateway, self._pool, self._rules = gateway, pool, rules
        self._group_size, self._deadline_s = group_size, deadline_s
        self._failed = SaidOnce(note, "your agent failed")
        self._places = asyncio.Semaphore(at_a_time)

    async def __call__(self, task: Task, client: Client) -> list[Trajectory]:
        async with asyncio.TaskGroup() as group:
            members = [group.create_task(self._member(task, client, member)) for member in range(self._group_size)]
        return [member.result() for member in members]

    async def _member(self, task: Task, client: Client, member: int) -> Trajectory:
        failures: dict[str, int] = {}
        try:
            for attempt in range(TRIES):
                with self._gateway.session(self._rules, client, f"{member}/{attempt}") as session:
                    access = self._gateway.access(session, member, attempt)
                    async with self._places:
                        result = _checked(await self._pool.run(task, access, self._deadline_s), session)
                session.report.failures = failures
                if result.failure is None:
                    return session.trajectory(result.reward)
                failures[result.failure] = failures.get(result.failure, 0) + 1
                self._failed.say(f"{result.failure}: {result.detail}")
        finally:
            client.release(1)
        return Trajectory.failed(f"{result.failure}: {result.detail}", session=SessionReport(failures=failures))


def _checked(result: AgentResult, session: Session) -> AgentResult:
    """An agent that has never asked the policy has nothing to be trained on."""
    if result.failure is None and not session.has_turns:
        told = "it never asked the model 'policy' for an answer: point its client at session.base_url"
        return AgentResult(failure=SessionFailure.NO_CALL, detail=told)
    return result
