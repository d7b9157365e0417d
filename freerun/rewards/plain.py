"""The simplest judges, `exact`, `number` and `constant`, and what all judges read from a task."""

from freerun.core import RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.numerals import last_number


def exact(task: Task, text: str) -> float:
    """1 if the text is the reference answer, ignoring white space around both."""
    return float(text.strip() == reference(task).strip())


def number(task: Task, text: str) -> Judged:
    """1 if the last number of the text equals the last number of the reference answer."""
    right = last_number(reference(task))
    if right is None:
        raise RewardError(f"task {task.id}: there is no number in its reference answer {task.answer!r}")
    found = last_number(text)
    if found is None:
        return Judged(0.0, JudgeReason.UNPARSEABLE, "the answer has no number, or one of unreasonable length")
    return Judged(float(found.same_as(right)))


def constant(task: Task, text: str) -> float:
    """1 for every answer: with a weight it moves what another judge gives, such as from 0 and 10 to -5 and 5."""
    return 1.0


TEACHER = "teacher"
"""The judge that is nobody: the teacher of `train.objective: distill` gives rewards with what it thinks of tokens."""


def teacher(task: Task, text: str) -> float:
    raise RewardError("only the teacher of train.objective=distill gives this reward: choose another judge")


def question(task: Task) -> str:
    """The prompt as it is in the data, without the chat template that the policy sees around it."""
    return str(task.extra.get("prompt") or task.prompt)


def reference(task: Task) -> str:
    if task.answer is None:
        raise RewardError(f"task {task.id} has no reference answer: set answer_key, or use another judge")
    return task.answer
