"""`freerun dpo`: the trainer alone learns from preference pairs.

What the model that training begins with gives to every answer is worked out once, before the first step, and kept in
the run's folder: a run that goes on has other weights by then.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from freerun.control.dpo import PairEvaluator, scored
from freerun.control.dpo import dpo as control_dpo
from freerun.core import ConfigError, FreerunError, Sample, Task
from freerun.core.files import write_atomically
from freerun.core.observer import Observer
from freerun.data.pairs import REJECTED
from freerun.observe.folder import RunFolder, writing
from freerun.plan.placement import RunKind
from freerun.run.prepare import Prepared, example
from freerun.run.running import RunProcesses
from freerun.run.start import Start
from freerun.run.supervised import Learning, learned
from freerun.train.base import Trainer


async def dpo(prepared: Prepared, observers: Iterable[Observer] = (), start: Start | None = None) -> RunFolder:
    """All of it, or the rest of it."""
    return await learned(Dpo(prepared), prepared, observers, start)


@dataclass(frozen=True)
class Dpo:
    prepared: Prepared
    _pairs: dict[str, list[Sample]] = field(default_factory=dict)
    """By the ids of their tasks; known when it has begun."""
    _held_out: list[Sample] = field(default_factory=list)

    kind = RunKind.DPO
    evaluates = False

    def examples(self, task: Task) -> list[Sample]:
        return self._pairs[task.id]

    async def begin(self, running: RunProcesses, start: Start, observer: Observer) -> None:
        tasks = self.prepared.tasks
        pairs = [pair_of(task, self.prepared) for task in tasks]
        held_out = [pair_of(task, self.prepared) for task in self.prepared.held_out]
        samples = list(chain.from_iterable([*pairs, *held_out]))
        await _give_references(samples, running.trainer, start, self.prepared.identity, observer)
        self._pairs.update(zip((task.id for task in tasks), pairs, strict=True))
        self._held_out.extend(chain.from_iterable(held_out))

    async def learn(self, learning: Learning) -> FreerunError | None:
        config = self.prepared.config
        evaluator = PairEvaluator(self._held_out, config.dpo.beta) if self._held_out else None
        await control_dpo(
            *(config.dpo, learning.running.trainer, learning.batches, evaluator, learning.observer, learning.state_at),
            learning.start.state.version,
            steps=config.control.steps,
            evaluate_every=config.evaluate.every or 50,
        )
        return None


def pair_of(task: Task, prepared: Prepared) -> list[Sample]:
    """The chosen and the rejected answer, as something to learn from."""
    return [example(task, answer, prepared) for answer in (task.answer or "", str(task.extra[REJECTED]))]


async def _give_references(
    samples: Sequence[Sample], trainer: Trainer, start: Start, model: dict[str, Any], observer: Observer
) -> None:
    """Make the first model's log-probabilities the samples' `behavior_logprobs`."""
    file, digest = start.folder.reference, _digest(samples, model)
    if file.is_file():
        known = _read(start.folder, digest)
    elif start.checkpoint is not None:
        raise ConfigError(
            f"{file} is gone, which has what the model that the run began with gives to each answer: bring it back, or "
            "begin a new run"
        )
    else:
        observer.doing("trainer", f"works out the reference of {len(samples)} answers")
        known = np.array(list(chain.from_iterable(await scored(trainer, samples))), np.float32)
        content = io.BytesIO()
        np.savez(content, digest=np.array(digest), logprobs=known)
        with writing(file):
            write_atomically(file, content.getvalue(), durable=True)
    begins = 0
    for sample in samples:
        marked = np.asarray(sample.loss_mask)
        ends = begins + int(marked.sum())
        sample.behavior_logprobs = np.zeros(len(marked), np.float32)
        sample.behavior_logprobs[marked] = known[begins:ends]
        begins = ends


def _read(folder: RunFolder, digest: str) -> Any:
    try:
        with np.load(folder.reference, allow_pickle=False) as content:
            known, found = content["logprobs"], str(content["digest"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder.reference} is damaged ({error}): bring it back, or begin a new run") from None
    if found != digest:
        raise ConfigError(
            f"{folder.reference} is of other pairs, or of another model: bring back the data that {folder.path} began "
            "with, or begin a new run"
        )
    return known


def _digest(samples: Sequence[Sample], model: dict[str, Any]) -> str:
    every = blake2b(repr(sorted(model.items())).encode(), digest_size=16)
    for sample in samples:
        every.update(np.asarray(sample.tokens, np.int32).tobytes() + np.asarray(sample.loss_mask).tobytes())
    return every.hexdigest()
