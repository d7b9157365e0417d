"""An agent that is a program."""

import json
import os
import sys
from pathlib import Path

import pytest

from freerun.core import Task
from freerun.rollouts.agents.load import spec_of
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import Access, AgentResult, SessionFailure
from freerun.rollouts.config import RolloutConfig

ACCESS = Access("http://127.0.0.1:9/KEY/v1", "KEY")
TASK = Task("t1", "what?", [1, 2], "5", {"level": 3}, [{"role": "user", "content": "what?"}])
SEEN = """
import json, os, sys
task = json.load(open(os.environ["FREERUN_TASK"]))
assert task == json.load(sys.stdin)
print(json.dumps({"task": task, **{name: value for name, value in os.environ.items() if name.isupper()}}))
open(sys.argv[1], "w").write(json.dumps({"task": task, **os.environ}))
"""


async def run(*command: str, deadline_s: float = 30.0) -> AgentResult:
    async with AgentPool(spec_of(RolloutConfig(command=command)), 1) as pool:
        return await pool.run(TASK, ACCESS, deadline_s)


async def test_it_finds_the_policy_and_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "the user's own")
    assert await run(sys.executable, "-c", SEEN, str(tmp_path / "seen")) == AgentResult(None)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["task"] == {
        **{"id": "t1", "prompt": "what?", "answer": "5", "extra": {"level": 3}, "messages": TASK.messages},
    }
    assert not Path(seen["FREERUN_TASK"]).exists()
    assert "ANTHROPIC_AUTH_TOKEN" not in seen
    for name, value in {
        **dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE", "FREERUN_SESSION_URL"), ACCESS.base_url),
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/KEY",
        **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "KEY"),
        **dict.fromkeys(("OPENAI_MODEL", "ANTHROPIC_MODEL"), "policy"),
    }.items():
        assert seen[name] == value


@pytest.mark.parametrize(
    ("printed", "result"),
    [
        ("working\\n0.5\\n", AgentResult(0.5)),
        ('{"reward": 1}', AgentResult(1.0)),
        ("", AgentResult()),
        ("the answer is 5", AgentResult()),
        ("true", AgentResult()),
        ('{"other": 1}', AgentResult()),
        ("0.5\\ndone", AgentResult()),
        ("NaN", SessionFailure.BAD_RESULT),
        ('{"reward": "high"}', SessionFailure.BAD_RESULT),
    ],
)
async def test_its_last_line_may_be_a_reward(printed: str, result: AgentResult | SessionFailure) -> None:
    got = await run("printf", printed)
    assert (got if isinstance(result, AgentResult) else got.failure) == result


async def test_a_code_other_than_0_is_an_error_with_its_last_line() -> None:
    result = await run("bash", "-c", "echo 1; echo first >&2; echo no such model >&2; exit 3")
    assert (result.failure, result.detail) == (SessionFailure.ERROR, "bash ended with code 3: no such model")
    result = await run("bash", "-c", "kill -9 $$")
    assert (result.failure, result.detail) == (SessionFailure.ERROR, "bash was killed by SIGKILL")


async def test_it_is_killed_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    program = f"trap '' TERM; setsid sleep 100 & echo $! $$ > {tmp_path}/pids; wait; sleep 100"
    assert (await run("bash", "-c", program, deadline_s=1.0)).failure is SessionFailure.DEADLINE
    for pid in (tmp_path / "pids").read_text().split():
        assert not os.path.exists(f"/proc/{pid}")


async def test_a_worker_runs_one_program_after_the_other_and_is_used_again() -> None:
    async with AgentPool(spec_of(RolloutConfig(command=("bash", "-c", "echo $PPID"))), 1) as pool:
        results = [await pool.run(TASK, ACCESS, 30) for _ in range(3)]
    assert results[0].reward is not None
    assert results == [results[0]] * 3
