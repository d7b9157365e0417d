"""`freerun score`: how likely a model finds given answers. No engine, no rewards: the trainer's forward pass alone."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from pathlib import Path

from freerun.core import ConfigError
from freerun.run.prepare import Prepared, example_of

_AT_A_TIME = 64
"""Answers scored between two updates of the progress bar."""


@dataclass(frozen=True)
class Scored:
    """The totals over all answers."""

    answers: int
    tokens: int
    logprob: float

    @property
    def perplexity(self) -> float:
        return exp(-self.logprob / max(self.tokens, 1))


def refuse_unwritable(out: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise ConfigError(f"--out {out} cannot be written: name a file in a folder that exists")


def score(prepared: Prepared, out: Path | None, progress: Callable[[], None]) -> Scored:
    """Every row of `data`; with `out`, a line of JSON for each: its id and the log-probability of each token."""
    from freerun.train.learner import Learner

    config = prepared.config
    learner = Learner.from_folder(prepared.model_folder, config.train, 1.0, config.seed, backend=config.model.code)
    lines: list[str] = []
    tokens, total = 0, 0.0
    for start in range(0, len(prepared.tasks), _AT_A_TIME):
        tasks = prepared.tasks[start : start + _AT_A_TIME]
        scores = learner.score([example_of(task, prepared) for task in tasks])
        for task, logprobs in zip(tasks, scores, strict=True):
            lines.append(json.dumps({"id": task.id, "logprob": sum(logprobs), "logprobs": logprobs}) + "\n")
            tokens, total = tokens + len(logprobs), total + sum(logprobs)
            progress()
    if out:
        try:
            out.write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None
    return Scored(len(lines), tokens, total)
