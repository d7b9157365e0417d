"""Whoever watches a run: the files of its folder, the terminal, a logger, a program of the user's.

An observer overrides what it wants to see; everything else does nothing. The loop tells all observers everything, in
the order in which they are listed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from freerun.core.groups import GroupEvent
from freerun.core.nouns import Batch, Group
from freerun.core.records import StepRecord
from freerun.core.reports import EngineStats, Evaluation, JudgeLoad, Span, StepResult, UpdateReport, WeightsHandle
from freerun.core.state import RunState
from freerun.core.task import Task, Version
from freerun.core.trajectory import Trajectory
from freerun.core.waits import WaitCause


class Observer:
    """Is told what happens. Methods return at once, so that the loop is never slowed; `settled` and `published` may
    take their time: the loop waits for them."""

    def doing(self, process: str, what: str) -> None:
        """What that process is busy with from now on: "idle" when with nothing."""

    def note(self, text: str) -> None:
        """Something the user should read, once."""

    def span(self, span: Span) -> None:
        """A process has spent time on something."""

    def group(self, event: GroupEvent) -> None:
        """A group reached a stage of its life."""

    def rolled_out(self, task: Task, trajectories: Sequence[Trajectory]) -> None:
        """What became of each member of a group, failed ones included. They are not judged yet."""

    def judged(self, group: Group) -> None:
        """A group's rewards are known; it may still be dropped."""

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        """The trainer is about to learn from the batch, of which so many tokens are too old and carry no loss. Whatever
        takes time is best done now: after the step, engines wait."""

    def stepped(self, result: StepResult) -> None:
        """A training step is done; engines do not have its version yet."""

    def updated(self, updates: list[UpdateReport]) -> None:
        """All engines that are there have the version of the last step; one report for each."""

    def engine(self, name: str, stats: EngineStats) -> None:
        """How an engine is doing, several times a second."""

    def engines_wanted(self, machines: Mapping[str, str]) -> None:
        """Which engines the run is to have from now on, by name, each with the name of its machine."""

    def engine_out(self, name: str, why: str) -> None:
        """An engine is asked nothing more: for good, or until it is heard of again."""

    def judging(self, load: JudgeLoad) -> None:
        """What judging has cost so far, with each step."""

    def waited(self, who: str, cause: WaitCause, seconds: float) -> None:
        """The trainer, or admission, has waited so long for that, since this was last told."""

    def step(self, record: StepRecord) -> None:
        """All figures of a step, complete: what metrics.jsonl holds. It follows `updated`."""

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        """A version was tried on the held-out tasks."""

    async def settled(self, state: RunState) -> None:
        """A step is over; `state` is what is needed to go on from it. The next step waits for this."""

    async def published(self, handle: WeightsHandle) -> None:
        """The engines have a version, which can be had by that handle. The next version waits for this."""

    def close(self) -> None:
        """The run is over, for whatever reason."""


class Observers(Observer):
    """Passes everything on to several. What fails in `observers` ends the run; one of `guests`, which are the user's,
    is left out from its failure on, and a note says so."""

    def __init__(self, observers: Iterable[Observer] = (), guests: Iterable[Observer] = ()) -> None:
        self._guests = list(guests)
        self._observers = [*observers, *self._guests]

    def add(self, observer: Observer) -> None:
        """One more of ours: it is told before the guests are."""
        self._observers.insert(len(self._observers) - len(self._guests), observer)

    def doing(self, process: str, what: str) -> None:
        self._tell(lambda observer: observer.doing(process, what))

    def note(self, text: str) -> None:
        self._tell(lambda observer: observer.note(text))

    def span(self, span: Span) -> None:
        self._tell(lambda observer: observer.span(span))

    def group(self, event: GroupEvent) -> None:
        self._tell(lambda observer: observer.group(event))

    def rolled_out(self, task: Task, trajectories: Sequence[Trajectory]) -> None:
        self._tell(lambda observer: observer.rolled_out(task, trajectories))

    def judged(self, group: Group) -> None:
        self._tell(lambda observer: observer.judged(group))

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self._tell(lambda observer: observer.learning(batch, masked_tokens))

    def stepped(self, result: StepResult) -> None:
        self._tell(lambda observer: observer.stepped(result))

    def updated(self, updates: list[UpdateReport]) -> None:
        self._tell(lambda observer: observer.updated(updates))

    def engine(self, name: str, stats: EngineStats) -> None:
        self._tell(lambda observer: observer.engine(name, stats))

    def engines_wanted(self, machines: Mapping[str, str]) -> None:
        self._tell(lambda observer: observer.engines_wanted(machines))

    def engine_out(self, name: str, why: str) -> None:
        self._tell(lambda observer: observer.engine_out(name, why))

    def judging(self, load: JudgeLoad) -> None:
        self._tell(lambda observer: observer.judging(load))

    def waited(self, who: str, cause: WaitCause, seconds: float) -> None:
        self._tell(lambda observer: observer.waited(who, cause, seconds))

    def step(self, record: StepRecord) -> None:
        self._tell(lambda observer: observer.step(record))

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._tell(lambda observer: observer.evaluated(version, evaluation))

    async def settled(self, state: RunState) -> None:
        for observer in list(self._observers):
            try:
                await observer.settled(state)
            except Exception as error:
                self._failed(observer, error)

    async def published(self, handle: WeightsHandle) -> None:
        for observer in list(self._observers):
            try:
                await observer.published(handle)
            except Exception as error:
                self._failed(observer, error)

    def close(self) -> None:
        self._tell(lambda observer: observer.close())

    def _tell(self, what: Callable[[Observer], Any]) -> None:
        for observer in list(self._observers):
            try:
                what(observer)
            except Exception as error:
                self._failed(observer, error)

    def _failed(self, observer: Observer, error: Exception) -> None:
        if observer not in self._guests:
            raise error
        self._observers.remove(observer)
        self._guests.remove(observer)
        self.note(f"the observer {type(observer).__name__} failed, and sees nothing from now on: {error!r}")
