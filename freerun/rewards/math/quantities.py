"""Compares numbers and expressions with units: units are converted, and may be left out."""

import re

from freerun.rewards.math import numeric
from freerun.rewards.math.expression import Node, number, parse_or_none
from freerun.rewards.math.notation import without_spaces
from freerun.rewards.math.units import PERCENT, Unit, without_unit

_CLOCK = re.compile(r"\d{1,2}\s?:\s?\d{2}(?:\s?:\s?\d{2})?")
_DECIMAL_COMMA = re.compile(r"(?P<whole>[-+]?\d+),(?P<part>\d{1,2}|\d{4,}|(?<=\b0,)\d+)(?P<rest>\D.*)?")


def same_quantity(found: str, expected: str) -> bool | None:
    """Whether two numbers or expressions, with or without units, are equal; None if one is not an expression."""
    bare, unit = without_unit(found)
    expected_bare, expected_unit = without_unit(expected)
    if _CLOCK.fullmatch(bare) and _CLOCK.fullmatch(expected_bare):
        alike = unit is None or expected_unit is None or unit == expected_unit
        return without_spaces(bare) == without_spaces(expected_bare) and alike
    if (tree := parse_or_none(expected_bare)) is None:
        return None
    simple = expected_unit is not None or not numeric.symbols(tree)
    if simple and unit is None:
        bare, unit = without_unit(found, glued=True)
    if unit is not None and expected_unit is None:
        expected_bare, expected_unit = without_unit(expected, glued=True)
        tree = parse_or_none(expected_bare) or tree
    mine = parse_or_none(bare)
    if mine is None:
        return None
    return _equal_with_units(mine, unit, tree, expected_unit)


def _equal_with_units(found: Node, unit: Unit | None, expected: Node, expected_unit: Unit | None) -> bool:
    """Whether they are equal in value (50% and 0.5, 2 m and 200 cm), or as written, since a unit or a % may be left
    out. But 0.5% is not 0.5: the % must not be left out below one."""
    mine, theirs = _times(found, unit), _times(expected, expected_unit)
    if (unit is PERCENT) != (expected_unit is PERCENT):
        if numeric.equal(mine, theirs):
            return True
        written, expected_written = _scaled(found, unit), _scaled(expected, expected_unit)
        return numeric.equal(written, expected_written) and not _below_one(written)
    if unit and expected_unit and unit.dimension and expected_unit.dimension:
        return unit.dimension == expected_unit.dimension and numeric.equal(mine, theirs)
    return numeric.equal(_scaled(found, unit), _scaled(expected, expected_unit))


def _below_one(tree: Node) -> bool:
    return not numeric.symbols(tree) and numeric.equal(Node("floor", (Node("abs", (tree,)),)), number(0))


def _scaled(tree: Node, unit: Unit | None) -> Node:
    return Node("*", (tree, number(unit.scale))) if unit and unit.scale != 1 else tree


def _times(tree: Node, unit: Unit | None) -> Node:
    return Node("*", (_scaled(tree, unit), number(unit.factor))) if unit and unit.factor != 1 else _scaled(tree, unit)


def same_in_other_locale(found: str, expected: str) -> bool:
    """Whether they are equal if a comma is a decimal point: 1,22 may be a list of two, or 1.22."""
    commas = [_DECIMAL_COMMA.fullmatch(text) for text in (found, expected)]
    if not any(commas):
        return False
    one, other = (
        f"{match['whole']}.{match['part']}{match['rest'] or ''}" if match else text
        for match, text in zip(commas, (found, expected), strict=True)
    )
    return bool(same_quantity(one, other))
