"""`freerun bench`: measurements of the whole loop, each next to its rival in the same run."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from freerun.config.load import load_config
from freerun.launch import local
from freerun.launch.prepare import prepare
from freerun.launch.tiny import make_model
from freerun.models.shape import read_shape
from freerun.observe.live import view
from freerun.observe.records import StepRecord
from freerun.rollouts.forced import ForcedLengths

MU, SIGMA, LONGEST = 4.0, 1.0, 1024
GROUPS, GROUP_SIZE = 8, 8


@dataclass(frozen=True)
class Measured:
    """One run of the loop, over the steps after its warm-up."""

    max_staleness: int
    tokens_per_s: float
    step_s: float
    engine_idle_share: float
    trainer_idle_share: float
    staleness_mean: float
    staleness_max: int

    @classmethod
    def of(cls, max_staleness: int, steps: list[StepRecord]) -> "Measured":
        wall_s, tokens = sum(s.step_s for s in steps), sum(s.tokens_trained for s in steps)
        return cls(
            max_staleness,
            tokens / wall_s,
            wall_s / len(steps),
            sum(s.engine_idle_s for s in steps) / wall_s,
            sum(s.trainer_idle_s for s in steps) / wall_s,
            sum(s.staleness_mean * s.tokens_trained for s in steps) / tokens,
            max(s.staleness_max for s in steps),
        )


async def bench_async(steps: int, max_staleness: int, json_only: bool) -> float:
    """The same work at η = 0 and at the given η; how many times as many tokens a second the latter trains on.

    At η = 0 engine and trainer take turns, so each gets both cores; beyond, they run at the same time with one each.
    """
    console = Console(stderr=json_only)
    with tempfile.TemporaryDirectory(prefix="freerun-bench-") as place:
        make_model(Path(place) / "model", "abcdefghij>", seed=0, hidden=128, layers=3)
        rows = [{"id": f"t{i}", "prompt": "abcdefghij>", "answer": "a"} for i in range(4096)]
        (Path(place) / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        parameters = read_shape(Path(place) / "model").num_parameters
        sync = await _measure(Path(place), 0, steps)
        ahead = await _measure(Path(place), max_staleness, steps)
    ratio = ahead.tokens_per_s / sync.tokens_per_s
    console.print(_table([sync, ahead], parameters))
    console.print(f"η = {max_staleness} trains on {ratio:.2f} times as many tokens a second as η = 0", highlight=False)
    print(json.dumps({"bench": "async", "runs": [asdict(sync), asdict(ahead)], "ratio": round(ratio, 3)}))
    return ratio


async def _measure(place: Path, max_staleness: int, steps: int) -> Measured:
    """Warm-up is as many steps as the pipeline is deep, and two."""
    warm_up = max_staleness + 2
    threads = 2 if max_staleness == 0 else 1
    overrides = [
        f"name=eta-{max_staleness}", f"runs={place}", f"model.path={place / 'model'}",
        f"data.source={place / 'tasks.jsonl'}", "data.max_prompt_tokens=16", f"rollout.group_size={GROUP_SIZE}",
        f"rollout.max_new_tokens={LONGEST}", f"control.groups_per_step={GROUPS}",
        f"control.max_staleness={max_staleness}", f"control.steps={warm_up + steps + max_staleness}",
        f"engine.max_running={GROUPS * GROUP_SIZE}", f"engine.threads={threads}", f"train.threads={threads}",
        "train.micro_batch_tokens=4096",
    ]  # fmt: skip
    prepared = prepare(*load_config(None, overrides))
    rollout = prepared.config.rollout
    forced = ForcedLengths(prepared.tokenizer, rollout.sampling(), rollout.group_size, MU, SIGMA)
    live = view(f"η = {max_staleness}", prepared.config.control.steps, max_staleness, Console(stderr=True))
    outcome = await local.train(prepared, live, forced)
    # The last η steps train on what is left in the pipeline: no generation stands against them.
    return Measured.of(max_staleness, outcome.steps[warm_up : warm_up + steps])


def _table(runs: list[Measured], parameters: int) -> Table:
    table = Table(
        title=f"{GROUPS} groups of {GROUP_SIZE} a step, forced lengths lognormal({MU:g}, {SIGMA:g}) up to {LONGEST}, "
        f"{parameters / 1e6:.1f}M parameters, on this machine's CPU"
    )
    for column in ("η", "tokens trained/s", "step", "engine idle", "trainer idle", "staleness mean", "max"):
        table.add_column(column, justify="right")
    for run in runs:
        table.add_row(
            str(run.max_staleness),
            f"{run.tokens_per_s:,.0f}",
            f"{run.step_s:.2f} s",
            f"{run.engine_idle_share:.0%}",
            f"{run.trainer_idle_share:.0%}",
            f"{run.staleness_mean:.2f}",
            str(run.staleness_max),
        )
    return table
