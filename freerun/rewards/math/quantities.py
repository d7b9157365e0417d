"""Numbers and expressions with what stands beside them: units are converted, and may be left out."""

import re

from freerun.rewards.math import numeric
from freerun.rewards.math.expression import Node, number, read_or_none
from freerun.rewards.math.notation import spelled
from freerun.rewards.math.units import PERCENT, Unit, without_unit

_CLOCK = re.compile(r"\d{1,2}\s?:\s?\d{2}(?:\s?:\s?\d{2})?")
_DECIMAL_COMMA = re.compile(r"(?P<whole>[-+]?\d+),(?P<part>\d{1,2}|\d{4,}|(?<=\b0,)\d+)(?P<rest>\D.*)?")


def same_quantity(found: str, right: str) -> bool | None:
    """Whether two numbers or expressions, with or without units, are equal; None where one is no expression."""
    bare, unit = without_unit(found)
    right_bare, right_unit = without_unit(right)
    if _CLOCK.fullmatch(bare) and _CLOCK.fullmatch(right_bare):
        alike = unit is None or right_unit is None or unit == right_unit
        return spelled(bare) == spelled(right_bare) and alike
    if (tree := read_or_none(right_bare)) is None:
        return None
    simple = right_unit is not None or not numeric.symbols(tree)
    if simple and unit is None:
        bare, unit = without_unit(found, glued=True)
    if unit is not None and right_unit is None:
        right_bare, right_unit = without_unit(right, glued=True)
        tree = read_or_none(right_bare) or tree
    mine = read_or_none(bare)
    if mine is None:
        return None
    return _equal_with_units(mine, unit, tree, right_unit)


def _equal_with_units(found: Node, unit: Unit | None, right: Node, right_unit: Unit | None) -> bool:
    """Equal in worth (50% and 0.5, 2 m and 200 cm), or equal as written, since a unit or a % may be left out. But 0.5%
    is not 0.5: below one, nobody leaves it out."""
    mine, theirs = _times(found, unit), _times(right, right_unit)
    if (unit is PERCENT) != (right_unit is PERCENT):
        if numeric.equal(mine, theirs):
            return True
        written, right_written = _scaled(found, unit), _scaled(right, right_unit)
        return numeric.equal(written, right_written) and not _below_one(written)
    if unit and right_unit and unit.dimension and right_unit.dimension:
        return unit.dimension == right_unit.dimension and numeric.equal(mine, theirs)
    return numeric.equal(_scaled(found, unit), _scaled(right, right_unit))


def _below_one(tree: Node) -> bool:
    return not numeric.symbols(tree) and numeric.equal(Node("floor", (Node("abs", (tree,)),)), number(0))


def _scaled(tree: Node, unit: Unit | None) -> Node:
    return Node("*", (tree, number(unit.scale))) if unit and unit.scale != 1 else tree


def _times(tree: Node, unit: Unit | None) -> Node:
    return Node("*", (_scaled(tree, unit), number(unit.worth))) if unit and unit.worth != 1 else _scaled(tree, unit)


def same_in_other_locale(found: str, right: str) -> bool:
    """1,22 is a list of two, or one and a bit where that is written with a comma."""
    commas = [_DECIMAL_COMMA.fullmatch(text) for text in (found, right)]
    if not any(commas):
        return False
    one, other = (
        f"{match['whole']}.{match['part']}{match['rest'] or ''}" if match else text
        for match, text in zip(commas, (found, right), strict=True)
    )
    return bool(same_quantity(one, other))
