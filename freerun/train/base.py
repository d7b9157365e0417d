"""What a trainer is to the rest of Freerun. Importable without torch."""

from typing import Protocol

from freerun.core import Batch, Sample, Version
from freerun.core.reports import StepResult, WeightsHandle
from freerun.train.protocol import Copied, Written


class Trainer(Protocol):
    async def step(self, batch: Batch) -> StepResult:
        """One step of reinforcement learning; the version rises by one, and is published at once.

        It takes the place of the version before last, which engines must have by now; the last one is still there.
        """
        ...

    async def sft(self, examples: list[Sample]) -> StepResult:
        """One supervised step on the tokens that `loss_mask` marks; the version rises by one."""
        ...

    async def dpo(self, samples: list[Sample], beta: float) -> StepResult:
        """One step on preference pairs, chosen and rejected answers in turns, whose `behavior_logprobs` are the
        reference's; the version rises by one."""
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

    async def checkpoint(self, version: Version, folder: str, control: str) -> Copied:
        """Copy all that a resumed run needs, and write it beside training into `folder/step-VERSION`.

        Returns when it is copied, and the one before it is complete; refuses when the trainer is not at that version.
        `control` is the controller's own state, kept with it.
        """
        ...

    async def written(self) -> Written | None:
        """Returns when the last checkpoint is complete, and when it was written, unless that was told already."""
        ...
