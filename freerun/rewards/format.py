"""Judges of an answer's form (tags, a pattern, length), for use with a judge of its content."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from freerun.core import Task

Unit = Literal["words", "characters"]


@dataclass(frozen=True)
class Format:
    """1 if the answer has the required tags, matches the required pattern, or both; otherwise 0."""

    tags: list[str] = field(default_factory=list)
    """Each must open and close exactly once, in this order: [think, answer] is <think>…</think>…<answer>…</answer>."""
    pattern: str = ""
    """A regular expression that must match somewhere in the answer; a dot matches line ends too."""

    def __post_init__(self) -> None:
        if not self.tags and not self.pattern:
            raise ValueError("needs tags, such as [think, answer], or a pattern")
        try:
            self._pattern  # noqa: B018 (it compiles)
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from None

    def __call__(self, task: Task, text: str) -> float:
        return float(self._has_tags(text) and (not self.pattern or self._pattern.search(text) is not None))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.DOTALL)

    def _has_tags(self, text: str) -> bool:
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        places = [text.find(mark) for mark in marks]
        return -1 not in places and places == sorted(places) and all(text.count(mark) == 1 for mark in marks)


@dataclass(frozen=True)
class Length:
    """The length of the answer. The judge's weight is what a word is worth: -0.001 prefers short answers."""

    unit: Unit = "words"
    at_most: float = float("inf")
    """Longer answers count as this long, so that length cannot outweigh the other judges."""

    def __call__(self, task: Task, text: str) -> float:
        return min(float(measure(text, self.unit)), self.at_most)


@dataclass(frozen=True)
class Overlong:
    """0 for an answer of up to limit - buffer, then falling linearly to -1 at the limit: DAPO's soft overlong
    punishment (Yu et al. 2025, arXiv 2503.14476), in words. `train.overlong_share` is the same in tokens, and takes
    truncation into account."""

    limit: int
    buffer: int
    unit: Unit = "words"

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise ValueError("needs 0 < buffer <= limit")

    def __call__(self, task: Task, text: str) -> float:
        over = measure(text, self.unit) - (self.limit - self.buffer)
        return -min(max(over, 0) / self.buffer, 1.0)


def measure(text: str, unit: Unit) -> int:
    return len(text.split()) if unit == "words" else len(text)
