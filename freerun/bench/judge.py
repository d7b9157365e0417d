"""`freerun bench judge`: how fast answers are judged on this machine, what hangs cost, and whether memory grows; given
the data, also whether every right answer of GSM8K and HumanEval is accepted and every wrong one rejected."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from freerun.bench.figures import Figures, show
from freerun.commands.judge import Answer, judge_all
from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.sources import read_source
from freerun.data.tasks import tasks_to_judge
from freerun.machine.scratch import scratch_folder
from freerun.rewards.base import Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.numerals import last_number
from freerun.rewards.service import JudgeService
from freerun.sandbox.usage import usage_below

RightAndWrong = tuple[list[Answer], list[Answer]]

HANG_EVERY = 20
"""One answer in so many hangs."""
NEVER = 1 << 30
"""Failures in a row that end a benchmark."""
DEADLINE_S = 0.5
"""The deadline of the judge that hangs."""

MATH = [
    # of n: the reference, and a right answer in other clothes
    ("{n}", "So there are {n} of them.\n#### {n}"),
    ("{n},500", r"That makes \boxed{{{n}{{,}}500}}."),
    (r"\frac{{{n}}}{{7}}", r"It is $\boxed{{\dfrac{{{n}}}{{7}}}}$."),
    (r"{n}\%", "The answer is {n} percent."),
    ("{n} cm", r"\boxed{{{n}0\text{{ mm}}}}"),
    (r"2\sqrt{{{n}}}", r"\boxed{{\sqrt{{4 \cdot {n}}}}}"),
    ("(x+{n})^2", r"\boxed{{x^2 + {n}x + {n}x + {n}^2}}"),
    (r"[{n},\infty)", r"\boxed{{x \ge {n}}}"),
    ("{n},-{n}", r"\boxed{{x = \pm {n}}}"),
    (r"\begin{{pmatrix}}{n}&0\\0&1\end{{pmatrix}}", r"\boxed{{\begin{{bmatrix}} {n} & 0 \\ 0 & 1 \end{{bmatrix}}}}"),
]
ENDLESS = ["9^{9^{9^9}}", "(2^{1000})^{1000000}", r"\binom{10000000}{5000000}", "((100!)!)!", "(a+b+c+d+e+f+g+h)^{50}"]
"""Boxed, they would keep math-verify busy past any deadline."""
HANGING_JUDGE = """
from freerun.rewards.math import math, warm_up
warm_up()
def reward(task, text):
    while text == "hang": pass
    return math(task, text)
"""
STYLES = [
    "First this, then that.\n#### {n}",
    r"Adding up, we get \boxed{{{n}}}.",
    "The answer is {n}.",
    "In the end that comes to ${n:,}.",
    r"Therefore \[ x = {n:,}.00 \]",
]
RIGHT_PROGRAMS = [
    "return max(values)",
    "best, *rest = values\n    for n in rest:\n        best = n if n > best else best\n    return best",
]
WRONG_PROGRAMS = ["pass", "return values[-1]"]


async def bench_judge(
    gsm8k: Path | None, humaneval: Path | None, answers: int, many: int, workers: int, json_only: bool
) -> dict[str, Figures]:
    """Each measurement with its figures."""
    console = Console(stderr=json_only, highlight=False)
    graded, solved = gsm8k and gold_answers(gsm8k), humaneval and solutions(humaneval)
    measured: dict[str, Figures] = {}
    with console.status("judging"):
        async with JudgeService(_config("math", workers), give_up_after=NEVER) as service:
            measured["math, 5% endless"] = await _endless(service, answers)
            measured["memory"] = await _memory(service, many)
            if graded:
                measured["GSM8K"] = await _told_apart(service, *graded)
        measured["math, 5% hang"] = await _hanging(answers, workers)
        async with JudgeService(_config("code", workers), give_up_after=NEVER) as service:
            await _told_apart(service, *programs(workers))  # the workers start their sandboxes
            measured["code"] = await _told_apart(service, *programs(answers // 10))
            if solved:
                measured["HumanEval"] = await _told_apart(service, *solved)
    show(measured, console)
    print(json.dumps({"bench": "judge", "workers": workers, **measured}))
    return measured


async def _endless(service: JudgeService, count: int) -> Figures:
    """Answers that nobody could compute cost a worker nothing: they are refused by their looks."""
    plain = sums(count)
    without_s = await _timed_warm(service, plain)
    with_s, verdicts = await _timed(service, _mixed(plain, [rf"\boxed{{{endless}}}" for endless in ENDLESS]))
    return {
        "answers": count,
        "accepted": _number_of(1.0, verdicts),
        "per_s": count / without_s,
        "per_s with them": count / with_s,
        "ratio": with_s / without_s,
    }


async def _hanging(count: int, workers: int) -> Figures:
    """A judge that really hangs: the ratio is to the time without hangs and what the deadlines alone take."""
    plain = sums(count)
    with scratch_folder() as folder:
        (folder / "hangs.py").write_text(HANGING_JUDGE)
        config = _config(f"{folder}/hangs.py:reward", workers, timeout_s=DEADLINE_S)
        async with JudgeService(config, give_up_after=NEVER) as service:
            without_s = await _timed_warm(service, plain)
            with_s, verdicts = await _timed(service, _mixed(plain, ["hang"]))
    killed = _number_of(None, verdicts)
    least_s = without_s + killed * DEADLINE_S / workers
    return {
        "answers": count,
        "accepted": _number_of(1.0, verdicts),
        "killed": killed,
        "s without": without_s,
        "s with": with_s,
        "s at least": least_s,
        "ratio": with_s / least_s,
    }


async def _memory(service: JudgeService, count: int) -> Figures:
    """The memory of this process and all it started, after a tenth of the judgements and after all of them."""
    plain = sums(max(count // 10, 1))
    megabytes = []
    for _ in range(10):
        await _timed(service, plain)
        megabytes.append(_memory_mb())
    return {"judgements": 10 * len(plain), "MB after a tenth": megabytes[0], "MB at the end": megabytes[-1]}


async def _told_apart(service: JudgeService, right: list[Answer], wrong: list[Answer]) -> Figures:
    took_s, verdicts = await _timed(service, right + wrong)
    return {
        "right": len(right),
        "right accepted": _number_of(1.0, verdicts[: len(right)]),
        "wrong": len(wrong),
        "wrong rejected": _number_of(0.0, verdicts[len(right) :]),
        "per_s": len(verdicts) / took_s,
    }


def gold_answers(file: Path) -> RightAndWrong:
    """GSM8K's answers, each in five styles; and what is one more or one less, in the same."""
    right, wrong = list[Answer](), list[Answer]()
    for task in tasks_to_judge(read_source(DataConfig(source=str(file), prompt_key="question"))):
        gold = last_number(task.answer or "")
        if gold is None or gold.value.denominator != 1:
            raise DataError(f"{file} is not GSM8K: the answer of {task.id} does not end with a whole number")
        for style in STYLES:
            right.append(Answer(task, style.format(n=int(gold.value))))
            wrong += [Answer(task, style.format(n=int(gold.value) + by)) for by in (1, -1)]
    return right, wrong


def solutions(file: Path) -> RightAndWrong:
    """HumanEval's solutions; and `pass` in their places."""
    tasks = tasks_to_judge(read_source(DataConfig(source=str(file))))
    if any("canonical_solution" not in task.extra for task in tasks):
        raise DataError(f"{file} is not HumanEval: a row has no canonical_solution")
    right = [Answer(task, task.extra["canonical_solution"]) for task in tasks]
    return right, [Answer(task, "    pass\n") for task in tasks]


def programs(count: int) -> RightAndWrong:
    """As many right as wrong ones."""
    tests = "def check(candidate):\n    assert candidate([3, 9, 2]) == 9\n    assert candidate([-1]) == -1\n"
    extra = {"prompt": "def largest(values):\n", "entry_point": "largest", "test": tests}

    def some_of(bodies: list[str]) -> list[Answer]:
        return [Answer(Task("largest", "", [], None, extra), f"    {bodies[n % len(bodies)]}\n") for n in range(count)]

    return some_of(RIGHT_PROGRAMS), some_of(WRONG_PROGRAMS)


def sums(count: int) -> list[Answer]:
    """Right answers of every kind, no two alike."""
    answers = []
    for n in range(count):
        reference, text = MATH[n % len(MATH)]
        answers.append(Answer(Task(str(n), "", [], reference.format(n=n + 11)), text.format(n=n + 11)))
    return answers


def _mixed(answers: Sequence[Answer], texts: Sequence[str]) -> list[Answer]:
    """One in twenty with one of these texts instead."""
    return [
        Answer(answer.task, texts[n // HANG_EVERY % len(texts)]) if n % HANG_EVERY == 0 else answer
        for n, answer in enumerate(answers)
    ]


def _config(judge: str, workers: int, timeout_s: float = 10.0) -> RewardConfig:
    """Every answer is judged, also one that was judged before."""
    every = {"name": judge, "cache": False}
    return RewardConfig(judge=every, workers=workers, timeout_s=timeout_s)


async def _timed(service: JudgeService, answers: Sequence[Answer]) -> tuple[float, list[Verdict]]:
    began = time.monotonic()
    verdicts = await judge_all(service.judge, answers, at_once=128)
    return time.monotonic() - began, verdicts


async def _timed_warm(service: JudgeService, answers: Sequence[Answer]) -> float:
    """The second time: the first fills what its libraries cache."""
    await _timed(service, answers)
    return (await _timed(service, answers))[0]


def _number_of(reward: float | None, verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.reward == reward for verdict in verdicts)


def _memory_mb() -> float:
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return (own + usage_below(os.getpid()).memory_bytes) / 1e6
