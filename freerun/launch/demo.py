"""`freerun demo`: from nothing to a policy that has learned, on a laptop, with every part of the real system.

A model of 0.16M parameters is made, learns supervised until it reverses five letters now and then, and gets good at it
by asynchronous reinforcement learning.
"""

import json
import random
import time
from importlib.resources import as_file, files
from pathlib import Path

from freerun.config.load import load_config
from freerun.core import FreerunError
from freerun.launch import local
from freerun.launch.prepare import prepare, prepare_sft
from freerun.launch.progress import SftProgress
from freerun.launch.tiny import make_model
from freerun.observe.folder import RunFolder

LETTERS = "abcdefghij"
LENGTH = 5
HELD_OUT = 256
RL_TASKS = 4_096
SFT_TASKS = 16_384


async def run_demo(seed: int, max_staleness: int, steps: int | None, runs: Path = Path("runs")) -> str:
    """The demo's last line."""
    folder = RunFolder.create(runs, "demo-start")
    make_model(folder.path / "model", LETTERS + ">", seed)
    write_tasks(folder.path, seed)
    print(f"1 of 2: supervised warm-up of a tiny model in {folder.path / 'model'}")
    start_s = time.monotonic()
    warm = await _warm_up(folder, seed)
    print("2 of 2: reinforcement learning; generation and training run at the same time, in two processes")
    overrides = [f"control.max_staleness={max_staleness}"] + ([f"control.steps={steps}"] if steps else [])
    outcome = await local.train(prepare(*_config(folder, seed, f"model.path={warm}", *overrides)))
    if not outcome.evaluations:
        raise FreerunError("the demo ended before its first evaluation")
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    stalest = max(record.staleness_max for record in outcome.steps)
    print(f"report: {outcome.folder.report}")
    return (
        f"demo: reward {first.reward_mean:.2f} -> {last.reward_mean:.2f} in {time.monotonic() - start_s:.0f} s, "
        f"staleness max {stalest} (bound {max_staleness})"
    )


async def _warm_up(folder: RunFolder, seed: int) -> Path:
    overrides = [
        "name=demo-warm-up", f"model.path={folder.path / 'model'}", f"data.source={folder.path / 'sft.jsonl'}",
        "train.lr=1e-3", "train.warmup_steps=1", "sft.batch_size=128", "sft.until=0.35", "sft.check_every=20", "sft.steps=4000",
    ]  # fmt: skip
    prepared = prepare_sft(*_config(folder, seed, *overrides))
    with SftProgress(prepared.config.sft.steps) as progress:
        done = await local.sft(prepared, progress.stepped, progress.evaluated)
    return done.checkpoints / "last"


def _config(folder: RunFolder, seed: int, *overrides: str):  # type: ignore[no-untyped-def]
    made = [
        f"seed={seed}", f"runs={folder.path.parent}", f"data.source={folder.path / 'train.jsonl'}",
        f"held_out.source={folder.path / 'held_out.jsonl'}",
    ]  # fmt: skip
    with as_file(files("freerun.launch") / "demo.yaml") as file:
        return load_config(file, [*made, *overrides])


def write_tasks(folder: Path, seed: int) -> None:
    """Three disjoint sets of words: to learn from answers, to learn from rewards, and held out."""
    dice = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < HELD_OUT + RL_TASKS + SFT_TASKS:
        words["".join(dice.choices(LETTERS, k=LENGTH))] = None
    left = list(words)
    for name, count in (("held_out", HELD_OUT), ("train", RL_TASKS), ("sft", SFT_TASKS)):
        taken, left = left[:count], left[count:]
        rows = [{"prompt": f"{word}>", "answer": word[::-1]} for word in taken]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
