"""Rewards for the members of a group: a rollout's own, or the judge's."""

from collections.abc import Sequence
from typing import Protocol

from freerun.core import Sample, Task
from freerun.core.trajectory import Trajectory, prompt_messages
from freerun.rewards.base import GroupJudge, JudgedSample, JudgeReason, Verdict


async def verdicts_on(judge: GroupJudge, task: Task, trajectories: Sequence[Trajectory]) -> list[Verdict]:
    """One for each. The judge sees those that have a sample and no reward of their own."""
    to_judge = {place: sample for place, one in enumerate(trajectories) if (sample := _unjudged(one))}
    answers = [seen(task, trajectories[place], sample) for place, sample in to_judge.items()]
    given = await judge.judge_all(task, answers) if answers else []
    judged = dict(zip(to_judge, given, strict=True))
    return [judged.get(place) or _without_judge(one) for place, one in enumerate(trajectories)]


class Teacher(Protocol):
    """Whoever says how likely it would have been to say the same."""

    rewards: bool
    """Whether that is the reward, too."""

    async def read(self, samples: Sequence[Sample]) -> None:
        """Give the samples their `teacher_logprobs`."""
        ...


async def taught(teacher: Teacher, trajectories: Sequence[Trajectory]) -> None:
    """Every sample is read by the teacher. Where that is the reward, a member's is the mean over its tokens of
    log π_teacher − log π_behavior: 0 for what the teacher would have said as well."""
    members = [one for one in trajectories if one.samples and one.error is None]
    await teacher.read([sample for member in members for sample in member.samples])
    for member in members if teacher.rewards else ():
        if member.reward is None:
            member.reward = _agreement(member.samples)


def _agreement(samples: Sequence[Sample]) -> float:
    gained, tokens = 0.0, 0
    for sample in samples:
        marks = sample.loss_mask
        assert sample.teacher_logprobs is not None
        gained += float((sample.teacher_logprobs - sample.behavior_logprobs)[marks].sum(dtype=float))
        tokens += int(marks.sum())
    return gained / max(tokens, 1)


def rewarded(trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict]) -> list[Sample]:
    """The samples that have a reward. One that could not be judged is left out: it is never silently a zero."""
    samples = []
    for member, (trajectory, verdict) in enumerate(zip(trajectories, verdicts, strict=True)):
        if verdict.reward is not None:
            for sample in trajectory.samples:
                sample.reward, sample.member = verdict.reward, member
                samples.append(sample)
    return samples


def unjudged(trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict]) -> list[Sample]:
    """The samples that `rewarded` leaves out, with their members."""
    samples = []
    for member, (trajectory, verdict) in enumerate(zip(trajectories, verdicts, strict=True)):
        if verdict.reward is None:
            for sample in trajectory.samples:
                sample.member = member
                samples.append(sample)
    return samples


def seen(task: Task, trajectory: Trajectory, sample: Sample) -> JudgedSample:
    said = trajectory.messages or [*prompt_messages(task), {"role": "assistant", "content": sample.text}]
    return JudgedSample(sample.text, said, sample.finish, sample.num_sampled)


def _unjudged(trajectory: Trajectory) -> Sample | None:
    return trajectory.sample if trajectory.reward is None and trajectory.error is None else None


def _without_judge(trajectory: Trajectory) -> Verdict:
    if trajectory.error is not None or trajectory.reward is None:
        return Verdict(None, JudgeReason.NO_ANSWER, trajectory.error or "")
    return Verdict(float(trajectory.reward), JudgeReason.OWN)
