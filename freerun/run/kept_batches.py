"""What a trainer that is started again learns from once more, in memory."""

from freerun.core import Batch, Version
from freerun.core.observer import Observer
from freerun.observe.folder import RunFolder
from freerun.run.resume import newest_step

_MOST_TOKENS = 100_000_000
"""Some nine bytes each. Past that the oldest batches go: a trainer that dies then ends the run, until the next
checkpoint is there."""


class BatchesInMemory(Observer):
    """Keeps every batch until a complete checkpoint covers it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._batches: dict[Version, Batch] = {}
        self._tokens: dict[Version, int] = {}

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        covered = newest_step(self._folder)
        self._batches[batch.version] = batch
        self._tokens[batch.version] = sum(len(sample.tokens) for sample in batch.samples)
        for version in list(self._batches):
            if version < covered or sum(self._tokens.values()) > _MOST_TOKENS:
                del self._batches[version], self._tokens[version]

    async def batch(self, version: Version) -> Batch | None:
        return self._batches.get(version)
