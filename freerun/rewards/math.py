"""The judge `math`: is the final answer of a text equal to the reference, by value and not by spelling?

Numbers with their units are compared exactly (`quantities.py`); lists, points, intervals, sets and matrices are taken
apart and compared piece by piece; what is left, expressions and equations, is for math-verify. That computes what it is
given, so what would take long (towers of powers, huge factorials) is refused before: unparseable, and no reward. It has
no timeouts of its own here: they are signals, which do not stop a loop in C. What slips through is killed by the
service.
"""

import logging
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from freerun.core import RewardError, Task
from freerun.rewards.answers import LONGEST, TooLong, final_answer, rewritten
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.pieces import Pieces, TooMany, is_text, kinds_agree, take_apart
from freerun.rewards.plain import reference
from freerun.rewards.quantities import read_quantity, without_unit
from freerun.rewards.tame import DEEPEST, Untamed, check_tame, depth

CLOSE = 2e-6
"""How far, relative to it, a decimal may be from the value it stands for. math-verify's six places are absolute."""


class Unreadable(Exception):
    """The answer is no mathematics, or too much of it."""


def math(task: Task, text: str) -> Judged:
    """1 if the final answer of the text equals that of the reference."""
    right = _right_answer(reference(task))
    if not right:
        raise RewardError(f"task {task.id}: there is no answer in its reference {task.answer!r:.100}")
    try:
        found = final_answer(text)
        if found is None:
            return Judged(0.0, JudgeReason.UNPARSEABLE, "no answer found in the text")
        if depth(found) > DEEPEST:
            raise Unreadable(f"brackets more than {DEEPEST} deep")
        if same(_chosen(rewritten(found), right), right):
            return Judged(1.0)
        return Judged(0.0, detail=f"the answer was read as {found!r:.100}, and is {right!r:.100}")
    except TooLong:
        return Judged(0.0, JudgeReason.UNPARSEABLE, f"an answer of more than {LONGEST} characters")
    except (TooMany, Unreadable, Untamed) as error:
        return Judged(0.0, JudgeReason.UNPARSEABLE, str(error))


@lru_cache(maxsize=1024)
def _right_answer(answer: str) -> str:
    """GSM8K ends a worked solution with ####, MATH with a box; any other reference is the answer as it stands."""
    if "####" in answer or "\\boxed" in answer:
        return rewritten(final_answer(answer) or "")
    return rewritten(answer)


def warm_up() -> None:
    """Fill the tables of its parser, which takes a second: workers, forked later, then have them already."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    for answer in WARM_UP:
        same_value(answer, "x^2-1")
        same_value("2", answer)


WARM_UP = [
    *(r"(x+1)(x-1)", r"3x^2-2xy+y", r"\frac{x+1}{x-2}", "0.5x", "e^{-x}", "3+4i", "2^{10}-1", "5!", r"\binom{5}{2}"),
    *(r"\frac{\sqrt{2}}{2}+\pi", r"\sqrt[3]{2}", r"\sin\frac{\pi}{3}", r"\log_2 8", r"\ln 2", "y=2x+3", "x^2+y^2=25"),
]


def _chosen(found: str, right: str) -> str:
    """(C) of (C) 12, where a letter is asked for."""
    choice = re.match(r"\(?(?P<letter>[A-Z])\)(?=\s)", found) if re.fullmatch(r"\(?[A-Z]\)?", right) else None
    if choice is None or re.search(r"\b[A-Z]\)|\b(?:or|and|not)\b", found[choice.end() :]):
        return found
    return choice["letter"]


def same(found: str, right: str) -> bool:
    if _spelled(found) == _spelled(right):
        return True
    found, right = _without_names(found, right)
    if _spelled(found) == _spelled(right):
        return True
    quantity, right_quantity = read_quantity(found), read_quantity(right)
    if right_quantity and not quantity:
        quantity = read_quantity(_GLUED.sub(" ", found))
    if quantity and quantity.unit and not right_quantity:
        right_quantity = read_quantity(_GLUED.sub(" ", right))
    if quantity and right_quantity:
        return quantity.same_as(right_quantity)
    pieces, right_pieces = take_apart(found), take_apart(right)
    if pieces or right_pieces:
        return same_pieces(pieces or Pieces("", [found]), right_pieces or Pieces("", [right]))
    if is_text(right) or is_text(found):
        return _letters(found) == _letters(right) != ""
    if _IN_BASE.search(found + " " + right):
        return False
    return same_value(found, right)


_GLUED = re.compile(r"(?<=\d)(?=[mghsl]$)")
"""12m beside a number, or beside 12 metres, is metres; beside an expression it is a product."""

_IN_BASE = re.compile(r"\d_\w")
"""1010_2: math-verify sees a product."""


def _spelled(answer: str) -> str:
    return re.sub(r"\s+", "", answer)


def _letters(answer: str) -> str:
    letters = re.sub(r"[^A-Za-z0-9]", "", answer)
    return letters.casefold() if len(letters) > 1 else letters


_NAME = r"""(?:\\angle\s*|\\triangle\s*|\|)?(?:\\overline\s*\{\s*[A-Z]{2}\s*\}
    |\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi)
    |[A-Za-z]'*(?:_\w+|_\{\s*\w+\s*\})?(?:\s?\^\s?\{\s?-1\s?\})?(?:\s?\([^()=]*\))?
    |[A-Z]{2,4}|[A-Za-z']{3,}(?:\s+[A-Za-z']+)*)\|?"""
"""x, f(2), a_1, AB, \\angle ABC, \\theta, or words. Not xy, which is a product."""
_NAMED = re.compile(rf"\s*(?P<name>{_NAME})\s*(?:=|\\in(?![A-Za-z]))(?P<value>[^=]+)", re.VERBOSE)


def _without_names(found: str, right: str) -> tuple[str, str]:
    """5 of x = 5, unless both have names and they differ, or the other is an equation without one."""
    one, other = _NAMED.fullmatch(found), _NAMED.fullmatch(right)
    if one and other:
        return (one["value"].strip(), other["value"].strip()) if _called(one) == _called(other) else (found, right)
    if one and "=" not in right:
        return one["value"].strip(), right
    if other and "=" not in found:
        return found, other["value"].strip()
    return found, right


def _called(named: re.Match[str]) -> str:
    return _spelled(named["name"])


def same_pieces(found: Pieces, right: Pieces) -> bool:
    if len(found.items) != len(right.items) or not kinds_agree(found, right):
        return False
    if not (found.ordered or right.ordered):
        return _same_in_some_order(found.items, right.items)
    return all(same(one, other) for one, other in zip(found.items, right.items, strict=True))


def _same_in_some_order(found: list[str], right: list[str]) -> bool:
    left = list(right)
    for item in found:
        match = next((other for other in left if same(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def same_value(found: str, right: str) -> bool:
    """By math-verify, of one expression or equation each."""
    check_tame(found)
    if ("=" in found) != ("=" in right):
        value = _value_of(found if "=" in found else right)
        return value is not None and (same(value, right) if "=" in found else same(found, value))
    if len(found) == 1 == len(right):
        return found == right  # math-verify does not tell x from X
    if (bare := without_unit(found)) != found and same(bare, right):
        return True
    right = without_unit(right, letters=False)
    ours, theirs = _parse(_in_radians(found)), _parse(_in_radians(right))
    if not ours:
        raise Unreadable("math-verify cannot read the answer")
    from math_verify import verify

    return any(
        _finite(other, one) and verify(one, other, timeout_seconds=None) and _close(one, other)
        for other in ours
        for one in theirs
    )


_PROSE = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]{3,}|of|in|at|by|to|is|per|[ck]m|kg|ft|lb|hr|mi)(?![A-Za-z])")


def _value_of(equation: str) -> str | None:
    """The last side, where that is what is meant: 2 + 4 = 6, m + n = 6, 3 eggs * 2 = 6. Not 2x = 6, which is still to
    be solved, or 1 + 1 = 3, which is wrong."""
    *_, side, last = (part.strip() for part in equation.split("="))
    if re.fullmatch(_NAME, side, re.VERBOSE) or _PROSE.search(side):
        return last
    side = re.sub(r"(?<=\d)\s*x\s*(?=\d)", r"\\cdot ", side)
    letters = set(re.findall("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", side)))
    if len(letters) == 1:
        return last if same(side, last) else None
    return None if not letters and _is_another_number(side, last) else last


def _is_another_number(side: str, last: str) -> bool:
    """Than what it is said to be, in so many decimals. What cannot be read is not known to be."""
    said, computed = read_quantity(last), _parse(side)
    if said is None or not computed:
        return False
    try:
        off = abs(float(computed[0]) - float(said.value))
    except (TypeError, ValueError, OverflowError):
        return False
    return off > 0.5 * 10.0 ** -(said.places or 0) + 1e-9


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


def _in_radians(answer: str) -> str:
    return re.sub(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})", r"{(\1\\pi/180)}", answer)


def _finite(found: Any, right: Any) -> bool:
    """Or infinite alike. To math-verify 0.9 \\infty^\\pi \\pi is any surd: their difference evaluates to nothing."""
    from sympy import nan, oo, zoo

    if not (found.has(oo, -oo, zoo, nan) or right.has(oo, -oo, zoo, nan)):
        return True
    return bool(found == right)


def _close(one: Any, other: Any) -> bool:
    """That 1.2e-7 is not 3.4e-7. What has no decimals in it was compared exactly."""
    from sympy import Float

    try:
        if not (one.has(Float) or other.has(Float)):
            return True
        difference, size = abs(complex(one - other)), max(abs(complex(one)), abs(complex(other)))
    except (AttributeError, TypeError, ValueError):  # an equation, a text
        return True
    return difference <= CLOSE * size
