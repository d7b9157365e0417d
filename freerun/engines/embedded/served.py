"""The engine with what a server needs besides: what answers hold so far, how long they may be, and ending them all."""

from collections.abc import Sequence as Sequences

from freerun.core import FinishReason
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.memory import longest_in
from freerun.engines.embedded.sequence import EndedAnswer, Sequence
from freerun.models.shape import Shape


class ServedEngine(EmbeddedEngine):
    def unfinished(self, id: str) -> Sequences[Sequence]:
        """The answers of a request that are still being written, to be read between two steps."""
        return [sequence for sequence in self._requests.get(id, ()) if sequence.finish is None]

    def abort_all(self) -> list[tuple[str, EndedAnswer]]:
        """End every answer where it is; each comes back with what it has."""
        going = [sequence for id in list(self._requests) for sequence in self.unfinished(id)]
        return [self._end(sequence, FinishReason.ABORT) for sequence in going]

    @property
    def shape(self) -> Shape:
        return self._decoder.shape

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset(self._decoder.shape.eos_token_ids)

    @property
    def longest(self) -> int:
        """Most tokens that a prompt and its answer can have together: the model's positions, or what the cache
        holds."""
        cached = longest_in(self._blocks.tokens, self._blocks.block_tokens, self._runner.burst)
        return min(self._decoder.shape.max_positions, cached)
