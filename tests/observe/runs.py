"""Records of a made-up run, with the fields a test cares about replaced."""

from pathlib import Path
from typing import Any

import numpy as np

from freerun.core import Group, Task
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.core.versions import VersionRuns
from freerun.observe.database import SampleDatabase
from freerun.observe.folder import encode, whole
from freerun.observe.records import EvalRecord, SampleRecord
from freerun.observe.sample_rows import COLUMNS


def a_step(step: int = 1, **changes: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "step": step,
        "version": step,
        "time_s": 2.0 * step,
        "step_s": 2.0,
        "reward_mean": 0.5,
        "reward_mean_all": 0.25,
        "samples": 8,
        "tokens_trained": 1000,
        "tokens_per_s": 500.0,
        "answer_tokens_mean": 125.0,
        "truncated_share": 0.125,
        "staleness_mean": 0.75,
        "staleness_max": 1,
        "staleness_histogram": {"0": 250, "1": 750},
        "dropped": {},
        "engine_idle_s": 0.1,
        "trainer_idle_s": 0.5,
        "update_pause_s": 0.03,
        "running": 16,
        "waiting": 2,
        "trainer": {"loss": 0.1, "grad_norm": 1.0},
    }
    return StepRecord(**{**fields, **changes})


def evaluation(pass_at_1: float = 0.3) -> Evaluation:
    return Evaluation(
        tasks=100,
        k=4,
        pass_at_1=pass_at_1,
        low=pass_at_1 - 0.05,
        high=pass_at_1 + 0.05,
        pass_at_k=pass_at_1 + 0.2,
        reward_mean=pass_at_1,
        truncated_share=0.02,
        judge_failures=0,
    )


def an_eval(step: int = 0, pass_at_1: float = 0.3) -> EvalRecord:
    return EvalRecord.of(step, evaluation(pass_at_1), 2.0 * step)


def a_sample(step: int = 1, **changes: Any) -> SampleRecord:
    fields: dict[str, Any] = {
        "step": step,
        "version": step - 1,
        "group": step,
        "task": f"task-{step}",
        "prompt": "2 + 2 =",
        "answer": "4",
        "text": " 4",
        "reward": 1.0,
        "finish": "stop",
        "tokens": [" ", "4"],
        "logprobs": [-0.1, -0.2],
        "versions": [step - 1, step - 1],
    }
    return SampleRecord(**{**fields, **changes})


class Words:
    """A tokenizer whose tokens are the words that it has met."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def encode(self, words: list[str]) -> list[int]:
        return [self._tokens.setdefault(word, len(self._tokens)) for word in words]

    def decode(self, token_ids: list[int]) -> str:
        words = list(self._tokens)
        return "".join(words[token] for token in token_ids)


def keep_samples(path: Path, *records: SampleRecord) -> None:
    """Write them as a run does."""
    words = Words()
    rows = []
    for r in records:
        ages = [r.version - version for version in r.versions]
        values = {
            **{name: getattr(r, name) for name in ("step", "version", "task", "branch", "branches", "reward", "fate")},
            **{"finish": r.finish, "text": whole(r.text), "grp": r.group, "member": r.member, "turns": len(r.turns)},
            **{"truncated": r.finish == "length", "length": len(r.tokens), "before": None},
            "staleness_max": max(ages, default=0),
            "staleness_mean": sum(ages) / max(len(ages), 1),
            "tokens": np.array(words.encode(r.tokens), np.int32).tobytes(),
            "logprobs": np.array(r.logprobs, np.float32).tobytes(),
            "versions": encode(VersionRuns.of(r.versions).runs).decode(),
            "conversation": encode(r.turns) if r.turns else None,
        }
        rows.append(tuple(values[name] for name in COLUMNS))
    groups = [Group(r.group, Task(r.task, r.prompt, [], r.answer), [], 0) for r in records]
    database = SampleDatabase(path, words)
    database.add(groups, rows)
    database.close()
