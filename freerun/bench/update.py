"""`freerun bench update`: at new weights, running answers keep their caches, have them rebuilt, or the engine chooses
for each (`engine.on_update: auto`).

What counts is tokens a second × effective samples, (Σρ)² / (n Σρ²) of the ratios ρ = π_proximal / π_behavior: caches
that are kept cost no time, and make what is sampled worth less. How much less depends on how far the weights move, so
on `train.lr` and on lengths.
"""

import json
from collections.abc import Sequence
from statistics import fmean

from rich.console import Console

from freerun.bench.loop import Measured, Way, record, started, table
from freerun.bench.work import Work
from freerun.engines.config import OnUpdate

POLICIES: tuple[OnUpdate, ...] = ("keep", "recompute", "auto")


async def bench_update(work: Work, max_staleness: int, steps: int, json_only: bool) -> None:
    """There and back on the same processes, so that what changes on the way is as often before as behind."""
    ways = [Way(max_staleness, policy) for policy in (*POLICIES, *reversed(POLICIES))]
    with work.model_folder() as model:
        async with started(work, model) as loop:
            runs = [await loop.measure(way, steps) for way in ways]
    show(work, runs, json_only)


def show(work: Work, runs: Sequence[Measured], json_only: bool) -> None:
    worth = {policy: fmean(run.effective_per_s for run in runs if run.on_update == policy) for policy in POLICIES}
    ratio = worth["auto"] / max(worth["keep"], worth["recompute"])
    console = Console(stderr=json_only, highlight=False)
    names = {f"{run.on_update}{' again' if place >= len(POLICIES) else ''}": run for place, run in enumerate(runs)}
    console.print(table(work, names))
    told = ", ".join(f"{policy} {value:,.0f}" for policy, value in worth.items())
    console.print(f"effective tokens a second: {told}; auto has {ratio:.2f} times those of the better of the others")
    print(json.dumps(record("update", work, list(runs)) | {"effective_per_s": worth, "ratio": ratio}))
