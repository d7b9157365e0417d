"""Sampled tokens to text, fast enough for a controller that has millions of them a second to decode for judges.

The tokenizers of most models write a text's bytes, one printable character for each, into their tokens. Such a token is
always the same bytes, so an answer is looked up token by token and joined: tens of times as fast as the tokenizer's own
`decode`, with the same result. Any other tokenizer decodes for itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freerun.core.nouns import Tokens


class ByteTable:
    """The bytes of each token; special ones have none where they are to be skipped."""

    def __init__(self, tokens: dict[int, str], special: set[str]) -> None:
        written = [tokens.get(token, "") for token in range(max(tokens, default=-1) + 1)]
        self._all = Words([_bytes(word) for word in written])
        self._plain = Words([b"" if word in special else _bytes(word) for word in written])

    def decode(self, token_ids: Sequence[int] | Tokens, skip_special_tokens: bool = False) -> str:
        words = self._plain if skip_special_tokens else self._all
        if len(token_ids) == 1:
            return words.alone(int(token_ids[0]))
        ids = np.asarray(token_ids, np.int64)
        return words.joined(ids[ids < len(words)]).decode("utf-8", errors="replace")


class Words:
    """Byte strings by number, one behind the other in an array. Numbers beyond them have none: a model may have more
    outputs than its tokenizer has tokens."""

    def __init__(self, words: list[bytes]) -> None:
        self._alone = [word.decode("utf-8", errors="replace") for word in words]
        self._bytes = np.frombuffer(b"".join(words), np.uint8)
        self._lengths = np.array([len(word) for word in words], np.int32)
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths

    def __len__(self) -> int:
        return len(self._alone)

    def alone(self, number: int) -> str:
        """One word, as text: who shows an answer token by token asks for thousands."""
        return self._alone[number] if number < len(self._alone) else ""

    def joined(self, numbers: NDArray[np.int64]) -> bytes:
        """A byte's place is where its word starts, and how far it is behind the first of that word."""
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths, dtype=np.int32)
        places = np.repeat(self._starts[numbers] - ends + lengths, lengths)
        places += np.arange(len(places), dtype=np.int32)
        return self._bytes[places].tobytes()


def text_decoder(tokenizer: Any) -> Any:
    """Something whose `decode` gives what the tokenizer's gives."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if type(getattr(backend, "decoder", None)).__name__ != "ByteLevel" or tokenizer.clean_up_tokenization_spaces:
        return tokenizer
    tokens = {token: written for written, token in backend.get_vocab(with_added_tokens=False).items()}
    added = backend.get_added_tokens_decoder()
    tokens |= {token: entry.content for token, entry in added.items()}
    return ByteTable(tokens, {entry.content for entry in added.values() if entry.special})


def _characters() -> dict[str, int]:
    """Which character stands for which byte: itself where it is printable, the others from 256 on, in their order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _characters()


def _bytes(written: str) -> bytes:
    """A token that is not written so, such as one that was added later, is its own text."""
    if all(character in _BYTES for character in written):
        return bytes(_BYTES[character] for character in written)
    return written.encode()
