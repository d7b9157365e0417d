"""What `freerun eval` leaves behind: `runs/NAME-eval`, a folder of its own for each evaluation, with the configuration,
the figures (`evals.jsonl`, as a training run has them, and `eval.md` to read), and every answer with its reward
(`answers.jsonl`)."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from freerun.config.tree import RunConfig
from freerun.core import DataError, Task
from freerun.core.files import write_atomically
from freerun.core.reports import Evaluation
from freerun.core.trajectory import Trajectory
from freerun.data.config import DataConfig
from freerun.data.sources import read_source
from freerun.data.tasks import tasks_to_judge
from freerun.observe.folder import JsonLines, RunFolder, writing
from freerun.observe.records import EvalRecord
from freerun.rewards.base import Verdict
from freerun.run.prepare import Prepared, asked_by
from freerun.run.start import write_config

ANSWERS, TABLE = "answers.jsonl", "eval.md"


def evaluation_folder(prepared: Prepared) -> RunFolder:
    folder = RunFolder.create(Path(prepared.config.runs), f"{prepared.config.name}-eval")
    write_config(folder, prepared)
    return folder


class KeptEvaluation:
    """Writes answers as they are judged, and the figures at the end."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._begun_s = folder, time.monotonic()
        self._answers = JsonLines(folder.path / ANSWERS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._answers.close()

    def judged(self, task: Task, given: Sequence[Trajectory], verdicts: Sequence[Verdict]) -> None:
        for one, verdict in zip(given, verdicts, strict=True):
            told = {
                "task": task.id,
                "prompt": task.prompt,
                "answer": task.answer,
                "text": one.sample.text if one.sample else None,
                "reward": verdict.reward,
                "reason": verdict.reason.value,
                "finish": one.sample.finish.value if one.sample else None,
            }
            self._answers.append(told | ({"detail": verdict.detail} if verdict.detail else {}))

    def done(self, found: Evaluation, config: RunConfig, note: str | None) -> None:
        with JsonLines(self._folder.evals) as evals:
            evals.append(EvalRecord.of(0, found, time.monotonic() - self._begun_s))
        table = self._folder.path / TABLE
        with writing(table):
            write_atomically(table, _table(found, config, note))


def _table(found: Evaluation, config: RunConfig, note: str | None) -> str:
    rows = {
        "model": config.model.path,
        "tasks": f"{found.tasks} of {(config.held_out or config.data).source}",
        "pass@1": f"{found.pass_at_1:.3f} (95% interval {found.low:.3f} to {found.high:.3f})",
        **({f"pass@{found.k}": f"{found.pass_at_k:.3f}"} if found.k > 1 else {}),
        "mean reward": f"{found.reward_mean:.3f}",
        "truncated": f"{found.truncated_share:.1%}",
        "not judged": str(found.judge_failures),
        **({"note": note} if note else {}),
    }
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def what_it_measures(config: RunConfig) -> str | None:
    """A line to show where the tasks to evaluate on are those that the same file trains on: the figures are then of
    what was learned by heart. As far as that can be told by files on this disk."""
    if config.held_out is None:
        return f"held_out is not set, so this measures data ({config.data.source}), which the run trains on"
    if _rows_of(config.held_out) == _rows_of(config.data):
        return f"held_out and data are the same ({config.data.source}), so this measures what the run trains on"
    held_out, trained = _prompts(config.held_out), set(_prompts(config.data))
    again = sum(prompt in trained for prompt in held_out)
    if not again:
        return None
    return f"{again} of the {len(held_out)} held_out tasks are in data too, so this measures what the run trains on"


def _rows_of(data: DataConfig) -> tuple[object, ...]:
    return data.source, data.split, data.subset, data.options


def _prompts(data: DataConfig) -> list[str]:
    """What the tasks ask, in a file on this disk; nothing of any other source."""
    try:
        exists = Path(data.source).expanduser().exists()
        return [asked_by(task) for task in tasks_to_judge(read_source(data))] if exists else []
    except DataError:  # of data that this evaluation does not need
        return []
