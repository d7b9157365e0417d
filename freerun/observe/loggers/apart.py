"""The controller's side of the loggers: one observer that passes on what they log, each in a process of its own.

Consumes what happens in the run; produces messages to the loggers' processes, and notes about those that fail. It never
waits for them while the run goes on: what a logger does not take is buffered up to a bound, dropped past it, and
counted. Leaving the context waits for them, a few seconds at most, and ends those that hang.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from freerun.core import Batch, Version
from freerun.core.metrics import evaluation_figures, figures
from freerun.core.nouns import NOT_SAMPLED
from freerun.core.observer import Observer
from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.observe.folder import RunFolder, encode
from freerun.observe.loggers.base import LoggedSample, Outcome
from freerun.observe.loggers.known import LoggerChoice
from freerun.observe.loggers.messages import Begin, End, Evaluated, Message, Note, Step
from freerun.observe.loggers.process import LoggerProcess

_LONGEST_TEXT = 4000
"""Characters of a prompt or an answer in a table of samples."""


class Loggers(Observer):
    """An async context manager. Notes are kept until somebody takes them (`tell_to`); those that come when all
    observers are closed are left in `untold`."""

    def __init__(self, choices: Sequence[LoggerChoice], folder: RunFolder, config: dict[str, Any], step: int) -> None:
        """`step`: how many are done already."""
        self._choices = choices
        self._folder, self._config, self._step = folder, config, step
        self._most_samples = max((choice.samples for choice in choices), default=0)
        self._running: list[LoggerProcess] = []
        self._samples: dict[int, list[LoggedSample]] = {}
        """By step: those that wait for its figures."""
        self._tell: Callable[[str], None] | None = None
        self.untold: list[str] = []
        self._time_s = 0.0

    @property
    def now(self) -> tuple[int, float]:
        """The last step, and when it ended, in seconds from the run's start."""
        return self._step, self._time_s

    def tell_to(self, note: Callable[[str], None]) -> None:
        """From now on, notes go there at once."""
        self._tell = note
        untold, self.untold = self.untold, []
        for text in untold:
            note(text)

    async def __aenter__(self) -> Self:
        for choice in self._choices:
            log = self._folder.logs / f"logger-{choice.called}.log"
            process = LoggerProcess(choice.called, log, self._say)
            try:
                await process.start(encode(self._begin(choice)))
            except OSError as error:
                self._say(f"the logger {choice.called} cannot be started, and the run goes on without it: {error}")
            else:
                self._running.append(process)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tell = None
        last = encode(End(_outcome(kind)))
        ended = await asyncio.gather(*(process.end(last) for process in self._running), return_exceptions=True)
        self.untold += [f"a logger could not be ended: {error!r}" for error in ended if isinstance(error, Exception)]

    def note(self, text: str) -> None:
        self._send(Note(self._step, text))

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        if self._running and self._most_samples:
            self._samples = {batch.version + 1: list(_samples(batch, self._most_samples))}

    def step(self, record: StepRecord) -> None:
        self._step, self._time_s = record.step, record.time_s
        if self._running:
            self._send(Step(record.step, figures(record), self._samples.pop(record.step, [])))

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._send(Evaluated(version, evaluation_figures(version, evaluation)))

    def close(self) -> None:
        """Whoever takes notes may be closed, too."""
        self._tell = None

    def _begin(self, choice: LoggerChoice) -> Begin:
        config = {key: value for key, value in self._config.items() if key != "observers"}
        folder = str(self._folder.path.resolve())
        return Begin(choice.logger, choice.called, choice.options, self._folder.name, folder, config, self._step)

    def _send(self, message: Message) -> None:
        """Encoded once for all."""
        if self._running:
            line = encode(message)
            for process in self._running:
                process.send(line)

    def _say(self, text: str) -> None:
        if self._tell:
            self._tell(text)
        else:
            self.untold.append(text)


def _outcome(kind: type[BaseException] | None) -> Outcome:
    if kind is None:
        return "finished"
    return "stopped" if issubclass(kind, asyncio.CancelledError | KeyboardInterrupt) else "failed"


def _samples(batch: Batch, most: int) -> Iterator[LoggedSample]:
    """The first member of each group, then the second of each, … A supervised batch has nothing that was sampled."""
    members = [group.members for group in batch.groups[:most]]
    places = ((place, group) for place in range(most) for group in range(len(members)) if place < len(members[group]))
    for (place, number), _ in zip(places, range(most), strict=False):
        group, sample = batch.groups[number], members[number][place][0]
        if sample.oldest_version != NOT_SAMPLED:
            yield LoggedSample(
                step=batch.version + 1,
                task=group.task.id,
                prompt=_short(group.task.prompt),
                answer=group.task.answer if group.task.answer is None else _short(group.task.answer),
                text=_short(sample.text),
                reward=sample.reward,
                staleness=batch.version - sample.oldest_version,
                finish=sample.finish.value,
            )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
