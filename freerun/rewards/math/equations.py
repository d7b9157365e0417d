"""Equations and inequalities: removing names of values (x = 5), and comparing relations up to a factor."""

import re

from freerun.rewards.math import numeric
from freerun.rewards.math.compound import parse_compound, split
from freerun.rewards.math.evaluate import TooExpensive
from freerun.rewards.math.expression import Node, number, parse
from freerun.rewards.math.notation import without_spaces
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.math.units import without_unit

_GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|sigma|phi|omega)"
_LETTER = rf"(?:{_GREEK}|[A-Za-z])'*(?:_\w+|_\{{[^{{}}]*\}})?"
_NAME = rf"""(?:\\(?:angle|triangle|overline|vec|widehat)\s*|m\s?\\angle\s*|\|)?(?:\{{\s*[A-Z]{{2}}\s*\}}|\|?
    {_LETTER}(?:\s?\^\s?\{{\s?-1\s?\}})?(?:\s?\([^()=]*\))?|[A-Z]{{2,4}}|[A-Za-z']{{3,}}(?:\s+[A-Za-z']+)*)\|?"""
"""A name: x, f(2), a_1, AB, \\angle ABC, \\theta, or words. Not xy, which is a product."""
_NAMES = rf"""(?:{_NAME}|\(\s*{_LETTER}(?:\s*,\s*{_LETTER})+\s*\)|{_NAME}\s*:\s*{_NAME}
    |\\frac\s*\{{{_NAME}\}}\s*\{{{_NAME}\}}|\\frac\s*\{{d[a-z]?\}}\{{d[a-z]\}})"""
"""A name, or several: (x, y), a : b and \\frac{AB}{CD}."""
_NAMED = re.compile(rf"\s*(?P<name>{_NAMES})\s*(?:=|\\in(?![A-Za-z]))(?P<value>.+)", re.VERBOSE | re.DOTALL)
_RELATION = re.compile(r"(=|<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z]))")
_MIRRORED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_PROSE = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]{3,}|of|in|at|by|to|is|per|[ck]m|kg|ft|lb|hr|mi)(?![A-Za-z])")


def without_names(found: str, expected: str) -> tuple[str, str]:
    """Reduce x = 5 to 5, unless both answers have names that differ, or the other is an equation without a name."""
    found, expected = _last_equality(found), _last_equality(expected)
    one, other = match_named(found), match_named(expected)
    if one and other:
        alike = _comparable_name(one) == _comparable_name(other)
        return (one["value"].strip(), other["value"].strip()) if alike else (found, expected)
    if one and not _is_equation(expected):
        return one["value"].strip(), expected
    if other and (not _is_equation(found) or other["name"].startswith("(")):
        return found, other["value"].strip()
    if not _is_equation(expected) and _is_equation(found) and parse_compound(found) is None:
        return last_side(found) or found, expected
    return found, expected


def match_named(answer: str) -> re.Match[str] | None:
    """Match NAME = VALUE; None for anything else."""
    match = _NAMED.fullmatch(answer)
    return None if match is None or _is_equation(match["value"]) else match


def _comparable_name(match: re.Match[str]) -> str:
    """The name without the letter of its argument: f(x) is f(t), and also y."""
    name = re.sub(r"(?<!^[fgh])\([A-Za-z]\)$", "", without_spaces(match["name"]))
    return re.sub(r"^(?:[fgh]\(x\)|y)$", "y", name)


def _is_equation(answer: str) -> bool:
    """Whether it has an equals sign outside brackets; that in \\sum_{k=1}^n does not count."""
    return len(split(answer, "=")) > 1


def _last_equality(answer: str) -> str:
    """Reduce x = 3 + 4 = 7, and also 0 = y = x = 7, to x = 7."""
    sides = split(answer, "=")
    if len(sides) < 3 or parse_compound(answer) is not None:
        return answer
    name = next((side for side in (sides[0], sides[-2]) if re.fullmatch(_NAMES, side, re.VERBOSE)), None)
    return f"{name} = {sides[-1]}" if name else answer


def last_side(equation: str) -> str | None:
    """The last side of an equation, if that is the answer: 2 + 4 = 6, m + n = 6, 3 eggs * 2 = 6. None for 2x = 6, which
    is not solved, and for 1 + 1 = 3, which is wrong."""
    *_, side, last = split(equation, "=")
    if re.fullmatch(_NAMES, side, re.VERBOSE) or _PROSE.search(side):
        return last
    side = re.sub(r"(?<=\d)\s*x\s*(?=\d)", r"\\cdot ", side)
    try:
        (bare, unit), (value, last_unit) = without_unit(side), without_unit(last)
        if (unit is None) != (last_unit is None):
            return last
        tree, stated = parse(bare), parse(value)
        names = numeric.symbols(tree)
        if len(names) > 1:
            is_curve = len(names & {"x", "y", "z"}) > 1 and ("^" in side or last == "0")
            return None if is_curve else last
        return last if numeric.equal(tree, stated) or _rounds_to(tree, value) else None
    except Unreadable:
        return last
    except TooExpensive:
        return None


def _rounds_to(tree: Node, value: str) -> bool:
    """Whether the value is the expression rounded to as many places as it has: 10/3 rounds to 3.33."""
    decimal = re.fullmatch(r"-?\d*\.(?P<places>\d+)", value.replace(",", ""))
    if not decimal or numeric.symbols(tree):
        return False
    scale = number(10 ** len(decimal["places"]))
    rounded = Node("floor", (Node("+", (Node("*", (tree, scale)), Node("/", (number(1), number(2))))),))
    return numeric.equal(rounded, Node("*", (parse(value), scale)))


def without_approximation(answer: str) -> str:
    """Reduce \\sqrt{51} \\approx 7.14 to \\sqrt{51}."""
    exact, sign, about = answer.partition("\\approx")
    exact, about = exact.strip(), about.strip()
    if not sign:
        return answer
    return about if not exact or re.fullmatch(_NAME, exact, re.VERBOSE) else exact


def same_relation(found: str, expected: str) -> bool | None:
    """Whether two equations or inequalities are the same up to a factor; None if this cannot be decided."""
    one, other = _RELATION.split(found), _RELATION.split(expected)
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
    sign, expected_sign = one[1].strip(), other[1].strip()
    return sign == (expected_sign if factor > 0 else _MIRRORED.get(expected_sign, expected_sign))


def _difference(relation: list[str]) -> Node:
    return Node("-", (parse(relation[0].strip()), parse(relation[2].strip())))
