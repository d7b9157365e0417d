"""`freerun bench async`: the loop at several bounds of staleness, synchronous (η = 0) among them, in one run."""

import json

from rich.console import Console

from freerun.bench.gpu_memory import GpuMemory
from freerun.bench.loop import Measured, Way, record, started, table
from freerun.bench.work import Work
from freerun.engines.config import OnUpdate


async def bench_async(work: Work, etas: list[int], steps: int, on_update: OnUpdate, json_only: bool) -> None:
    """On a GPU, engine and trainer have all of it whenever the other rests. On a CPU that takes threads: where the two
    take turns each has both cores, and one where they run at the same time."""
    turns, beside = [eta for eta in etas if eta == 0], [eta for eta in etas if eta]
    sittings = {1: etas} if work.on_gpu else {2: turns, 1: beside}
    runs: list[Measured] = []
    memory: GpuMemory | None = None
    with work.model_folder() as model:
        for threads, sitting in sittings.items():
            if sitting:
                async with started(work, model, threads) as loop:
                    runs += [await loop.measure(Way(eta, on_update), steps) for eta in sitting]
                    memory = loop.memory
    show(work, runs, json_only, memory)


def show(work: Work, runs: list[Measured], json_only: bool, memory: GpuMemory | None = None) -> None:
    first, *others = sorted(runs, key=lambda run: run.max_staleness)
    ratios = {run.max_staleness: run.tokens_per_s / first.tokens_per_s for run in others}
    console = Console(stderr=json_only, highlight=False)
    console.print(table(work, {f"η = {run.max_staleness}": run for run in (first, *others)}))
    for eta, ratio in ratios.items():
        console.print(f"η = {eta}: {ratio:.2f} times as many tokens a second as at η = {first.max_staleness}")
    console.print("(of those generated and those trained on, the fewer)")
    print(json.dumps(record("async", work, runs, memory) | {"ratios": ratios}))
