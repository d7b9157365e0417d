"""What is said of a run that learns nothing: within 20 steps, once, with the likely cause."""

import math
import random
from typing import Any

from freerun.core.records import StepRecord
from freerun.observe.learning import LearningAdvice
from tests.observe.runs import a_step


def notes(steps: list[StepRecord]) -> list[tuple[int, str]]:
    advice = LearningAdvice()
    return [(step.step, note) for step in steps for note in advice.notes(step)]


def a_run(count: int, **fields: Any) -> list[StepRecord]:
    """Each field as a function of the step's number."""
    return [a_step(step, **{name: of(step) for name, of in fields.items()}) for step in range(1, count + 1)]


def test_a_run_that_learns_is_told_nothing() -> None:
    dice = random.Random(1)
    run = a_run(
        200,
        reward_mean_all=lambda step: min(step / 100, 0.95) + dice.gauss(0, 0.03),
        judgements=lambda step: {"ok": 64 * step, "error": step},
        dropped=lambda step: {"no_signal": 3 * step},
        samples=lambda step: 40,
        trainer=lambda step: {"entropy": 2.0 / step, "signal_share": 0.5 if step < 100 else 0.0},
    )
    assert notes(run) == []


def test_a_judge_that_fails_for_most_answers_is_said_at_once() -> None:
    run = a_run(30, judgements=lambda step: {"ok": 20 * step, "error": 44 * step})
    ((step, text),) = notes(run)
    assert step == 1
    assert text.startswith("69% of the answers could not be judged (44 error of 64)")


def test_it_is_said_too_when_that_begins_later() -> None:
    run = a_run(80, judgements=lambda step: {"ok": 64 * min(step, 40), "timeout": 64 * max(step - 40, 0)})
    ((step, text),) = notes(run)
    assert 40 < step <= 60
    assert "timeout" in text


def test_groups_that_are_nearly_all_dropped_have_a_cause() -> None:
    def dropped(reward: float) -> str:
        run = a_run(
            20,
            reward_mean_all=lambda _: reward,
            judgements=lambda step: {"ok": 1000 * step},
            dropped=lambda step: {"no_signal": 115 * step},
            samples=lambda _: 64,
        )
        ((step, text),) = notes(run)
        assert step == 10
        assert text.startswith("94% of the answers of the last 10 steps were dropped")
        return text

    assert "too easy: set control.skip_solved: 8" in dropped(0.97)
    assert "too hard" in dropped(0.02)


def test_groups_without_signal_that_are_not_dropped_too() -> None:
    run = a_run(25, reward_mean_all=lambda _: 0.5, trainer=lambda _: {"signal_share": 0.0})
    ((step, text),) = notes(run)
    assert step == 20
    assert "all answers to a task got the same reward" in text


def test_entropy_that_explodes() -> None:
    run = a_run(40, reward_mean_all=lambda _: 0.3, trainer=lambda step: {"entropy": 0.6 + max(step - 15, 0) * 0.2})
    ((step, text),) = notes(run)
    assert step < 35
    assert text.startswith("entropy has risen from 0.6 to ")
    assert "train.lr" in text
    learned = a_run(40, reward_mean_all=lambda s: s / 40, trainer=lambda s: {"entropy": 0.6 + s * 0.2})
    assert notes(learned) == [], "it explores, and gets better"


def test_a_reward_that_falls_for_long_and_by_more_than_chance() -> None:
    dice = random.Random(2)
    run = a_run(90, reward_mean_all=lambda s: 0.6 - abs(s - 40) / 100 + dice.gauss(0, 0.02))
    ((step, text),) = notes(run)
    assert 60 <= step <= 70
    assert text.startswith("the reward has fallen since step 4")
    noisy = a_run(300, reward_mean_all=lambda _: 0.5 + dice.gauss(0, 0.1))
    assert notes(noisy) == []


def test_supervised_training_has_no_rewards_to_speak_of() -> None:
    assert notes(a_run(40, reward_mean_all=lambda _: math.nan, trainer=lambda _: {"signal_share": 0.0})) == []
