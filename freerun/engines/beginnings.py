"""Which beginnings of prompts an engine has read, as far as whoever asks it can tell.

Engines keep what they have read by blocks of tokens. So do we here, by a digest of all tokens up to a block's end: two
prompts that begin alike share the digests of that beginning, whatever follows.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

BLOCK = 64
"""Tokens. What is shorter is read again before anybody has looked."""
_MOST = 8_192
"""Blocks that are remembered of an engine; the ones that were not asked for longest go first."""


def digests(prompt: Sequence[int]) -> list[int]:
    """One for every whole block, of the prompt from its beginning to the block's end."""
    found, digest = [], 0
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        digest = hash((digest, *prompt[start : start + BLOCK]))
        found.append(digest)
    return found


class Beginnings:
    def __init__(self) -> None:
        self._read: OrderedDict[int, None] = OrderedDict()

    def known(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt, given by its digests, have been read before."""
        return BLOCK * sum(1 for _ in takewhile(self._read.__contains__, prompt))

    def read(self, prompt: Sequence[int]) -> None:
        for digest in prompt:
            self._read[digest] = None
            self._read.move_to_end(digest)
        while len(self._read) > _MOST:
            self._read.popitem(last=False)

    def forget(self) -> None:
        """New weights: what was read with the old ones is of no use."""
        self._read.clear()
