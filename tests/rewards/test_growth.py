"""How many workers a pool has: as many as it begins with, and more where they mostly wait."""

import asyncio
import time
from pathlib import Path

import pytest

from freerun.core import Task
from freerun.machine.proc import used
from freerun.rewards.config import MOST_WORKERS, RewardConfig
from freerun.rewards.growth import Growth, Spent
from freerun.rewards.pools import pools_of
from freerun.rewards.service import JudgeService

GIB = 1 << 30


def spent(busy_s: float = 1.0, cpu_s: float = 0.01, ready_s: float = 0.0, own: int = 10 << 20) -> Spent:
    return Spent(1.0, busy_s, cpu_s, ready_s, own)


def test_workers_that_wait_become_more_and_those_that_compute_do_not() -> None:
    growth = Growth(processors=2, most=32, memory_bytes=GIB)
    assert growth.workers(2, 5, spent(busy_s=2.0)) == 4
    assert growth.workers(32, 5, spent(busy_s=32.0)) == 32
    assert growth.workers(2, 0, spent(busy_s=2.0)) == 2, "nothing waits for them"
    assert growth.workers(2, 5, spent(busy_s=1.0)) == 2, "they are not all needed"
    assert growth.workers(2, 5, spent(busy_s=2.0, cpu_s=2.0)) == 2
    assert growth.workers(2, 5, spent(busy_s=2.0, cpu_s=0.5, ready_s=1.5)) == 2, "it would compute, if it could"
    assert growth.workers(4, 5, spent(busy_s=4.0, cpu_s=1.6)) == 5, "two processors are full with five"
    assert growth.workers(4, 5, spent(busy_s=4.0, own=200 << 20)) == 5, "as many as fit into memory"


def test_it_grows_only_where_nobody_has_said_how_many_and_more_may_help(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def judge(task, text): return 1.0")
    mine = f"{tmp_path / 'mine.py'}:judge"

    def most(planned: bool = True, **settings: object) -> list[int]:
        config = RewardConfig.model_validate(settings)
        return [pool.most for pool in pools_of(config.beside(1, cores=4) if planned else config, retries=0)]

    assert most(judge=mine) == [MOST_WORKERS]
    assert most(planned=False, judge=mine) == [MOST_WORKERS]
    assert most(judge=mine, workers=2) == [0]
    assert most(judge=[{"name": mine, "workers": 2}]) == [0]
    assert most(judge="math") == [0], "it computes"
    assert most(judge=[{"name": "http", "url": "http://localhost:1"}], workers=2) == [MOST_WORKERS]


@pytest.mark.skipif(used(1) is None, reason="needs /proc of Linux")
@pytest.mark.parametrize(("body", "grows"), [("time.sleep(0.02)", True), ("compute(0.02)", False)])
async def test_a_judge_that_sleeps_gets_more_workers_and_one_that_computes_keeps_its_own(
    tmp_path: Path, body: str, grows: bool
) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "def compute(seconds):\n    end = time.thread_time() + seconds\n    while time.thread_time() < end: pass\n"
        f"def judge(task, text):\n    {body}\n    return 1.0\n"
    )
    config = RewardConfig.model_validate({"judge": f"{tmp_path / 'slow.py'}:judge"}).beside(1, cores=2)
    async with JudgeService(config) as service:
        begun_s = time.monotonic()
        task = Task("t", "?", [1])
        await asyncio.gather(*(service.judge(task, f"answer {index}") for index in range(150)))
        took_s, load = time.monotonic() - begun_s, service.load
    assert load
    assert load.judged == 150
    assert load.judge_s >= 0.019
    assert load.queued_s > load.busy_s, "most waited for others"
    if grows:
        assert load.workers > 1
        assert load.cpu_share < 0.3
        assert took_s < 150 * 0.02
    else:
        assert load.workers == 1
        assert load.cpu_share > 0.7
