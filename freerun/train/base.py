"""What a trainer is to the rest of Freerun. Importable without torch."""

from dataclasses import dataclass, field
from typing import Protocol

from freerun.core import Batch, Sample, Version
from freerun.weights.base import WeightsHandle

PUBLISH = "publish"
"""The last phase of a step: its version is learned, and made available."""


@dataclass(slots=True)
class StepResult:
    """What one step did. `phases` are (name, start, end) in seconds of the machine's monotonic clock."""

    version: Version
    """The trainer's version after the step."""
    metrics: dict[str, float] = field(default_factory=dict)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Figures that left their healthy range with this step, and the likely cause."""
    weights: WeightsHandle | None = None
    """That version, published. Supervised steps publish nothing."""

    @property
    def learned_s(self) -> float:
        """When the version was there, and not yet published. A step without phases has no clock."""
        return max((end_s for name, _, end_s in self.phases if name != PUBLISH), default=0.0)


class Trainer(Protocol):
    async def step(self, batch: Batch) -> StepResult:
        """One step of reinforcement learning; the version rises by one, and is published at once.

        It takes the place of the version before last, which engines must have by now; the last one is still there.
        """
        ...

    async def sft(self, examples: list[Sample]) -> StepResult:
        """One supervised step on the tokens that `loss_mask` marks; the version rises by one."""
        ...

    async def score(self, samples: list[Sample]) -> list[list[float]]:
        """The log-probability of every token that `loss_mask` marks, by the present version."""
        ...

    async def publish(self) -> WeightsHandle:
        """Make the present version available to engines."""
        ...

    async def save(self, folder: str) -> None:
        """Write the present version as an ordinary Hugging Face folder."""
        ...

    async def checkpoint(self, version: Version, folder: str, control: str) -> None:
        """Copy all that a resumed run needs, and write it beside training into `folder/step-VERSION`.

        Returns when it is copied; refuses when the trainer is not at that version. `control` is the controller's own
        state, kept with it.
        """
        ...

    async def written(self) -> None:
        """Returns when the last checkpoint is whole."""
        ...
