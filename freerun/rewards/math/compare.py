"""Do two answers mean the same? Both have been normalized by `notation.py`.

The cheapest comparison comes first: same spelling; without names (x = 5 is 5); words; numbers and expressions by value,
with units converted; equations up to a factor; lists item by item. What our parser does not know goes to math-verify.
"""

import re

from freerun.rewards.math import fallback
from freerun.rewards.math.compound import Compound, kinds_match, parse_compound
from freerun.rewards.math.equations import match_named, same_relation, without_approximation, without_names
from freerun.rewards.math.notation import without_spaces
from freerun.rewards.math.quantities import same_in_other_locale, same_quantity
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.math.words import choice, chosen, same_words

_UNEVALUATED = re.compile(r"\\(?:sum|prod|i*int|lim|bigcup|bigcap)(?![A-Za-z])")
_NEEDS_MATH_VERIFY = re.compile(
    r"matrix|array|\\(?:c[au]p|setminus|mathbb|[lg]e|in)(?![A-Za-z])|[<>]|(?<![\\A-Za-z])[A-Za-z]\s?\(|"
    + _UNEVALUATED.pattern
)
"""What only math-verify knows: sums and products of matrices, sets, unknown functions, sums."""


def same(found: str, expected: str) -> bool:
    """Raises `Unreadable` or `TooExpensive` if the answer cannot be compared."""
    if without_spaces(found) == without_spaces(expected):
        return bool(expected)
    found, expected = without_approximation(found), without_approximation(expected)
    if asked := choice(expected):
        return chosen(found) == asked
    found, expected = without_names(found, expected)
    if without_spaces(found) == without_spaces(expected):
        return True
    if "\\infty" in found + expected and not re.search(r"[,<>=]|\\[cl]", found + expected):
        return without_spaces(found).lstrip("+") == without_spaces(expected).lstrip("+")
    for compare in (same_words, same_quantity, same_relation):
        verdict = compare(found, expected)
        if verdict is not None:
            return verdict
    return _same_compound_or_by_math_verify(found, expected)


def _same_compound_or_by_math_verify(found: str, expected: str) -> bool:
    compound, expected_compound = parse_compound(found), parse_compound(expected)
    if compound or expected_compound:
        if same_compound(compound or Compound("", [found]), expected_compound or Compound("", [expected])):
            return True
        return same_in_other_locale(found, expected) or bool(_by_math_verify(found, expected))
    judged = _by_math_verify(found, expected)
    if judged is None:
        raise Unreadable("it cannot be read as mathematics")
    return judged


def _by_math_verify(found: str, expected: str) -> bool | None:
    """Ask math-verify if one of them contains something that our parser does not know; otherwise None. An answer with a
    sum that the reference does not have is not finished."""
    if _UNEVALUATED.search(found) and not _UNEVALUATED.search(expected):
        raise Unreadable("a sum, product, integral or limit that is not evaluated")
    return fallback.same(found, expected) if _NEEDS_MATH_VERIFY.search(found + expected) else None


def same_compound(found: Compound, expected: Compound) -> bool:
    items, expected_items = _distinct(found), _distinct(expected)
    if len(items) != len(expected_items) or not kinds_match(found, expected):
        return False
    if not (found.ordered or expected.ordered):
        return _same_in_some_order(items, expected_items)
    return all(
        _same_if_readable(one, other) for one, other in zip(_by_name(items), _by_name(expected_items), strict=True)
    )


def _distinct(compound: Compound) -> list[str]:
    """The items, with points that appear several times only once."""
    if compound.ordered or not all(item.startswith("(") for item in compound.items):
        return compound.items
    return list({without_spaces(item): item for item in compound.items}.values())


def _by_name(items: list[str]) -> list[str]:
    """Sort items that have names: y = 1, x = 2 becomes x = 2, y = 1."""
    return sorted(items, key=without_spaces) if all(map(match_named, items)) else items


def _same_in_some_order(found: list[str], expected: list[str]) -> bool:
    unmatched = list(expected)
    for item in found:
        match = next((other for other in unmatched if _same_if_readable(item, other)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return True


def _same_if_readable(found: str, expected: str) -> bool:
    try:
        return same(found, expected)
    except Unreadable:
        return False
