"""Equations and inequalities: what is only a name for a value (x = 5), and which are the same up to a factor."""

import re

from freerun.rewards.math import numeric
from freerun.rewards.math.computing import Hard
from freerun.rewards.math.expression import Node, number, read
from freerun.rewards.math.notation import spelled
from freerun.rewards.math.shapes import split, take_apart
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.math.units import without_unit

_GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega)"
_LETTER = rf"(?:{_GREEK}|[A-Za-z])'*(?:_\w+|_\{{[^{{}}]*\}})?"
_NAME = rf"""(?:\\(?:angle|triangle|overline|vec|widehat)\s*|m\s?\\angle\s*|\|)?(?:\{{\s*[A-Z]{{2}}\s*\}}|\|?
    {_LETTER}(?:\s?\^\s?\{{\s?-1\s?\}})?(?:\s?\([^()=]*\))?|[A-Z]{{2,4}}|[A-Za-z']{{3,}}(?:\s+[A-Za-z']+)*)\|?"""
"""x, f(2), a_1, AB, \\angle ABC, \\theta, or words. Not xy, which is a product."""
_NAMES = rf"""(?:{_NAME}|\(\s*{_LETTER}(?:\s*,\s*{_LETTER})+\s*\)|{_NAME}\s*:\s*{_NAME}
    |\\frac\s*\{{{_NAME}\}}\s*\{{{_NAME}\}}|\\frac\s*\{{d[a-z]?\}}\{{d[a-z]\}})"""
"""Also (x, y), a : b and \\frac{AB}{CD}."""
_NAMED = re.compile(rf"\s*(?P<name>{_NAMES})\s*(?:=|\\in(?![A-Za-z]))(?P<value>.+)", re.VERBOSE | re.DOTALL)
_RELATION = re.compile(r"(=|<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z]))")
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_PROSE = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]{3,}|of|in|at|by|to|is|per|[ck]m|kg|ft|lb|hr|mi)(?![A-Za-z])")


def without_names(found: str, right: str) -> tuple[str, str]:
    """5 of x = 5, unless both have names and they differ, or the other is an equation without one."""
    found, right = _shortened(found), _shortened(right)
    one, other = named(found), named(right)
    if one and other:
        alike = _called(one) == _called(other)
        return (one["value"].strip(), other["value"].strip()) if alike else (found, right)
    if one and not _is_equation(right):
        return one["value"].strip(), right
    if other and (not _is_equation(found) or other["name"].startswith("(")):
        return found, other["value"].strip()
    if not _is_equation(right) and _is_equation(found) and take_apart(found) is None:
        return last_side(found) or found, right
    return found, right


def named(answer: str) -> re.Match[str] | None:
    named = _NAMED.fullmatch(answer)
    return None if named is None or _is_equation(named["value"]) else named


def _called(named: re.Match[str]) -> str:
    """Without the letter of its argument: f(x) is f(t), and y too."""
    return re.sub(r"^(?:[fgh]\(x\)|y)$", "y", re.sub(r"(?<!^[fgh])\([A-Za-z]\)$", "", spelled(named["name"])))


def _is_equation(answer: str) -> bool:
    """Not \\sum_{k=1}^n, whose sign is in braces."""
    return len(split(answer, "=")) > 1


def _shortened(answer: str) -> str:
    """x = 7 of x = 3 + 4 = 7, and of 0 = y = x = 7."""
    sides = split(answer, "=")
    if len(sides) < 3 or take_apart(answer) is not None:
        return answer
    name = next((side for side in (sides[0], sides[-2]) if re.fullmatch(_NAMES, side, re.VERBOSE)), None)
    return f"{name} = {sides[-1]}" if name else answer


def last_side(equation: str) -> str | None:
    """Where that is what is meant: 2 + 4 = 6, m + n = 6, 3 eggs * 2 = 6. Not 2x = 6, which is still to be solved, or
    1 + 1 = 3, which is wrong."""
    *_, side, last = split(equation, "=")
    if re.fullmatch(_NAMES, side, re.VERBOSE) or _PROSE.search(side):
        return last
    side = re.sub(r"(?<=\d)\s*x\s*(?=\d)", r"\\cdot ", side)
    try:
        (bare, unit), (value, said_unit) = without_unit(side), without_unit(last)
        if (unit is None) != (said_unit is None):
            return last
        tree, said = read(bare), read(value)
        names = numeric.symbols(tree)
        if len(names) > 1:
            is_curve = len(names & {"x", "y", "z"}) > 1 and ("^" in side or last == "0")
            return None if is_curve else last
        return last if numeric.equal(tree, said) or _rounds_to(tree, value) else None
    except Unreadable:
        return last
    except Hard:
        return None


def _rounds_to(tree: Node, said: str) -> bool:
    """10/3 to 3.33, in as many places as are said."""
    decimal = re.fullmatch(r"-?\d*\.(?P<places>\d+)", said.replace(",", ""))
    if not decimal or numeric.symbols(tree):
        return False
    scale = number(10 ** len(decimal["places"]))
    rounded = Node("floor", (Node("+", (Node("*", (tree, scale)), Node("/", (number(1), number(2))))),))
    return numeric.equal(rounded, Node("*", (read(said), scale)))


def without_approximation(answer: str) -> str:
    """\\sqrt{51} of \\sqrt{51} \\approx 7.14."""
    exact, sign, about = answer.partition("\\approx")
    exact, about = exact.strip(), about.strip()
    if not sign:
        return answer
    return about if not exact or re.fullmatch(_NAME, exact, re.VERBOSE) else exact


def same_relation(found: str, right: str) -> bool | None:
    """Whether two equations or inequalities are the same up to a factor; None where that does not decide it."""
    one, other = _RELATION.split(found), _RELATION.split(right)
    if {len(one), len(other)} == {1, 3} and "=" in one + other:
        return False  # 25 is not x^2 + y^2 = 25, and 2x = 5 not 5
    if len(one) != 3 or len(other) != 3:
        return None
    try:
        factor = numeric.proportional(_difference(one), _difference(other))
    except Unreadable:
        return None
    if not factor:
        return None
    sign, right_sign = one[1].strip(), other[1].strip()
    return sign == (right_sign if factor > 0 else _TURNED.get(right_sign, right_sign))


def _difference(relation: list[str]) -> Node:
    return Node("-", (read(relation[0].strip()), read(relation[2].strip())))
