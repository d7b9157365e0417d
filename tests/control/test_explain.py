"""What a long wait says: whose groups, where, since when."""

import asyncio
import random
from dataclasses import dataclass
from typing import ClassVar

from freerun.control.bound import Wait
from freerun.control.config import ControlConfig
from freerun.core import Batch, FinishReason, Group, Sample, Task, Version
from freerun.core.reports import EngineStats, JudgeLoad
from freerun.engines.scripted import Script, ScriptedEngine
from freerun.rewards.base import Verdict
from tests.control.test_lookahead import Steady
from tests.fakeclock import run_fast


class Minute(ControlConfig):
    patience_s: ClassVar[float] = 60.0


class Telling(ScriptedEngine):
    """Tells how far its longest answer is."""

    async def stats(self) -> EngineStats:
        return EngineStats(self.version, self.running, 0, self.tokens, 0.0, longest_tokens=7012, longest_most=8192)


@dataclass
class Odd(Steady):
    """Quick, but for what happens once: an answer, a judgement or a step that takes very long."""

    odd: str = ""
    odd_s: float = 100.0
    control: type[ControlConfig] = Minute
    engine_type: type[ScriptedEngine] = Telling

    def __post_init__(self) -> None:
        super().__post_init__()
        self._done = False

    def _now(self, what: str) -> bool:
        """Once, after ten steps."""
        now = what == self.odd and not self._done and len(self.ages) >= 10
        self._done |= now
        return now

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        super().learning(batch, masked_tokens)
        self.step_s = self.odd_s if self._now("step") else 3.0 if self.odd else self.step_s

    def _script(self, prompt: list[int], seed: int, index: int) -> Script:
        return Script(10, (self.odd_s if self._now("answer") else 1.0) / 10)

    async def judge(self, task: Task, text: str) -> Verdict:
        if self._now("judge"):
            await asyncio.sleep(self.odd_s)
        return Verdict(float(random.random() < 0.5), (await super().judge(task, text)).reason)


def told(odd: str, max_staleness: int = 1, **more: float) -> list[str]:
    world = Odd(1, steps=20, groups_per_step=4, group_size=2, max_staleness=max_staleness, odd=odd, **more)  # type: ignore[arg-type]
    run_fast(world.go())
    assert len(world.batches) == 20 or world.run.version == 20
    return world.notes


def test_a_long_answer_is_named_with_its_version_and_engine() -> None:
    first, *_ = told("answer")
    assert first.startswith("the trainer waits for 1 group of version ")
    assert "running on engine 0 for " in first


def test_a_healthy_run_says_nothing() -> None:
    assert told("nothing") == []


def test_a_judgement_that_does_not_end_is_named() -> None:
    first, *_ = told("judge")
    assert first.startswith("the trainer waits for judging: 1 group of version ")
    assert "being judged for " in first


def test_engines_that_may_begin_nothing_while_the_trainer_learns_are_named() -> None:
    first, *_ = told("step", max_staleness=0)
    assert first.startswith("the trainer learns from batch 10, which usually takes 3.1 s; engine 0 waits: ")
    assert "control.max_staleness 0 admits nothing until step 11 is learned (for " in first


def test_a_queue_for_the_judge_says_how_many_workers_would_do() -> None:
    world = Odd(1, steps=6, groups_per_step=8, group_size=8, step_s=0.3)
    run_fast(world.go())
    world.run.explain.judge_load = lambda: JudgeLoad(1, waiting=118, judged=5000, busy_s=5000 * 0.02, cpu_share=0.02)
    assert world.run.explain.judging() == (
        "judging is the bottleneck: 118 answers wait for 1 worker, each takes 20 ms; raise reward.workers to 5"
    )
    world.run.explain.judge_load = lambda: JudgeLoad(1, waiting=118, judged=118, busy_s=118 * 0.02, cpu_share=0.98)
    assert "it computes: make the judge faster" in world.run.explain.judging()


def test_a_group_that_holds_back_a_batch_is_found_by_the_bound() -> None:
    sample = Sample([1], [True], [-1.0], [1], FinishReason.STOP, "x")
    ready = [Group(number, Task(str(number), "?", [1]), [sample], 1) for number in range(3)]
    running: list[Version] = [0]
    assert Wait(1).late(ready, running, 1, 2) == 0, "it must be trained at version 1, with the two that are taken"
    assert Wait(3).late(ready, running, 1, 2) is None
