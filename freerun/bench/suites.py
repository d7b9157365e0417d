"""`freerun bench judge --suite FILE.jsonl`: the judge `math` beside plain math-verify, on answers with known verdicts.

A row is {"reference", "answer", "expected"}: the right answer, a model's text (or a bare answer), and whether the text
should be accepted (true, false, 1 or 0). Other keys are for whoever wrote the file.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from freerun.commands.judge import Answer, judge_all
from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.sources import read_source
from freerun.machine.scratch import scratch_folder
from freerun.rewards.base import Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.service import JudgeService

Figures = dict[str, float]

MATH_VERIFY = r"""
import logging
from math_verify import parse, verify
logging.disable()
def reward(task, text):
    written = any(sign in task.answer for sign in ("$", "\\(", "\\[", "\\boxed"))
    return float(verify(parse(task.answer if written else f"${task.answer}$"), parse(text)))
"""
"""As its manual has it: what is parsed must stand between dollars."""
DEADLINE_S = 20.0
"""Longer than its own time limits, of 5 seconds each."""


@dataclass(frozen=True)
class Suite:
    name: str
    answers: list[Answer]
    expected: list[bool]


async def bench_suites(files: Sequence[Path], workers: int, json_only: bool) -> dict[str, dict[str, Figures]]:
    """The figures of each judge, for each suite and for all suites together."""
    console = Console(stderr=json_only, highlight=False)
    suites = [read_suite(file) for file in files]
    with console.status("judging"), scratch_folder() as folder:
        (folder / "plain.py").write_text(MATH_VERIFY)
        judges = {"freerun": "math", "math-verify": f"{folder}/plain.py:reward"}
        counted = {name: await _counted(judge, suites, workers) for name, judge in judges.items()}
    measured = {
        suite: {judge: figures[suite] for judge, figures in counted.items()} for suite in next(iter(counted.values()))
    }
    console.print(_table(measured))
    print(json.dumps({"bench": "suites", "workers": workers, "suites": measured}))
    return measured


def read_suite(file: Path) -> Suite:
    answers, expected = list[Answer](), list[bool]()
    for line, row in enumerate(read_source(DataConfig(source=str(file))).rows, 1):
        verdict = row.get("expected")
        if not isinstance(row.get("reference"), str) or not isinstance(row.get("answer"), str):
            raise DataError(f'{file}, row {line}: a suite\'s row has the texts "reference" and "answer"')
        if verdict not in (0, 1):
            raise DataError(f'{file}, row {line}: "expected" is true or false, not {verdict!r:.50}')
        answers.append(Answer(Task(f"{file.stem}:{line}", "", [], row["reference"]), row["answer"]))
        expected.append(bool(verdict))
    return Suite(file.stem, answers, expected)


async def _counted(judge: str, suites: Sequence[Suite], workers: int) -> dict[str, Figures]:
    every: dict[str, Any] = {"name": judge, "cache": False}
    config = RewardConfig(judge=every, workers=workers, timeout_s=DEADLINE_S)
    found: dict[str, Figures] = {}
    async with JudgeService(config, retries=0, give_up_after=1 << 30) as service:
        await judge_all(service.judge, suites[0].answers[:workers], at_once=workers)  # the workers start
        for suite in suites:
            began = time.monotonic()
            verdicts = await judge_all(service.judge, suite.answers, at_once=128)
            found[suite.name] = _figures(verdicts, suite.expected, time.monotonic() - began)
    found["all"] = {key: sum(figures[key] for figures in found.values()) for key in next(iter(found.values()))}
    for figures in found.values():
        figures["per_s"] = figures["answers"] / figures.pop("seconds")
    return found


def _figures(verdicts: Sequence[Verdict], expected: Sequence[bool], seconds: float) -> Figures:
    pairs = [(verdict.reward, right) for verdict, right in zip(verdicts, expected, strict=True)]
    return {
        "answers": len(pairs),
        "as expected": sum(reward == right for reward, right in pairs),
        "wrong accepted": sum(reward == 1 and not right for reward, right in pairs),
        "right rejected": sum(reward == 0 and right for reward, right in pairs),
        "undecided": sum(reward is None for reward, _ in pairs),
        "seconds": seconds,
    }


def _table(measured: dict[str, dict[str, Figures]]) -> Table:
    table = Table("suite", "judge", "answers", "as expected", "wrong accepted", "right rejected", "undecided", "per s")
    table.box, table.header_style = None, "dim"
    for suite, judges in measured.items():
        for judge, figures in judges.items():
            table.add_row(suite, judge, *(f"{value:,.0f}" for value in figures.values()))
    return table
