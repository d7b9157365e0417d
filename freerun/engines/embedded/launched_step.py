"""A step under way: launched, its results not looked at yet."""

from collections.abc import Callable
from dataclasses import dataclass, field

from freerun.engines.embedded.sequence import Sequence

Sampled = tuple[list[list[int]], list[list[float]]]
"""The tokens of each sequence, and their log-probabilities."""


@dataclass(slots=True)
class LaunchedStep:
    sequences: list[Sequence]
    """Those that sample in it."""
    tokens: int
    """How many each of them samples."""
    wait: Callable[[], Sampled]
    """Waits for the device, if need be."""
    _epochs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """From here on the tokens count as sampled, and all but the last of them as computed."""
        self._epochs = [sequence.epoch for sequence in self.sequences]
        for sequence in self.sequences:
            sequence.ahead += self.tokens
            sequence.computed += self.tokens - 1

    @classmethod
    def none(cls) -> "LaunchedStep":
        """A step in which nobody samples."""
        return cls([], 0, lambda: ([], []))

    def results(self) -> list[tuple[Sequence, list[int], list[float]]]:
        """What each sequence sampled, if it still wants it: it may have ended, or given way, meanwhile."""
        tokens, logprobs = self.wait()
        wanted = []
        for sequence, epoch, new, theirs in zip(self.sequences, self._epochs, tokens, logprobs, strict=True):
            if sequence.finish is None and sequence.epoch == epoch:
                sequence.ahead -= self.tokens
                wanted.append((sequence, new, theirs))
        return wanted
