"""`freerun demo --preset NAME-small`: a published run's algorithm on a model that a laptop can train.

Three tiny tasks stand for the published ones: sums for mathematics, one-line programs for code, looking a number up for
tool use. A model of 0.1M parameters is made from nothing and learns from somebody careless, who is right one time in
three; then the preset trains it.
"""

import asyncio
import json
import operator
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.commands.demo import learn_from_answers, learn_from_rewards
from freerun.config.load import load_config
from freerun.config.preset import SMALL
from freerun.core import ConfigError
from freerun.core.files import atomic_folder
from freerun.models.tiny import make_model

Row = dict[str, Any]
HELD_OUT = 32
LESSONS = 12
"""What the careless one says to each question."""
RIGHT = 1 / 3
WARM_UP = ("train.lr=2e-3", "train.warmup_steps=10", "control.groups_per_step=128", "control.steps=400")


@dataclass(frozen=True)
class SmallTask:
    pieces: Iterable[str]
    """The model's tokens."""
    questions: Callable[[], Iterable[Row]]
    """Every question once: a prompt, and what a judge or the agent needs."""
    careless: Callable[[Row, random.Random], Iterator[Row]]
    """What somebody careless says to a question: prompts and answers, one for each turn."""
    chat_template: str | None = None
    marks: tuple[str, ...] = ()


def sums() -> Iterator[Row]:
    for left in range(12):
        for right in range(12):
            yield {"prompt": f"{left}+{right}=", "answer": str(left + right)}


def careless_sum(row: Row, dice: random.Random) -> Iterator[Row]:
    answer = row["answer"] if dice.random() < RIGHT else str(dice.randrange(23))
    yield {"prompt": row["prompt"], "answer": answer}


OPERATIONS = {"add": "+", "take": "-", "times": "*"}
COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
PROGRAM = "def f(x): return x"


def programs() -> Iterator[Row]:
    for word, sign in OPERATIONS.items():
        for number in range(10, 100):
            tests = [{"args": [x], "expected": COMPUTED[sign](x, number)} for x in (3, 8)]
            yield {
                "prompt": f"{word}{number}:",
                "tests": tests,
                "entry_point": "f",
                "program": f"{PROGRAM}{sign}{number}",
            }


def careless_program(row: Row, dice: random.Random) -> Iterator[Row]:
    right = row["program"]
    sign = right[len(PROGRAM)] if dice.random() < RIGHT else dice.choice(list(OPERATIONS.values()))
    yield {"prompt": row["prompt"], "answer": f"{PROGRAM}{sign}{right[-2:]}"}


def entries() -> Iterator[Row]:
    dice = random.Random(0)
    for key in range(10, 100):
        for _ in range(4):
            yield {"prompt": str(key), "answer": str(dice.randrange(10, 100))}


def careless_look_up(row: Row, dice: random.Random) -> Iterator[Row]:
    asked = {"role": "user", "content": row["prompt"]}
    if dice.random() > RIGHT:
        yield {"prompt": [asked], "answer": str(dice.randrange(10, 100))}
        return
    call = f"look {row['prompt']}"
    yield {"prompt": [asked], "answer": call}
    told = [asked, {"role": "assistant", "content": call}, {"role": "user", "content": row["answer"]}]
    yield {"prompt": told, "answer": row["answer"]}


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% if message.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TASKS = {
    "math": SmallTask((*map(str, range(23)), "+", "="), sums, careless_sum),
    "code": SmallTask((PROGRAM, *OPERATIONS, *OPERATIONS.values(), *"0123456789:"), programs, careless_program),
    "agent": SmallTask((*"0123456789", "look "), entries, careless_look_up, TEMPLATE, ("<user>", "<assistant>")),
}
"""By the name of the folder that a preset finds its model and its data in."""


async def run_small(
    preset: str, changes: Iterable[str] = (), runs: Path = Path("runs"), warm_up: Iterable[str] = WARM_UP
) -> str:
    """Make what the preset needs, unless it is there, and train. Returns a line that says what was gained."""
    start_s = time.monotonic()
    config, origins = load_config(None, [f"preset={preset}", f"runs={runs}", *changes])
    folder = Path(config.model.path).parent
    if not preset.endswith(SMALL) or folder.name not in TASKS:
        raise ConfigError(f"the preset {preset} is not for a laptop: choose {preset.removesuffix(SMALL)}{SMALL}")
    if not Path(config.model.path).is_dir():
        print(f"a tiny model, made from nothing in {folder}, learns from somebody careless")
        await _make(folder, runs, config.seed, warm_up)
    return await learn_from_rewards(preset, start_s, (config, origins))


async def _make(folder: Path, runs: Path, seed: int, warm_up: Iterable[str]) -> None:
    """The folder appears with all that is in it, or not at all."""
    task = TASKS[folder.name]
    with atomic_folder(folder) as made:
        make_model(made / "untaught", task.pieces, seed, chat_template=task.chat_template, marks=task.marks)
        await asyncio.to_thread(write_rows, task, made, seed)
        paths = (f"model.path={made / 'untaught'}", f"data.source={made / 'lessons.jsonl'}", f"runs={runs}")
        warm = await learn_from_answers(load_config(None, [*paths, f"name=small-{folder.name}-warm-up", *warm_up]))
        shutil.copytree(warm, made / "model")
        shutil.rmtree(made / "untaught")


def write_rows(task: SmallTask, folder: Path, seed: int) -> None:
    """Questions that are held out, questions to learn from by rewards, and what the careless one says to all of them:
    so little can be asked that a model this small learns it by heart."""
    dice = random.Random(seed)
    questions = list(task.questions())
    dice.shuffle(questions)
    lessons = [said for row in questions for _ in range(LESSONS) for said in task.careless(row, dice)]
    for name, rows in (("held_out", questions[:HELD_OUT]), ("train", questions[HELD_OUT:]), ("lessons", lessons)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
