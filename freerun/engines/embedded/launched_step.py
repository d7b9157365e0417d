"""A step under way: launched, its results not looked at yet."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from freerun.engines.embedded.routed import NOTHING, Routed, Waited
from freerun.engines.embedded.sequence import Chunk, Sequence
from freerun.models.routes import Routes

Sampled = tuple[list[list[int]], list[list[float]]]
"""The tokens of each sequence, and their log-probabilities."""


@dataclass(slots=True)
class LaunchedStep:
    sequences: list[Sequence]
    """Those that sample in it."""
    most: list[int]
    """How many tokens each of them samples; one whose guesses are checked may sample fewer."""
    wait: Callable[[], Sampled]
    """Waits for the device, if need be."""
    routed: Waited = lambda: NOTHING
    """Which experts its tokens went through; to be asked after `wait`."""
    _epochs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """From here on the tokens count as sampled, and all but the last of them as computed."""
        self._epochs = [sequence.epoch for sequence in self.sequences]
        for sequence, most in zip(self.sequences, self.most, strict=True):
            sequence.ahead += most
            sequence.computed += most - 1

    @classmethod
    def none(cls) -> "LaunchedStep":
        """A step in which nobody samples."""
        return cls([], [], lambda: ([], []))

    def results(self) -> tuple[list["Result"], Routed]:
        """What each sequence sampled, if it still wants it: it may have ended, or given way, meanwhile."""
        tokens, logprobs = self.wait()
        routed = self.routed()
        by_sequence: list[Routes] | list[None] = routed.sampled or [None] * len(tokens)
        wanted = []
        for sequence, epoch, most, new, theirs, routes in zip(
            *(self.sequences, self._epochs, self.most, tokens, logprobs, by_sequence),
            strict=True,
        ):
            if sequence.finish is None and sequence.epoch == epoch:
                sequence.ahead -= most
                sequence.computed -= most - len(new)
                wanted.append(Result(sequence, new, theirs, routes))
        return wanted, routed


class Result(NamedTuple):
    sequence: Sequence
    tokens: list[int]
    logprobs: list[float]
    routes: Routes | None
    """Which experts the token before each went through."""


def kept_tokens(chunks: list[Chunk], tokens: list[int], logprobs: list[float]) -> Sampled:
    """What each chunk keeps of the tokens that were sampled from all its positions: all up to the first token that is
    not the one that was guessed. What comes behind was sampled from a text that is not there."""
    kept_tokens, kept_logprobs, first = [], [], 0
    for chunk in chunks:
        guessed = chunk.tokens[len(chunk.tokens) - chunk.guesses :]
        right = next((at for at, guess in enumerate(guessed) if guess != tokens[first + at]), chunk.guesses)
        kept_tokens.append(tokens[first : first + right + 1])
        kept_logprobs.append(logprobs[first : first + right + 1])
        first += chunk.guesses + 1
    return kept_tokens, kept_logprobs
