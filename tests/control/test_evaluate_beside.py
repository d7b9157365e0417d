"""Evaluation beside a run, on an engine that may be lost and come back: the run goes on."""

import asyncio
from collections.abc import Sequence

from freerun.control.evaluate import EvaluateBeside, Evaluator
from freerun.core import Task, Version
from freerun.core.observer import Observer
from freerun.core.reports import Evaluation, WeightsHandle
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Sampling
from freerun.engines.scripted import Script, ScriptedEngine
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.single_turn import SingleTurn
from tests.control.test_promises import Letters
from tests.fakeclock import run_fast


class Told(Observer):
    def __init__(self) -> None:
        self.found: list[tuple[Version, float]] = []
        self.notes: list[str] = []

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self.found.append((version, evaluation.pass_at_1))

    def note(self, text: str) -> None:
        self.notes.append(text)


class AllRight:
    waiting = 0

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        return [Verdict(float(answer is not None), JudgeReason.OK) for answer in answers]


def engine() -> ScriptedEngine:
    """An answer takes ten seconds."""
    return ScriptedEngine(lambda prompt, seed, index: Script(10, 1.0))


def beside(told: Told, rollout: GroupRollout | None = None) -> EvaluateBeside:
    tasks = [Task(f"task {index}", "?", [index]) for index in range(3)]
    single = SingleTurn(Letters(), Sampling(max_new_tokens=16), 1)
    return EvaluateBeside(Evaluator(tasks, rollout or single, AllRight(), engine(), 1.0, 0), 2, told)


def handle(version: Version) -> WeightsHandle:
    return WeightsHandle("scripted", version, "")


def test_a_version_whose_engine_is_lost_is_skipped_and_the_next_goes_to_the_one_that_came_back() -> None:
    async def go() -> None:
        told = Told()
        evaluate = beside(told)
        await evaluate.published(handle(0))
        await evaluate.finish()
        await evaluate.published(handle(2))
        await asyncio.sleep(5)
        evaluate.remove("evaluator", "its machine is cut off")
        await evaluate.finish()
        await evaluate.published(handle(4))
        await evaluate.join("evaluator", back := engine())
        await evaluate.published(handle(6))
        await evaluate.finish()
        assert told.found == [(0, 1.0), (6, 1.0)]
        lost = "evaluator is lost: its machine is cut off"
        assert told.notes == [
            f"version 2 is not evaluated: {lost}",
            f"version 4 is not evaluated: {lost}",
            "evaluator is back",
        ]
        assert back.version == 6

    run_fast(go())


def test_the_last_version_is_evaluated_though_its_first_try_failed() -> None:
    async def go() -> None:
        told = Told()
        evaluate = beside(told)
        evaluate.remove("evaluator", "cut")
        await evaluate.published(handle(2))
        await evaluate.join("evaluator", engine())
        await evaluate.last()
        assert told.found == [(2, 1.0)]

    run_fast(go())


def test_members_that_fail_for_want_of_their_engine_are_not_counted_as_wrong() -> None:
    """A rollout of agents goes on without its engine, and fails member by member."""

    async def agent(task: Task, client: Client) -> list[Trajectory]:
        await asyncio.sleep(100)
        return [Trajectory.failed("the engine failed")]

    async def go() -> None:
        told = Told()
        evaluate = beside(told, agent)
        await evaluate.published(handle(2))
        await asyncio.sleep(1)
        evaluate.remove("evaluator", "cut")
        await evaluate.finish()
        assert told.found == []
        assert asyncio.get_running_loop().time() < 2, "at once"

    run_fast(go())
