"""reasoning-gym in several attempts, and tasksets of verifiers played by verifiers."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, DataError, RewardError, Task
from freerun.data.config import DataConfig
from freerun.data.tasks import load_tasks
from freerun.rollouts.agents.load import spec_of
from freerun.rollouts.config import RolloutConfig
from freerun.rollouts.environments import reasoning_gym, verifiers
from tests.rollouts.environments.policy import Message, ScriptedPolicy, call, played

NO_TOKENIZER: Any = None

TOOLY = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        answer: int

    class Calc(vf.Toolset[vf.ToolsetConfig, vf.State]):
        @vf.tool
        def add(self, a: int, b: int) -> str:
            "The sum of two numbers."
            return str(a + b)

    class SumTask(vf.Task[Data]):
        @classmethod
        def toolsets(cls, config):
            return [Calc(vf.ToolsetConfig())]

        @vf.reward
        async def right(self, trace):
            return float(trace.last_reply == str(self.data.answer))

    class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
        def load(self):
            for n in range(3):
                yield SumTask(Data(idx=n, prompt=f"{n} + 1?", answer=n + 1))

    __all__ = ["Sums"]

    if __name__ == "__main__":
        Calc.run()
"""

CHATTY = """
    import verifiers.v1 as vf

    class Hint(vf.Task[vf.TaskData]):
        @vf.reward
        async def polite(self, trace):
            return float(trace.num_turns == 2 and trace.last_reply == "please")

    class Hints(vf.Taskset[Hint, vf.TasksetConfig]):
        def load(self):
            yield Hint(vf.TaskData(idx=0, prompt="Ask me.", system_prompt="Be polite."))

    class Twice(vf.Env[vf.SingleAgentEnvConfig]):
        async def run(self, task, agents):
            async with agents.agent.interaction(task) as talk:
                await talk.turn()
                await talk.turn("Say please.")

    __all__ = ["Hints", "Twice"]
"""


def chain_sum() -> Task:
    return load_tasks(DataConfig(source="reasoning-gym:chain_sum", limit=1), NO_TOKENIZER, needs_prompt=False)[0]


def test_attempts_end_with_a_right_one() -> None:
    task = chain_sum()
    options = {"attempts": 3, "discount": 0.5}

    def tried(*answers: str) -> tuple[Any, ScriptedPolicy]:
        left = list(answers)
        return played(lambda _: left.pop(0), lambda s: reasoning_gym.run(task, s, "chain_sum", options, max_turns=8))

    reward, policy = tried("no idea", f"<answer>{task.answer}</answer>")
    assert (reward, len(policy.requests)) == (0.5, 2)
    question, answer, told = policy.requests[1]["messages"]
    assert (question["content"], answer["content"], told["role"]) == (task.prompt, "no idea", "user")
    reward, policy = tried("a", "b", "c", "d")
    assert (reward < 0.05, len(policy.requests)) == (True, 3)


def test_what_is_wrong_with_attempts_is_found_before_a_run() -> None:
    wrong: list[tuple[Any, str]] = [
        ("reasoning-gym:chain_sums", "did you mean chain_sum?"),
        ({"name": "reasoning-gym:chain_sum", "attempt": 2}, "did you mean attempts?"),
        ({"name": "reasoning-gym:chain_sum", "attempts": 0}, "must be 1 or more"),
        ({"name": "reasoning-gym:chain_sum", "discount": 2}, "must be between 0 and 1"),
    ]
    for env, said in wrong:
        with pytest.raises(ConfigError, match=said):
            spec_of(RolloutConfig(env=env))
    with pytest.raises(ConfigError, match=r"needs tasks of data\.source: reasoning-gym:gcd"):
        played(lambda _: "", lambda s: reasoning_gym.run(chain_sum(), s, "gcd", {}, max_turns=8))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for tool servers
    for name, source in (("tooly", TOOLY), ("chatty", CHATTY)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.delitem(sys.modules, name, raising=False)


def episode(name: str, script: Any, place: int = 0, max_turns: int = 4) -> tuple[Any, ScriptedPolicy]:
    tasks = load_tasks(DataConfig(source=f"verifiers:{name}"), NO_TOKENIZER, needs_prompt=False)
    return played(script, lambda s: verifiers.run(tasks[place], s, name, {}, max_turns))


def use_the_tool(messages: list[Message]) -> Message | str:
    if messages[-1]["role"] == "user":
        return {"content": None, "tool_calls": [call("calc_add", '{"a": 2, "b": 1}')]}
    return str(messages[-1]["content"])


@pytest.mark.usefixtures("packages")
def test_verifiers_plays_its_own_loop_with_its_tools() -> None:
    reward, policy = episode("tooly", use_the_tool, place=2)
    assert reward == 1.0
    assert [m["role"] for m in policy.requests[-1]["messages"]] == ["user", "assistant", "tool"]
    assert {request["model"] for request in policy.requests} == {"policy"}
    with pytest.raises(DataError, match=r"need tools; .* set rollout.env: verifiers:tooly"):
        load_tasks(DataConfig(source="verifiers:tooly"), NO_TOKENIZER)


@pytest.mark.usefixtures("packages")
def test_an_environment_of_verifiers_may_talk_back() -> None:
    spec_of(RolloutConfig(env="verifiers:chatty"))
    reward, policy = episode("chatty", lambda messages: "please" if len(messages) > 2 else "hm")
    assert reward == 1.0
    assert [m["content"] for m in policy.requests[-1]["messages"]] == ["Be polite.", "Ask me.", "hm", "Say please."]
    reward, policy = episode("chatty", lambda _: "please", max_turns=1)
    assert (reward, len(policy.requests)) == (0.0, 1), "verifiers ends it"


@pytest.mark.usefixtures("packages")
def test_what_is_wrong_with_an_episode_is_a_failure_or_found_before_it() -> None:
    def refuse(_: list[Message]) -> str:
        raise RuntimeError("the engine is gone")

    with pytest.raises(RewardError, match="the episode of verifiers:chatty failed"):
        episode("chatty", refuse)
    wrong: list[tuple[Any, str]] = [
        ("verifiers:no_such_taskset", "verifiers has no taskset no_such_taskset here"),
        ({"name": "verifiers:chatty", "max_turn": 3}, "verifiers:chatty refuses its options"),
    ]
    for env, said in wrong:
        with pytest.raises(ConfigError, match=said):
            spec_of(RolloutConfig(env=env))
