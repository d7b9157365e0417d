"""The text of an answer, as its tokens come."""

from collections.abc import Callable, Iterable

from freerun.core import FinishReason

_UNFINISHED = "\ufffd"
"""What decoders write for bytes that are no whole character (yet)."""
_MOST_HELD = 32
"""Tokens held back for a character to become whole. None is that long: beyond it, they are the model's nonsense."""


def overlap(text: str, marks: Iterable[str]) -> int:
    """How many of the last characters may be the beginning of one of the marks."""
    longest = 0
    for mark in marks:
        lengths = range(min(len(mark), len(text)), longest, -1)
        longest = next((length for length in lengths if text.endswith(mark[:length])), longest)
    return longest


class AnswerText:
    """Turns an answer's tokens into text as they come.

    Half a character waits for its other half, and what may be the beginning of a stop string waits until it is clear.
    The stop string itself, unless `with_stop`, and the token that ended the answer are left out, as OpenAI does.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], stop: tuple[str, ...], ends: frozenset[int], with_stop: bool = False
    ) -> None:
        self._decode = decode
        self._with_stop = with_stop
        self._stop = stop
        self._ends = ends
        self._tokens: list[int] = []
        self._context = 0
        """Decoding starts at this token, some before the new ones: what a token says depends on those before it."""
        self._read = 0
        """Tokens whose text is out, or held."""
        self._held = ""
        self.stopped_by: str | None = None
        """The stop text that ended the answer, if one did."""

    def add(self, tokens: list[int], finish: FinishReason | None) -> str:
        """The text that these tokens make certain; with a finish reason, all the rest."""
        ended_by_token = finish is FinishReason.STOP and tokens and tokens[-1] in self._ends
        self._tokens.extend(tokens[:-1] if ended_by_token else tokens)
        text = self._held + self._decoded(is_last=finish is not None)
        keep = self._may_stop(text) if finish is None else 0
        self._held = text[len(text) - keep :]
        if finish is not FinishReason.STOP:
            return text[: len(text) - keep]
        found = [(at, at + len(stop), stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if not found:
            return text
        start, end, self.stopped_by = min(found)
        return text[: end if self._with_stop else start]

    def _decoded(self, is_last: bool) -> str:
        if self._read == len(self._tokens):
            return ""
        text = self._decode(self._tokens[self._context :])
        if text.endswith(_UNFINISHED) and not is_last and len(self._tokens) - self._read < _MOST_HELD:
            return ""
        new = text[len(self._decode(self._tokens[self._context : self._read])) :]
        if new:
            self._context = self._read
        self._read = len(self._tokens)
        return new

    def _may_stop(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        return overlap(text, self._stop)
