"""`freerun sft`: the trainer, and an engine to look how good it is when there is something to look at."""

from collections.abc import Callable, Iterator
from itertools import islice

from freerun.control.sft import sft as control_sft
from freerun.control.state import ControlState
from freerun.core import FreerunError, Sample
from freerun.core.reports import Evaluation, StepResult
from freerun.data.stream import TaskStream
from freerun.observe.folder import JsonLines, RunFolder
from freerun.run.checkpoints import saved
from freerun.run.local import parts
from freerun.run.prepare import Prepared, example_of
from freerun.run.start import Start, create_folder


async def sft(
    prepared: Prepared,
    stepped: Callable[[int, StepResult], None],
    evaluated: Callable[[int, Evaluation], None],
    start: Start | None = None,
) -> RunFolder:
    """All of it, or the rest of it."""
    config = prepared.config
    start = start or Start(create_folder(prepared))
    state, stream = start.state, prepared.stream(epochs=None)
    stream.seek(state.position)
    with start.opened() as folder, JsonLines(folder.metrics) as metrics:
        evaluates, checkpoints = config.sft.until is not None, folder.checkpoints
        async with parts(prepared, folder, evaluates, generates=False, checkpoint=start.checkpoint) as running:
            trainer, identity = running.trainer, prepared.identity
            start.begun(prepared)

            async def record(result: StepResult) -> None:
                nonlocal state
                state = ControlState(
                    result.version,
                    position=stream.position,
                    data=stream.fingerprint,
                    supervised=True,
                    model=identity,
                )
                metrics.append({"step": result.version, **result.metrics})
                stepped(result.version, result)
                if config.train.save_every and result.version % config.train.save_every == 0:
                    await checkpoint()

            async def checkpoint() -> None:
                if state.version:
                    await trainer.checkpoint(state.version, str(checkpoints), state.to_json())

            batches = _batches(stream, prepared)
            async with saved(checkpoint, trainer.written, lambda: trainer.save(str(checkpoints / "last"))):
                good = await control_sft(
                    *(config.sft, trainer, batches, running.evaluator(), record, evaluated, start.state.version),
                    evaluate_every=config.evaluate.every or 50,
                )
    if not good:
        raise FreerunError(
            f"after {config.sft.steps} steps pass@1 is below sft.until={config.sft.until}; the model so far is in "
            f"{checkpoints / 'last'}: go on with freerun resume {folder.path} sft.steps={2 * config.sft.steps}"
        )
    return folder


def _batches(stream: TaskStream, prepared: Prepared) -> Iterator[list[Sample]]:
    """Examples in shuffled order, epoch after epoch. Those of a batch are taken from the stream when it is."""
    while True:
        yield [example_of(task, prepared) for task in islice(stream, prepared.config.control.groups_per_step)]
