"""Supervised training: learn from given answers until the steps are done, or the policy is good enough."""

from collections.abc import Callable, Iterator

from freerun.control.config import SftConfig
from freerun.control.evaluate import Evaluator
from freerun.control.waiting import unbroken
from freerun.core import Batch, Version
from freerun.core.observer import Observer
from freerun.core.state import RunState
from freerun.train.base import Trainer


async def sft(
    config: SftConfig,
    trainer: Trainer,
    batches: Iterator[Batch],
    evaluator: Evaluator | None,
    observer: Observer,
    state_at: Callable[[Version], RunState],
    begins: Version = 0,
    *,
    steps: int,
    evaluate_every: int = 50,
) -> bool:
    """With `until`, the present version is evaluated every `evaluate_every` steps and after the last, and training ends
    when it passes.

    False when the steps ran out before that. `begins` is the trainer's version; `state_at` says what is needed to go on
    from a step that has just been done.
    """

    async def learn(batch: Batch) -> None:
        observer.learning(batch, masked_tokens=0)
        observer.doing("trainer", f"learns from batch {batch.version}")
        result = await trainer.sft(batch.samples)
        observer.stepped(result)
        await observer.settled(state_at(result.version))

    for step, batch in zip(range(begins + 1, steps + 1), batches, strict=False):
        await unbroken(learn(batch))
        if evaluator and config.until is not None and (step % evaluate_every == 0 or step == steps):
            observer.doing("trainer", f"waits for the evaluation of version {step}")
            await evaluator.engine.update_weights(await trainer.publish())
            evaluation = await evaluator.evaluate()
            observer.evaluated(step, evaluation)
            if evaluation.pass_at_1 >= config.until:
                return True
    return config.until is None
