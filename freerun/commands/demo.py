"""`freerun demo`: from nothing to a policy that has learned, on a laptop, with every part of the real system.

A model of 0.1M parameters is made, learns supervised until it reverses five letters now and then, and gets good at it
by asynchronous reinforcement learning.
"""

import json
import random
import time
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

from freerun.commands.progress import LessonProgress
from freerun.config.load import load_config
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder
from freerun.run import training
from freerun.run.prepare import prepare, prepare_sft
from freerun.run.supervised import sft

Loaded = tuple[RunConfig, Origins]
"""A configuration, and where its values come from."""
LETTERS = "abcdefghij"
LENGTH = 5
HELD_OUT, RL_TASKS, SFT_TASKS = 512, 4_096, 16_384
WARM_UP = (
    "name=demo-warm-up", "train.lr=1e-3", "train.warmup_steps=1", "train.decay_steps=0", "control.groups_per_step=128",
    "sft.until=0.35", "evaluate.every=10", "control.steps=2000",
)  # fmt: skip


async def run_demo(seed: int, max_staleness: int, steps: int | None, runs: Path = Path("runs")) -> str:
    """The demo's last line."""
    start_s = time.monotonic()
    made = RunFolder.create(runs, "demo-start")
    make_model(made.path / "model", LETTERS + ">", seed)
    write_tasks(made.path, seed)
    print(f"1 of 2: a tiny model, made from nothing in {made.path}, learns from answers until it gets a third right")
    warm_up = demo_config(made.path, seed, *WARM_UP, f"data.source={made.path / 'sft.jsonl'}")
    changes = [f"control.max_staleness={max_staleness}"]
    changes += [f"control.steps={steps}", f"train.decay_steps={steps}"] if steps else []
    return await learn(start_s, warm_up, lambda model: demo_config(made.path, seed, f"model.path={model}", *changes))


async def learn(start_s: float, warm_up: Loaded, then: Callable[[Path], Loaded]) -> str:
    """Supervised training, then reinforcement learning from the model that came of it; a line that says what it
    gained. `start_s` is when the demo began."""
    warm = await learn_from_answers(warm_up)
    print("2 of 2: now it learns from rewards alone, generating and training at the same time in two processes")
    return await learn_from_rewards("demo", start_s, then(warm))


async def learn_from_answers(loaded: Loaded) -> Path:
    """The folder of the model that came of it."""
    prepared = prepare_sft(*loaded)
    warm = await sft(prepared, [LessonProgress(prepared.config.control.steps)])
    return warm.checkpoints / "last"


async def learn_from_rewards(called: str, start_s: float, loaded: Loaded) -> str:
    """A line that says what it gained."""
    prepared = prepare(*loaded)
    outcome = await training.train(prepared)
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    stalest = max(record.staleness_max for record in outcome.steps)
    print(f"look at {outcome.folder.report}")
    return (
        f"{called}: reward {first.reward_mean:.2f} -> {last.reward_mean:.2f} in {time.monotonic() - start_s:.0f} s, "
        f"staleness max {stalest} (bound {prepared.config.control.max_staleness})"
    )


def demo_config(made: Path, seed: int, *overrides: str) -> Loaded:
    """The demo's settings, with the model and the tasks in that folder."""
    paths = [f"model.path={made / 'model'}", f"data.source={made / 'train.jsonl'}", f"runs={made.parent}"]
    paths += [f"held_out.source={made / 'held_out.jsonl'}", f"seed={seed}"]
    with as_file(files("freerun.commands") / "demo.yaml") as file:
        return load_config(file, [*paths, *overrides])


def write_tasks(folder: Path, seed: int) -> None:
    """Three disjoint sets of words: held out, to learn from rewards, and to learn from answers."""
    dice = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < HELD_OUT + RL_TASKS + SFT_TASKS:
        words["".join(dice.choices(LETTERS, k=LENGTH))] = None
    left = list(words)
    for name, count in (("held_out", HELD_OUT), ("train", RL_TASKS), ("sft", SFT_TASKS)):
        taken, left = left[:count], left[count:]
        rows = [{"prompt": f"{word}>", "answer": word[::-1]} for word in taken]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
