"""Nothing that an answer does costs another its reward: honest answers among random hostile ones, all in one run."""

import asyncio
import random
from textwrap import dedent

import pytest

from freerun.core import ConfigError, Task
from freerun.rewards.base import JudgeReason
from freerun.rewards.code.judge import Code
from freerun.rewards.config import RewardConfig
from freerun.rewards.service import JudgeService
from tests.sandbox.hostile import BOMBS, ESCAPES, FORGERIES
from tests.sandbox.test_limits import UNMAPPED_MEMORY, UNWAITED_CHILDREN

CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(-4) == 16\n"
TASK = Task("squares", "", [], extra={"test": CHECK, "entry_point": "square"})
RIGHT = [
    "def square(n): return n * n",
    "def square(n): return sum(abs(n) for _ in range(abs(n)))",
    "square = lambda n: n ** 2",
]
WRONG = ["def square(n): return n + n", "def square(n): raise ValueError", "def square(n): return None", "square = 9"]
NAMES = """
import ctypes, time
ctypes.CDLL(None).prctl(15, bytes([255, 254, 41, 32, 82]), 0, 0, 0)
end = time.monotonic() + 0.1
while time.monotonic() < end: pass
def square(n): return None
"""
HOSTILE = [
    *BOMBS.values(),
    *ESCAPES.values(),
    *FORGERIES.values(),
    UNMAPPED_MEMORY,
    UNWAITED_CHILDREN.format(seconds=0.01),
]


@pytest.mark.parametrize("seed", range(2))
async def test_honest_answers_get_what_they_earned(seed: int) -> None:
    try:
        Code().check(timeout_s=10)
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    chance = random.Random(seed)
    hostile = [(dedent(text), 0.0) for text in [*chance.sample(HOSTILE, 14), NAMES, NAMES]]
    honest = [(chance.choice(RIGHT), 1.0) for _ in range(30)] + [(chance.choice(WRONG), 0.0) for _ in range(30)]
    answers = hostile + honest
    chance.shuffle(answers)
    limits = {"cpu_s": 0.5, "wall_s": 2.0, "memory_mb": 256}
    async with JudgeService(RewardConfig(judge={"name": "code", **limits}, workers=2), retries=0) as service:
        verdicts = await asyncio.gather(*(service.judge(TASK, text) for text, _ in answers))
    for (text, earned), verdict in zip(answers, verdicts, strict=True):
        assert verdict.reward == earned, (text, verdict)
    assert set(service.counts) <= {JudgeReason.OK, JudgeReason.UNPARSEABLE}
