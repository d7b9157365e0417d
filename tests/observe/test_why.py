"""What holds a run up, from its figures."""

from typing import Any

import pytest

from freerun.observe.columns import StepColumns
from freerun.observe.folder import encode
from freerun.observe.time_shares import time_shares
from freerun.observe.why import Why, cost_most, why
from tests.observe.runs import a_step

SETTINGS = {
    "control.max_staleness": 2, "control.when_stale": "wait", "control.groups_per_step": 8,
    "rollout.max_new_tokens": 2048, "rollout.max_sessions": 64, "resources.engines": None,
    "engine.max_running": 64, "weights.deltas": False,
    "train.save_every": 10, "train.minibatches": 1,
}  # fmt: skip


def found(settings: dict[str, Any] | None = None, steps: int = 20, **fields: Any) -> Why:
    columns = StepColumns()
    for step in range(1, steps + 1):
        columns.add(encode(a_step(step, **{"trainer_idle_s": 0.0, "step_s": 2.0} | fields)))
    return why(time_shares(columns), SETTINGS | (settings or {}))


def test_a_slow_judge_is_named_with_the_workers_that_keep_up() -> None:
    judged: dict[str, Any] = {"judge_workers": 1, "judge_busy_share": 1.0, "judge_s": 0.02, "judge_cpu_share": 0.01}
    one = found(trainer_waits={"judging": 1.5}, **judged)
    assert one.bottleneck == "judging, 75% of the time"
    assert one.advice == ["reward.workers=5: an answer takes 20 ms, mostly waiting"]
    computes = found(trainer_waits={"judging": 1.5}, **judged | {"judge_cpu_share": 0.98})
    assert "computes for 98%" in computes.advice[0]
    assert any("waits 75% (75% judging)" in line for line in one.figures)


def test_taking_turns_is_the_staleness_bounds_doing() -> None:
    turns: dict[str, Any] = {
        "trainer_waits": {"generation": 1.0},
        "engine_idle_s": 1.0,
        "admission_waits": {"bound": 1.9},
    }
    one = found({"control.max_staleness": 0}, **turns)
    assert one.bottleneck.startswith("the staleness bound")
    assert one.advice[0].startswith("control.max_staleness=2")


def test_a_wait_for_the_oldest_answers_is_too() -> None:
    one = found(trainer_waits={"bound": 1.2}, answer_tokens_mean=100.0)
    assert one.bottleneck == "the staleness bound, 60% of the time"
    assert [line.split(":")[0].split(",")[0] for line in one.advice] == [
        "control.max_staleness=4",
        "control.when_stale=mask",
        "rollout.max_new_tokens=256",
    ]


@pytest.mark.parametrize(
    ("fields", "name", "advice"),
    [
        ({"trainer_waits": {}}, "the trainer", "both busy"),
        ({"trainer_waits": {}, "engine_idle_s": 1.8}, "the trainer", "engines are idle for 90%"),
        ({"trainer_waits": {"generation": 1.8}}, "generation", "resources.engines=10"),
        (
            {"trainer_waits": {"generation": 1.8}, "admission_waits": {"engines": 1.9}},
            "generation",
            "engine.max_running=128",
        ),
        ({"trainer_waits": {"weights": 1.2}, "update_s": 1.2}, "new weights", "weights.deltas=true"),
        ({"trainer_waits": {"checkpoint": 1.2}}, "checkpoints", "train.save_every=120"),
        ({"trainer_waits": {"agents": 1.2}, "engine_idle_s": 1.0}, "agents", "control.max_staleness=4"),
    ],
)
def test_each_bottleneck_has_a_setting_to_change(fields: dict[str, Any], name: str, advice: str) -> None:
    one = found(**fields)
    assert one.bottleneck.startswith(name)
    assert any(advice in line for line in one.advice), one.advice


def test_a_run_that_is_older_than_these_figures_says_what_it_can() -> None:
    assert found(trainer_idle_s=1.6).bottleneck == "generation, 80% of the time"
    assert found(trainer_idle_s=1.6, engine_idle_s=1.9).bottleneck == "judging, or agents, 80% of the time"
    assert found(steps=0).lines == []


def test_only_what_a_setting_could_have_changed_is_said_in_the_end() -> None:
    def told(steps: int, **fields: Any) -> str | None:
        return cost_most([encode(a_step(step, **fields)) for step in range(1, steps + 1)], SETTINGS.items())

    assert "reward.workers" in str(told(20, trainer_waits={"judging": 1.5}))
    assert told(5, trainer_waits={"judging": 1.5}) is None, "too short to say"
    assert told(20, trainer_waits={"judging": 0.9}) is None
    assert told(20, trainer_waits={"generation": 1.9}) is None, "that is what a run is for"
    assert told(20, trainer_waits={}) is None
