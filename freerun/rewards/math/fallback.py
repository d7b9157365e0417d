"""Compares answers with math-verify, for what our own parser does not know: sums, limits, functions, matrix products.

math-verify computes whatever it is given. So it only gets short answers with small numbers, and at most `TIMEOUT_S`.
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

TIMEOUT_S = 2.0
"""Processor time, so that a verdict does not depend on what else the machine does."""
MAX_CHARS = 300
_COMPUTES = re.compile(r"\^|!|\\(?:binom|sum|prod|int|lim|bigcup|bigcap)(?![A-Za-z])")


class OutOfTime(BaseException):
    """The time budget is used up. Not an Exception, because math-verify catches those."""


class TimeBudget:
    """The time that one judgement may still spend in math-verify, for all its comparisons together."""

    def __init__(self) -> None:
        self.left_s = TIMEOUT_S

    def refill(self) -> None:
        self.left_s = TIMEOUT_S

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raise OutOfTime when the time is up. A timer can interrupt Python code only; numbers that would keep C code
        busy were refused before."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise OutOfTime

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread receives signals
            return
        before = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, max(self.left_s, 1e-3))
        try:
            yield
        finally:
            self.left_s = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]
            signal.signal(signal.SIGVTALRM, before)


time_budget = TimeBudget()


def same(found: str, expected: str) -> bool | None:
    """Whether two answers are equal; None if math-verify cannot read one of them, or takes too long."""
    if not (_is_small(found) and _is_small(expected)):
        return None
    from math_verify import verify

    try:
        with time_budget.running():
            readings, expected_readings = _parse(found), _parse(expected)
            if not readings or not expected_readings:
                return None
            return any(
                _comparable(one, other) and verify(other, one, timeout_seconds=None)
                for one in readings
                for other in expected_readings
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
    """Whether it is safe to compute: a power of large numbers, a factorial or a long sum could take hours, in C."""
    if len(text) > MAX_CHARS or re.search(r"\^\s*\{[^{}]*\^|!\s*\)?\s*!|\d\s+\d", text):
        return False
    return not (_COMPUTES.search(text) and re.search(r"\d{4}|\^\s*\{?\s*-?\d{3}", text))


@lru_cache(maxsize=256)
def _parse(answer: str) -> list[Any]:
    """Parse the whole answer or nothing; by default, math-verify would accept any number that it finds in it."""
    from math_verify import LatexExtractionConfig, parse

    default = LatexExtractionConfig()
    whole_answer = LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=replace(default.normalization_config, units=False),  # the t in 60t is not a unit
    )
    parsed: list[Any] = parse(
        f"\\boxed{{{answer}}}", [whole_answer], "no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    return parsed


def _comparable(found: Any, expected: Any) -> bool:
    """Whether both are finite, equal or sets. math-verify 0.9 takes \\infty^\\pi \\pi for any surd, because their
    difference does not evaluate to a number."""
    from sympy import Set, nan, oo, zoo

    if not (found.has(oo, -oo, zoo, nan) or expected.has(oo, -oo, zoo, nan)):
        return True
    return bool(found == expected) or isinstance(found, Set) or isinstance(expected, Set)
