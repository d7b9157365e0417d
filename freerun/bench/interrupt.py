"""`freerun bench interrupt`: new weights in the middle of answers, against letting the answers finish first."""

import json

from rich.console import Console

from freerun.bench.loop import Measured, Way, record, started, table
from freerun.bench.work import Work
from freerun.engines.config import OnUpdate


async def bench_interrupt(work: Work, max_staleness: int, steps: int, on_update: OnUpdate, json_only: bool) -> None:
    """One after the other on the same processes: what an update does to running answers is said with each."""
    ways = [Way(max_staleness, on_update), Way(max_staleness, "finish")]
    with work.model_folder() as model:
        async with started(work, model) as loop:
            interrupted, finished = [await loop.measure(way, steps) for way in ways]
    show(work, interrupted, finished, json_only)


def show(work: Work, interrupted: Measured, finished: Measured, json_only: bool) -> None:
    ratio = interrupted.tokens_per_s / finished.tokens_per_s
    generated = interrupted.generated_per_s / finished.generated_per_s
    runs = [interrupted, finished]
    console = Console(stderr=json_only, highlight=False)
    console.print(table(work, {"interrupted": interrupted, "finish first": finished}))
    console.print(
        f"answers that an update interrupts: {ratio:.2f} times as many tokens a second as where they finish first "
        f"(of those generated and those trained on, the fewer); {generated:.2f} times as many generated"
    )
    print(json.dumps(record("interrupt", work, runs) | {"ratio": ratio, "generated_ratio": generated}))
