"""A user's rollout in the loop: its rewards are taken, its failures cost their group alone and are counted."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from freerun.control.judging import verdicts_on
from freerun.core import DropReason, FinishReason, FreerunError, Sample, Task
from freerun.core.groups import Stage
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Sampling
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rollouts.base import GroupRollout
from freerun.rollouts.client import RolloutClient
from freerun.rollouts.own import OwnRollout
from tests.control.test_promises import Letters, PatientControl, World, audit
from tests.fakeclock import run_fast


class Talking(World):
    """Members answer; where the seed of the task says so, one of them or the whole rollout raises."""

    def rollout(self) -> GroupRollout:
        tokenizer: Any = Letters()
        return OwnRollout(self.talk, tokenizer, Sampling(64), self.group_size, self.note)

    async def talk(self, task: Task, client: RolloutClient) -> list[Trajectory]:
        number = int(task.id.removeprefix("task-"))
        completions = [completion async for completion in client.generate(task.prompt_tokens, n=self.group_size)]
        if number % 5 == 1:
            raise ValueError(f"no such tool: {number}")
        prompt = len(task.prompt_tokens)
        found = []
        for completion in sorted(completions, key=lambda completion: completion.index):
            tokens = [*task.prompt_tokens, *completion.tokens]
            sampled = [False] * prompt + [True] * len(completion.tokens)
            versions = [-1] * prompt + list(completion.versions)
            logprobs = [0.0] * prompt + list(completion.logprobs)
            found.append(Trajectory(Sample(tokens, sampled, logprobs, versions, completion.finish, "x"), reward=0.25))
        if number % 5 == 2:
            found[0] = Trajectory.failed("the tool did not answer")
        return found


@pytest.mark.parametrize("seed", range(5))
def test_failures_cost_their_group_alone_and_are_counted(seed: int) -> None:
    world = run_fast(Talking(seed, steps=6, group_size=3).go())
    audit(world)
    assert len(world.batches) == 6
    drops = world.run.book.tally.dropped
    assert set(drops) <= {DropReason.ROLLOUT_ERROR, DropReason.RUN_ENDED}
    assert drops[DropReason.ROLLOUT_ERROR] >= 2
    dropped = {event.task for event in world.events if event.reason is DropReason.ROLLOUT_ERROR}
    assert dropped == {"task-1", "task-6"}
    assert sum("no such tool" in note for note in world.notes) == 1, "said once, however often it happens"
    assert sum("the tool did not answer" in note for note in world.notes) == 1
    judgements = world.run.book.tally.judgements
    assert judgements[JudgeReason.OWN] > judgements[JudgeReason.NO_ANSWER] > 0
    for batch in world.batches:
        for group in batch.groups:
            assert group.rewards == [0.25] * (2 if int(group.task.id[5:]) % 5 == 2 else 3)


class GivesUpSoon(PatientControl):
    give_up_after: ClassVar[int] = 7


class Broken(Talking):
    async def talk(self, task: Task, client: RolloutClient) -> list[Trajectory]:
        raise ValueError("always")


def test_a_rollout_that_always_raises_ends_the_run_with_its_line() -> None:
    world = Broken(0, control=GivesUpSoon)
    with pytest.raises(FreerunError) as caught:
        run_fast(world.go())
    assert "the last 7 groups were all dropped (the last one: rollout_error: " in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    assert "ValueError: always" in str(caught.value)
    assert [event.stage for event in world.events].count(Stage.DROPPED) >= 7


class OnlyOne:
    waiting = 0

    def __init__(self) -> None:
        self.seen: list[JudgedSample] = []

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        self.seen += [answer for answer in answers if isinstance(answer, JudgedSample)]
        return [Verdict(1.0, JudgeReason.OK) for _ in answers]


async def test_the_judge_is_asked_only_where_there_is_something_to_judge() -> None:
    def sample(text: str) -> Sample:
        return Sample([1, 2], [False, True], [0.0, -1.0], [-1, 0], FinishReason.STOP, text)

    judge, task = OnlyOne(), Task("t", "<u>?", [1], extra={"prompt": "?"})
    said = [{"role": "user", "content": "hello"}]
    members = [
        Trajectory(sample("a"), reward=-2),
        Trajectory(sample("b"), said),
        Trajectory.failed("gone"),
        Trajectory(sample("c")),
    ]
    verdicts = await verdicts_on(judge, task, members)
    assert [(verdict.reward, verdict.reason.value) for verdict in verdicts] == [
        (-2.0, "own"),
        (1.0, "ok"),
        (None, "no_answer"),
        (1.0, "ok"),
    ]
    spoken = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "c"}]
    assert [(seen.text, seen.messages) for seen in judge.seen] == [("b", said), ("c", spoken)]
    await verdicts_on(judge, task, members[:1])
    assert len(judge.seen) == 2, "nobody was asked"
