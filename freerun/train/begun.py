"""A training step between its first gradient and its first change of weights: until here it may be tried again."""

from dataclasses import dataclass

from freerun.train.diagnostics import Diagnostics
from freerun.train.packing import Packed
from freerun.train.speed import Phases, Speed


@dataclass(frozen=True)
class Begun:
    """A step that has its first gradient, and has changed nothing yet."""

    plan: list[list[Packed]]
    """Minibatches, each as this team's micro-batches."""
    kept_share: float | None
    """How much of the first one the corrections kept; None: there is nothing to learn from."""
    diagnostics: Diagnostics
    phases: Phases
    speed: Speed

    @property
    def micros(self) -> list[Packed]:
        return [micro for minibatch in self.plan for micro in minibatch]
