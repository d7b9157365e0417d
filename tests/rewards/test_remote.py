"""Judges over HTTP, against a real server process."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import check
from freerun.rewards.remote import GRADING_PROMPT, Http, Model
from freerun.rewards.service import JudgeService

TASK = Task("t", "What is 2 + 3?", [1, 2], "5", {"level": "easy"})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.rewards.served"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def asked(server: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server}/asked") as response:
        told: dict[str, Any] = json.load(response)
    return told


def service(judge: dict[str, Any], retries: int = 0, **knobs: Any) -> JudgeService:
    return JudgeService(RewardConfig(judge=judge, **knobs), retries=retries, give_up_after=1000)


def test_http_rewards(server: str) -> None:
    judge = Http(f"{server}/reward")
    assert judge(TASK, "four").reward == 4.0
    told = judge(TASK, "unparseable")
    assert (told.reward, told.reason, told.detail) == (0.0, JudgeReason.UNPARSEABLE, "gibberish")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("error", "/reward answered 500: out of order"),
        ("garbage", "other than a JSON object: b'<html>'"),
        ("list", "other than a JSON object"),
        ("nothing", 'without a number as "reward": {}'),
        ("huge", "more than 1048576 bytes"),
    ],
)
def test_http_failures_are_one_line_and_no_reward(server: str, text: str, says: str) -> None:
    with pytest.raises(RewardError) as caught:
        Http(f"{server}/reward")(TASK, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(RewardError, match=r"http://127.0.0.1:9/x does not answer: .*refused"):
        Http("http://127.0.0.1:9/x")(TASK, "x")


def test_keys_come_from_the_environment(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RewardError, match="answered 401: who are you"):
        Http(f"{server}/reward")(TASK, "secret")
    monkeypatch.setenv("REWARD_KEY", "s3cret")
    assert Http(f"{server}/reward", "REWARD_KEY")(TASK, "secret").reward == 6.0


def test_a_model_grades(server: str) -> None:
    judge = Model(f"{server}/v1", "some-model")
    assert judge(TASK, "1234567") == 0.7
    assert judge(TASK, "say Score: 3, no: **Score: 8**/10") == 0.8
    assert judge(TASK, "say 6.5") == 0.65
    assert Model(f"{server}/v1/", "m", best=1)(TASK, "say Score: 0.25") == 0.25


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("say I cannot tell", "the model gave no score: 'I cannot tell'"),
        ("say Score: 12", "score of 12 is not between 0 and 10"),
        ("say Score: -1", "score of -1 is not between"),
        ("nothing", r"without choices\[0\].message.content"),
        ("error", "answered 500"),
    ],
)
def test_a_model_that_does_not_grade(server: str, text: str, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        Model(f"{server}/v1", "m")(TASK, text)


def test_what_a_model_is_asked(server: str, tmp_path: Path) -> None:
    """Checked through the body that the server sees: with a prompt that is all text, the text is what is asked."""
    prompt = tmp_path / "grade.txt"
    prompt.write_text('{text}{"a": {answer}} {level} {prompt}')
    judge = Model("http://x/v1", "m", prompt=str(prompt), request={"max_tokens": 5, "temperature": None})
    assert judge._body(TASK, "{answer} {nothing}") == {
        "model": "m",
        "messages": [{"role": "user", "content": '{answer} {nothing}{"a": 5} easy What is 2 + 3?'}],
        "max_tokens": 5,
    }
    assert Model("http://x/v1", "m")._body(TASK, "x")["temperature"] == 0
    with pytest.raises(RewardError, match=r"names \{levle\}, which task t does not have"):
        Model("http://x/v1", "m", prompt="{text} {levle}")._body(TASK, "x")
    for place in ("{prompt}", "{answer}", "{text}"):
        assert place in GRADING_PROMPT


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        ({"name": "model", "model": "m"}, "the judge model: Object missing required field base_url"),
        ({"name": "model", "base_url": "x", "model": "m"}, "base_url: 'x' does not begin with http:// or https://"),
        ({"name": "model", "base_url": "http://x", "model": "m", "prompt": "Good?"}, "prompt has no {text}"),
        ({"name": "model", "base_url": "http://x", "model": "m", "prompt": "no.txt"}, "prompt: no.txt cannot be read"),
        ({"name": "model", "base_url": "http://x", "model": "m", "best": 0}, "best must be more than 0"),
        ({"name": "model", "base_url": "http://x", "model": "m", "modle": 1}, 'no option "modle"; did you mean model?'),
        ({"name": "http", "url": "http://x", "key_env": "NO_SUCH_KEY"}, "environment has no variable NO_SUCH_KEY"),
    ],
)
def test_mistakes_get_one_line(judge: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(judge)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_server_that_hangs_is_a_timeout_for_its_judgement_only(server: str) -> None:
    async with service({"name": "http", "url": f"{server}/reward", "workers": 2, "timeout_s": 0.4}, retries=3) as judge:
        hangs = [asyncio.create_task(judge.judge(TASK, "hang")) for _ in range(2)]
        verdicts = await asyncio.gather(*(judge.judge(TASK, "x") for _ in range(10)))
        assert {verdict.reward for verdict in verdicts} == {1.0}
        assert {(await hang).reason for hang in hangs} == {JudgeReason.TIMEOUT}
    assert asked(server)["asked"]["hang"] == 2, "a time-out is not tried again"


async def test_errors_of_a_remote_judge_are_tried_again(server: str) -> None:
    async with service({"name": "http", "url": f"{server}/reward", "workers": 1}, retries=1) as judge:
        assert await judge.judge(TASK, "error once") == Verdict(10.0, JudgeReason.OK)
        before = asked(server)["asked"].get("error", 0)
        failed = await judge.judge(TASK, "error")
        assert (failed.reward, failed.reason) == (None, JudgeReason.ERROR)
        assert failed.detail.endswith("answered 500: out of order")
        assert "Traceback" not in failed.detail
        assert asked(server)["asked"]["error"] == before + 2
        nan = await judge.judge(TASK, "nan")
        assert (nan.reason, nan.detail) == (JudgeReason.ERROR, "a reward must be a finite number, not nan")
    assert judge.counts == {JudgeReason.OK: 1, JudgeReason.ERROR: 2}


async def test_a_model_is_asked_once_for_the_same_answer(server: str) -> None:
    async with service({"name": "model", "base_url": f"{server}/v1", "model": "m", "workers": 4}) as judge:
        same = await asyncio.gather(*(judge.judge(TASK, "slowly") for _ in range(20)))
        assert set(same) == {Verdict(0.6, JudgeReason.OK)}
        assert (await judge.judge(TASK, "slowly")).reward == 0.6
        other = Task("u", "What is 1 + 1?", [], "2")
        assert (await judge.judge(other, "slowly")).reward == 0.6
        failed = [(await judge.judge(TASK, "error")).reason for _ in range(2)]
        assert failed == [JudgeReason.ERROR] * 2
    assert asked(server)["asked"]["slowly"] == 2
    assert asked(server)["asked"]["error"] >= 2, "a failure is not remembered"


async def test_a_cancelled_call_does_not_cancel_the_verdict_for_others(server: str) -> None:
    async with service({"name": "model", "base_url": f"{server}/v1", "model": "m"}) as judge:
        task = Task("leaving", "", [])
        first, second = (asyncio.create_task(judge.judge(task, "slowly")) for _ in range(2))
        await asyncio.sleep(0)  # both have asked
        first.cancel()
        assert (await second).reward == 0.6


async def test_workers_are_the_limit_of_requests_at_once(server: str) -> None:
    judge = {"name": "http", "url": f"{server}/reward", "workers": 3}
    async with service(judge) as judging:
        await asyncio.gather(*(judging.judge(TASK, "slowly") for _ in range(9)))
    assert asked(server)["most_at_once"] <= 4 + 1, "no test of this file has more workers"
    assert asked(server)["most_at_once"] >= 3


async def test_a_slow_judge_does_not_take_workers_from_others(server: str) -> None:
    """math does not wait for the model: it has workers of its own, and the model's time-out is not math's."""
    model = {"name": "model", "base_url": f"{server}/v1", "model": "m", "weight": 0.5, "timeout_s": 0.4, "workers": 1}
    config = RewardConfig(judge=["exact", model, {"name": "length", "weight": -0.1}])
    async with JudgeService(config, retries=0) as judge:
        assert len(judge._pools) == 2
        assert await judge.judge(TASK, "5") == Verdict(1.0 + 0.5 * 0.1 - 0.1, JudgeReason.OK)
        hung = await judge.judge(TASK, "hang")
        assert (hung.reward, hung.reason) == (None, JudgeReason.TIMEOUT)
