"""A gateway with a scripted policy behind it, and sessions with real clients."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import openai
import pytest

from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.rollouts.agents.spec import Access
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.gateway.session import Session
from freerun.rollouts.template import Template
from tests.rollouts.gateway.scripted_policy import END, Script, ScriptedPolicy, assert_exact, tokenizer_of


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer_of(tmp_path_factory.mktemp("tokenizer"))


@dataclass
class Talk:
    """One session, and the policy that it talks to."""

    policy: ScriptedPolicy
    session: Session
    access: Access
    ended: list[Trajectory] = field(default_factory=list)

    @property
    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.access.base_url, api_key=self.access.api_key, max_retries=0)

    def trajectory(self, reward: float | None = 1.0) -> Trajectory:
        self.ended.append(self.session.trajectory(reward))
        return self.ended[-1]

    def check(self, samples: int = 1, trained: int | None = None) -> Trajectory:
        """End it; every token is the engine's own."""
        trajectory = self.trajectory()
        assert len(trajectory.samples) == samples
        assert_exact([trajectory], self.policy.record, trained)
        return trajectory


OpenTalk = Callable[..., AbstractContextManager[Talk]]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway.opened() as gateway:
        yield gateway


@pytest.fixture
def talk(gateway: Gateway, tokenizer: Any) -> OpenTalk:
    """`with talk(script) as one:`"""
    reading = AnswerReading(tokenizer)
    sampling = Sampling(max_new_tokens=200)
    ends = frozenset([tokenizer.convert_tokens_to_ids(END)])
    rules = SessionRules(Template(tokenizer), reading, ends, sampling, 8192)

    @contextmanager
    def opened(script: Script, **changes: Any) -> Iterator[Talk]:
        policy = ScriptedPolicy(tokenizer, script)
        changed = replace(rules, **changes)
        with gateway.session(changed, Client(policy, "seed"), "0/0") as session:
            yield Talk(policy, session, gateway.access(session))

    return opened
