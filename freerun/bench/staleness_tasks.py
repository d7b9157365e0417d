"""What `freerun bench staleness` teaches: by name, the tasks and the settings they need.

    reverse          the demo's five letters, by a model of 0.1M parameters that is made on the spot, one for each seed
    chain_sum        reasoning-gym's sums of 2 or 3 one-digit numbers, as they are
    chain_sum-hard   3 or 4 two-digit numbers; the warm-up shows sums worked out term by term
    gsm8k            grade-school problems; the warm-up shows their worked solutions

Each becomes three files of prompts and answers: `train`, `held_out`, and `sft` for the warm-up, which for gsm8k are the
solutions of the problems to train on; else no two share a task, but by chance.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from freerun.commands.demo import write_tasks
from freerun.core import ConfigError, DataError
from freerun.core.text import did_you_mean
from freerun.data.config import DataConfig
from freerun.data.rows import Row
from freerun.data.sources import read_source

NUM_TRAIN, NUM_HELD_OUT, NUM_SFT = 16_384, 256, 16_384
_SEEDS = {"train": 0, "held_out": 1_000_000, "sft": 2_000_000}
"""Far apart: task i of seed s is task i + 1 of seed s − 1."""
_STEP = re.compile(r"([+-]) (\d+)")


@dataclass(frozen=True)
class WarmUpPlan:
    """Supervised steps before the sweep: at most `steps`, and none after that share of answers is right."""

    lr: float
    groups: int
    steps: int
    until: float | None = None


@dataclass(frozen=True)
class Lesson:
    """`write` makes the three files in a folder, of a folder that may have the data, for a seed."""

    write: Callable[[Path, str | None, int], None]
    settings: tuple[str, ...]
    warm_up: WarmUpPlan | None
    lr: float
    steps: int
    answers: int
    """To each held-out task, when a run is over."""
    own_model: bool = False
    """Whether each seed makes its model and its tasks itself."""


def _reverse(folder: Path, data: str | None, seed: int) -> None:
    _refuse(data, "reverse")
    write_tasks(folder, seed)


def _chain_sum(folder: Path, data: str | None, seed: int) -> None:
    _refuse(data, "chain_sum")
    _write_sums(folder, terms=(2, 3), digits=1)


def _chain_sum_hard(folder: Path, data: str | None, seed: int) -> None:
    _refuse(data, "chain_sum-hard")
    _write_sums(folder, terms=(3, 4), digits=2)


def _gsm8k(folder: Path, data: str | None, seed: int) -> None:
    """As published, from the hub or from a folder with train.jsonl and test.jsonl."""
    for split in ("train", "test"):
        if data is None:
            config = DataConfig(source="hub:openai/gsm8k", subset="main", split=split)
        else:
            config = DataConfig(source=str(Path(data) / f"{split}.jsonl"))
        rows = read_source(config).rows
        pairs = [{"prompt": row["question"], "answer": row["answer"]} for row in rows]
        for name in ("train", "sft") if split == "train" else ("held_out",):
            _write(folder, name, pairs if name != "held_out" else pairs[: 2 * NUM_HELD_OUT])


LESSONS = {
    "reverse": Lesson(
        _reverse,
        (
            *("reward.judge=exact", "rollout.max_new_tokens=8", "data.max_prompt_tokens=16"),
            *("held_out.max_prompt_tokens=16", "engine.cache_tokens=16384", "train.weight_decay=0.01"),
        ),
        WarmUpPlan(lr=1e-3, groups=128, steps=2_000, until=0.4),
        lr=3e-4,
        steps=150,
        answers=4,
        own_model=True,
    ),
    "chain_sum": Lesson(
        _chain_sum,
        (
            *("reward.judge=number", "rollout.max_new_tokens=48", "control.groups_per_step=32"),
            *("train.eps=1e-8", "engine.cache_tokens=65536"),
        ),
        None,
        lr=2e-5,
        steps=100,
        answers=4,
    ),
    "chain_sum-hard": Lesson(
        _chain_sum_hard,
        (
            *("reward.judge=number", "rollout.max_new_tokens=80", "control.groups_per_step=32"),
            *("train.eps=1e-8", "engine.cache_tokens=65536"),
        ),
        WarmUpPlan(lr=1e-4, groups=64, steps=400, until=0.3),
        lr=2e-5,
        steps=100,
        answers=4,
    ),
    "gsm8k": Lesson(
        _gsm8k,
        (
            *("reward.judge=number", "rollout.max_new_tokens=320", "control.groups_per_step=32"),
            *("train.eps=1e-8", "engine.cache_tokens=131072"),
        ),
        WarmUpPlan(lr=1e-4, groups=64, steps=350),
        lr=2e-5,
        steps=80,
        answers=2,
    ),
}


def find_lesson(name: str) -> Lesson:
    if name not in LESSONS:
        raise ConfigError(f"--task {name} is not known; it is {', '.join(LESSONS)}{did_you_mean(name, LESSONS)}")
    return LESSONS[name]


def _refuse(data: str | None, task: str) -> None:
    if data is not None:
        raise ConfigError(f"--data {data}: {task} makes its tasks itself; leave it out")


def _write_sums(folder: Path, terms: tuple[int, int], digits: int) -> None:
    for name, count in (("train", NUM_TRAIN), ("held_out", NUM_HELD_OUT), ("sft", NUM_SFT)):
        options = {"min_terms": terms[0], "max_terms": terms[1], "min_digits": digits, "max_digits": digits}
        options["seed"] = _SEEDS[name]
        rows = read_source(DataConfig(source="reasoning-gym:chain_sum", options=options, limit=count)).rows
        _write(folder, name, map(_worked if name == "sft" else _asked, rows))


def _asked(row: Row) -> Row:
    return {"prompt": row["question"], "answer": row["answer"]}


def _worked(row: Row) -> Row:
    """With the sum worked out: a line for each term, whose last number is the answer."""
    return {"prompt": row["question"], "answer": "\n".join(worked(row["metadata"]["expression"]))}


def worked(expression: str) -> Iterator[str]:
    """12 + 34 - 5: first "12 + 34 = 46", then "46 - 5 = 41"."""
    first, rest = expression.split(" ", 1)
    total = int(first)
    steps = _STEP.findall(rest)
    if f"{first} " + " ".join(f"{sign} {number}" for sign, number in steps) != expression:
        raise DataError(f"reasoning-gym made a chain_sum that cannot be read: {expression}")
    for sign, number in steps:
        before, total = total, total + int(sign + number)
        yield f"{before} {sign} {number} = {total}"


def _write(folder: Path, name: str, rows: Iterable[Row]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
