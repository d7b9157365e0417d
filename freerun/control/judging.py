"""Rewards for the members of a group: a rollout's own, or the judge's."""

from collections.abc import Sequence

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
