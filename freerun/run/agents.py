"""What a run with agents needs besides: the gateway that they ask, and the processes that they run in."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from freerun.engines.base import Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.plan.lengths import context_tokens
from freerun.rollouts.agent import AgentRollout
from freerun.rollouts.agents.load import check_imports
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.template import template_of
from freerun.run.prepare import Prepared


@dataclass
class AgentServices:
    """Training and evaluation share them."""

    prepared: Prepared
    gateway: Gateway
    pool: AgentPool

    def rollout(
        self,
        sampling: Sampling,
        group_size: int,
        note: Callable[[str], None] = lambda text: None,
        beside: bool = False,
    ) -> AgentRollout:
        """`beside`: for an evaluation, which training must not wait for: it has a quarter of the processes."""
        prepared, config = self.prepared, self.prepared.config.rollout
        rules = SessionRules(
            template_of(prepared.tokenizer),
            AnswerReading(prepared.tokenizer),
            frozenset(prepared.shape.eos_token_ids),
            sampling,
            context_tokens(prepared.config, prepared.shape),
            keeps_sampled=config.history == "sampled",
        )
        at_a_time = max(config.max_sessions // 4, 1) if beside else config.max_sessions
        return AgentRollout(self.gateway, self.pool, rules, group_size, config.deadline_s, note, at_a_time)


async def check_agent(prepared: Prepared) -> None:
    """Import the agent's code as the run would, in a process of its own. ConfigError if that fails."""
    if prepared.agent is not None:
        await check_imports(prepared.agent)


@asynccontextmanager
async def agent_services(prepared: Prepared, logs: Path) -> AsyncIterator[AgentServices | None]:
    """None for a run without agents."""
    if prepared.agent is None:
        yield None
        return
    max_sessions = prepared.config.rollout.max_sessions
    async with Gateway.opened() as gateway, AgentPool(prepared.agent, max_sessions, logs / "agents.log") as pool:
        yield AgentServices(prepared, gateway, pool)
