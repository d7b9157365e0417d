"""Reward models: the logits that transformers gives each conversation alone, whatever the batch; in a process of their
own, which is started again; and what is no reward model."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from freerun.core import ConfigError, DataError, Task
from freerun.machine.processes import Child, ChildProcess, Processes
from freerun.models.classifier import Classifier
from freerun.models.tiny import make_model
from freerun.rewards.base import JudgedSample, JudgeReason
from freerun.rewards.config import RewardConfig
from freerun.run.judges import judging_alone
from tests.rewards.classifiers import TEMPLATE, classifier_folder, taught_classifier

TASK = Task("t", "a>", [])


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_classifier(tmp_path_factory.mktemp("classifiers") / "taught")


def said(text: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen3", {}),
        ("llama", {"pad_token_id": 0}),
        ("bert", {"pad_token_id": 0, "num_key_value_heads": None}),
    ],
)
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_a_batch_gives_what_transformers_gives_each_alone(
    tmp_path: Path, family: str, more: dict[str, Any], template: str | None
) -> None:
    folder = classifier_folder(tmp_path / "model", family, ("good", "bad", "ugly"), template, **more)
    model = Classifier(folder, "cpu", torch.float32, 40)
    rows = [
        model.encode(said(text, answer)) for text, answer in zip(["a>", "bcd>e", "f>"] * 3, "abcdefabc", strict=True)
    ]
    rows.append(model.encode(said("abcdefabcdefabcdefabcdef>", "fedcba" * 5)))
    alone = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    for row, logits in zip(rows, model.logits(rows), strict=True):
        types = {} if row.types is None else {"token_type_ids": torch.tensor([row.types])}
        with torch.no_grad():
            wanted = alone(input_ids=torch.tensor([row.tokens]), **types).logits[0]
        assert logits == pytest.approx(wanted.tolist(), abs=1e-5)
    with pytest.raises(DataError, match=r"has 65 tokens, and .* reads 64"):
        model.encode(said("a" * 64, "b"))


async def test_it_judges_in_a_process_of_its_own_with_weight_and_other_judges(taught: Path) -> None:
    model = {"name": "reward_model", "path": str(taught), "weight": 2.0}
    config = RewardConfig(judge=[model, {"name": "length", "unit": "characters", "weight": 0.1}])
    async with judging_alone(config) as judge:
        answers = [*"abcdef", "x", JudgedSample("a", said("b>", "b"))]
        verdicts = await judge.judge_all(TASK, answers)
        rewards = [verdict.reward for verdict in verdicts]
        assert rewards[0] == pytest.approx(2.1, abs=0.2)
        assert all(reward == pytest.approx(0.1, abs=0.2) for reward in rewards[1:6])
        assert rewards[7] == pytest.approx(2.1, abs=0.2), "its messages count, where it has any"
        long = await judge.judge(TASK, "a" * 100)
        assert long.reason is JudgeReason.ERROR
        assert "has 102 tokens" in long.detail
        assert (await judge.judge(TASK, "a")).reward == pytest.approx(2.1, abs=0.2), "and goes on"


async def test_one_that_is_killed_is_started_again_and_no_judgement_is_lost(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Child] = []
    begin = Processes.begin

    async def noted(processes: Processes, *given: Any, **more: Any) -> Child:
        begun.append(await begin(processes, *given, **more))
        return begun[-1]

    monkeypatch.setattr(Processes, "begin", noted)
    async with judging_alone(RewardConfig(judge={"name": "reward_model", "path": str(taught)})) as judge:
        assert (await judge.judge(TASK, "b")).reward == pytest.approx(0, abs=0.2)
        (child,) = begun
        assert isinstance(child, ChildProcess)
        child._signal(signal.SIGKILL)
        verdicts = await asyncio.wait_for(judge.judge_all(TASK, list("abc")), 60)
        assert [round(verdict.reward or 0) for verdict in verdicts] == [1, 0, 0]
    assert len(begun) == 2


def refusal(judge: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        RewardConfig(judge={"name": "reward_model", **judge}).check()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_no_reward_model_is_said_in_a_line(tmp_path: Path, taught: Path) -> None:
    make_model(tmp_path / "policy", "abc", seed=0)
    assert "is no sequence classifier (its config.json names Qwen3ForCausalLM)" in refusal(
        {"path": str(tmp_path / "policy")}
    )
    assert "has no config.json" in refusal({"path": str(tmp_path)})
    assert "missing required field path" in refusal({})
    assert 'has no option "lable"; did you mean label?' in refusal({"path": str(taught), "lable": 1})
    assert "remove workers" in refusal({"path": str(taught), "workers": 2})
    several = classifier_folder(tmp_path / "several", labels=("helpful", "safe"))
    assert "has the labels helpful, safe: choose by label or labels" in refusal({"path": str(several)})
    assert "has no label 'save'; it has helpful, safe; did you mean safe?" in refusal(
        {"path": str(several), "label": "save"}
    )
    assert "keep one" in refusal({"path": str(several), "label": 0, "labels": {"safe": 1}})


async def test_a_folder_without_the_head_is_refused_by_its_process(tmp_path: Path) -> None:
    make_model(tmp_path / "policy", "abc", seed=0)
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "score"}}
    (tmp_path / "policy" / "config.json").write_text(json.dumps(config))
    reward = RewardConfig(judge={"name": "reward_model", "path": str(tmp_path / "policy")})
    reward.check()
    with pytest.raises(ConfigError, match=r"holds no tensor score\.weight, so it is no trained classifier"):
        async with judging_alone(reward):
            pass


async def test_several_labels_are_weighed(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "model", labels=("helpful", "safe", "long"))
    model = Classifier(folder, "cpu", torch.float32, 4096)
    (logits,) = model.logits([model.encode(said("a>", "b"))])
    for options, wanted in (
        ({"label": "safe"}, logits[1]),
        ({"label": 2}, logits[2]),
        ({"labels": {"helpful": 0.5, "long": -2}}, 0.5 * logits[0] - 2 * logits[2]),
    ):
        async with judging_alone(RewardConfig(judge={"name": "reward_model", "path": str(folder), **options})) as judge:
            assert (await judge.judge(TASK, "b")).reward == pytest.approx(wanted, abs=1e-5)
