"""`freerun judge`: judge answers from a file. No model and no run: rows in, verdicts out."""

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freerun.config.load import load_section
from freerun.control.waiting import together
from freerun.core import ConfigError, DataError, FinishReason, Task
from freerun.core.task import Message
from freerun.core.text import did_you_mean
from freerun.data.config import DataConfig
from freerun.data.rows import Row, listed
from freerun.data.sources import read_source
from freerun.data.tasks import as_text, tasks_to_judge
from freerun.machine.host import processors
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rewards.config import RewardConfig
from freerun.run.judges import judging_alone

TEXT_KEYS = ("text", "completion")
_WAITING = 64
"""Answers under way for each worker: enough that none is ever idle, few enough for any file."""
_BINS = 10


@dataclass(frozen=True)
class Answer:
    task: Task
    text: str
    sample: JudgedSample | None = None
    """What there is to see of it besides its text, for judges that ask for the whole sample."""


@dataclass(frozen=True)
class Keys:
    """The columns of the file."""

    prompt: str = "prompt"
    answer: str | None = None
    """None: "answer", if there is one."""
    text: str | None = None
    """None: the first of TEXT_KEYS that there is."""


def reward_of(judge: str, workers: int | None, timeout_s: float | None) -> RewardConfig:
    """The configuration for a judge given by name, or as a run's file would write it, or by such a file; checked."""
    if judge.endswith((".yaml", ".yml")):
        config = load_section("reward", RewardConfig, Path(judge))
    else:
        config = RewardConfig(judge=_parsed(judge), workers=processors())
    changes = {"workers": workers, "timeout_s": timeout_s}
    config = config.model_copy(update={key: value for key, value in changes.items() if value is not None})
    config.check()
    return config


def _parsed(judge: str) -> Any:
    if not judge.startswith(("[", "{")):
        return judge
    try:
        return yaml.safe_load(judge)
    except yaml.YAMLError as error:
        raise ConfigError(f"--reward {judge!r} is not YAML: {' '.join(str(error).split())}") from None


def read_answers(file: Path, keys: Keys) -> list[Answer]:
    answer_key = keys.answer or "answer"
    source = read_source(DataConfig(source=str(file), prompt_key=keys.prompt, answer_key=answer_key))
    answers = []
    for task, row in zip(tasks_to_judge(source), source.rows, strict=True):
        key = keys.text or next((key for key in TEXT_KEYS if key in row), TEXT_KEYS[0])
        for needed, option in ((key, "--text-key"), *([(keys.answer, "--answer-key")] if keys.answer else [])):
            if needed not in row:
                near = did_you_mean(needed, row)
                raise DataError(f'row {task.id} has no "{needed}"; its keys are {listed(row)}: set {option}{near}')
        answers.append(Answer(task, text := as_text(row[key]), _sample(row, keys.prompt, key, text)))
    return answers


def _sample(row: Row, prompt_key: str, text_key: str, text: str) -> JudgedSample:
    """As far as the row tells: its "messages", else prompt and answer; its "finish_reason". Its group is itself."""
    messages: list[Message] = row.get("messages", [])
    if not _is_conversation(messages):
        messages = [*_as_messages(row.get(prompt_key, ""), "user"), *_as_messages(row[text_key], "assistant")]
    finish = str(row.get("finish_reason", FinishReason.STOP))
    known = FinishReason(finish) if finish in set(FinishReason) else FinishReason.STOP
    return JudgedSample(text, messages, known)


def _as_messages(value: Any, role: str) -> list[Message]:
    return value if _is_conversation(value) else [{"role": role, "content": as_text(value)}]


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


async def judge(
    config: RewardConfig, answers: list[Answer], out: Path | None, progress: Callable[[], None]
) -> list[Verdict]:
    """The verdicts in the order of the answers; with `out`, a line of JSON for each, written as they come."""
    config.check_tasks([answer.task for answer in answers])
    never = len(answers) + 1  # they are all shown in the end
    with _written(out) as write:
        async with judging_alone(config, give_up_after=never) as service:
            return await judge_all(
                service.judge,
                answers,
                at_once=config.processes * _WAITING,
                ended=progress,
                next_is=lambda answer, verdict: write(_line(answer, verdict)),
            )


@contextmanager
def _written(out: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line to the file. A failure to write is a ConfigError."""

    def refuse(error: OSError) -> ConfigError:
        return ConfigError(f"--out {out} cannot be written: {error.strerror}")

    try:
        file = open(out or os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    except OSError as error:
        raise refuse(error) from None

    def write(line: str) -> None:
        try:
            file.write(line)
            file.flush()
        except OSError as error:
            raise refuse(error) from None

    try:
        yield write
    finally:
        with suppress(OSError):  # a failure to write has been reported
            file.close()


def refuse_to_overwrite(out: Path | None, inputs: Iterable[Path]) -> None:
    """Also by a link to one of them."""
    for file in inputs:
        if out is not None and out.exists() and file.exists() and out.samefile(file):
            raise ConfigError(f"--out {out} would overwrite {file}, which is read: name another file")


async def judge_all(
    judge: Callable[[Task, str | JudgedSample], Awaitable[Verdict]],
    answers: Sequence[Answer],
    at_once: int,
    ended: Callable[[], object] = lambda: None,
    next_is: Callable[[Answer, Verdict], object] = lambda answer, verdict: None,
) -> list[Verdict]:
    """The verdicts in the order of the answers, in whatever order they come: one that hangs holds up no other.

    `ended` is called for each as it comes, `next_is` with each in order, as soon as those before it are there.
    """
    ahead: dict[int, Verdict] = {}
    verdicts: list[Verdict] = []
    waiting = iter(enumerate(answers))

    async def take_turns() -> None:
        for place, answer in waiting:
            ahead[place] = await judge(answer.task, answer.sample or answer.text)
            ended()
            while len(verdicts) in ahead:
                verdicts.append(ahead.pop(len(verdicts)))
                next_is(answers[len(verdicts) - 1], verdicts[-1])

    await together(*(take_turns() for _ in range(min(at_once, len(answers)))))
    return verdicts


def _line(answer: Answer, verdict: Verdict) -> str:
    told = {"id": answer.task.id, "reward": verdict.reward, "reason": verdict.reason, "detail": verdict.detail}
    return json.dumps(told, ensure_ascii=False) + "\n"


def show(answers: list[Answer], verdicts: list[Verdict], console: Console) -> None:
    """Two tables: how judgements ended, and the rewards."""
    reasons = Table("reason", "answers", "share", "the first one", box=None, header_style="dim")
    for reason, count in Counter(verdict.reason for verdict in verdicts).most_common():
        first = next(index for index, verdict in enumerate(verdicts) if verdict.reason is reason)
        said = verdicts[first].detail.partition("\n")[0]
        told = "" if reason is JudgeReason.OK else escape(f"{answers[first].task.id}: {said}")
        reasons.add_row(reason.value, str(count), f"{count / len(verdicts):.1%}", told)
    console.print(reasons)
    rewards = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    if not rewards:
        return
    table = Table("reward", "answers", "share", "", box=None, header_style="dim")
    for label, count in distribution(rewards):
        table.add_row(label, str(count), f"{count / len(rewards):.1%}", "█" * round(30 * count / len(rewards)))
    console.print(table)
    console.print(f"mean reward {sum(rewards) / len(rewards):.4g} of {len(rewards)} judged", highlight=False)


def distribution(rewards: list[float]) -> list[tuple[str, int]]:
    """Each reward, where there are few different ones; else ten bins of equal width."""
    counts = Counter(rewards)
    if len(counts) <= _BINS:
        return [(f"{reward:g}", counts[reward]) for reward in sorted(counts)]
    low, high = min(rewards), max(rewards)
    width = (high - low) / _BINS
    bins = Counter(min(int((reward - low) / width), _BINS - 1) for reward in rewards)
    return [(f"{low + width * index:.3g} to {low + width * (index + 1):.3g}", bins[index]) for index in range(_BINS)]
