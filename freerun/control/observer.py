"""Whoever watches a run."""

from typing import Protocol

from freerun.core import Batch, Group
from freerun.core.reports import StepResult, UpdateReport


class Observer(Protocol):
    """Is told what happens. It never slows the loop: it returns at once and raises nothing."""

    def doing(self, process: str, what: str) -> None: ...
    def judged(self, group: Group) -> None: ...
    def learns(self, batch: Batch, masked_tokens: int) -> None:
        """The trainer is about to learn from it. Whatever takes time is done now: after the step, engines wait."""
        ...

    def stepped(self, result: StepResult) -> None: ...
    def updated(self, updates: list[UpdateReport]) -> None:
        """The engines have the version of the last step."""
        ...

    def note(self, text: str) -> None: ...
