"""math-verify, for what our own reader does not know: sums, limits, functions without a name, products of matrices.

It computes what it is given, so it is only asked about what is short and has small numbers, for at most `SECONDS`.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any

SECONDS = 2.0
"""Seconds of processor time, so that a verdict does not depend on what else the machine does."""
LONGEST = 300
"""Characters."""
_COMPUTES = re.compile(r"\^|!|\\(?:binom|sum|prod|int|lim|bigcup|bigcap)(?![A-Za-z])")


class OutOfTime(BaseException):
    """Not an Exception: math-verify catches those."""


class Clock:
    """The time that is left to one judgement, however often it asks."""

    def __init__(self) -> None:
        self.left_s = SECONDS

    def refill(self) -> None:
        self.left_s = SECONDS

    @contextmanager
    def running(self) -> Iterator[None]:
        """By a timer, which stops what runs in Python; numbers that would keep C busy were refused before."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise OutOfTime

        if threading.current_thread() is not threading.main_thread():
            yield  # signals are for the main thread alone
            return
        before = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, max(self.left_s, 1e-3))
        try:
            yield
        finally:
            self.left_s = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]
            signal.signal(signal.SIGVTALRM, before)


clock = Clock()


def same(found: str, right: str) -> bool | None:
    """None where it cannot read one of them, or takes too long."""
    if not (_is_small(found) and _is_small(right)):
        return None
    from math_verify import verify

    try:
        with clock.running():
            ours, theirs = _parse(found), _parse(right)
            if not ours or not theirs:
                return None
            return any(
                _finite(one, other) and verify(other, one, timeout_seconds=None) for one in ours for other in theirs
            )
    except OutOfTime:
        return None


def warm_up() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    for answer in (
        r"\sum_{k=1}^n k",
        "f(x)=x^2",
        r"\begin{pmatrix}1\end{pmatrix}+\begin{pmatrix}2\end{pmatrix}",
        "x>1",
    ):
        same(answer, answer + "+1")


def _is_small(text: str) -> bool:
    """A power of large numbers, a factorial or a long sum would keep it busy past any deadline, in C."""
    if len(text) > LONGEST or re.search(r"\^\s*\{[^{}]*\^|!\s*\)?\s*!|\d\s+\d", text):
        return False
    return not (_COMPUTES.search(text) and re.search(r"\d{4}|\^\s*\{?\s*-?\d{3}", text))


@lru_cache(maxsize=256)
def _parse(answer: str) -> list[Any]:
    """The whole of it or nothing: by itself math-verify would be content with any number it finds in the rubble."""
    from math_verify import LatexExtractionConfig, parse

    as_usual = LatexExtractionConfig()
    whole = LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=replace(as_usual.normalization_config, units=False),  # the t of 60t is none
    )
    parsed: list[Any] = parse(
        f"\\boxed{{{answer}}}", [whole], "no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    return parsed


def _finite(found: Any, right: Any) -> bool:
    """Or infinite alike. To math-verify 0.9 \\infty^\\pi \\pi is any surd: their difference evaluates to nothing."""
    from sympy import Set, nan, oo, zoo

    if not (found.has(oo, -oo, zoo, nan) or right.has(oo, -oo, zoo, nan)):
        return True
    return bool(found == right) or isinstance(found, Set) or isinstance(right, Set)
