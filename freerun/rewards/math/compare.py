"""Do two answers mean the same? Both are in the one way of writing of `notation.py`.

Cheapest first: the same letters; names left out (x = 5 is 5); words; numbers and expressions by value, their units
converted; equations up to a factor; pieces one by one. What our reader does not know goes to math-verify, last.
"""

import re

from freerun.rewards.math import library
from freerun.rewards.math.equations import named, same_relation, without_approximation, without_names
from freerun.rewards.math.notation import spelled
from freerun.rewards.math.quantities import same_in_other_locale, same_quantity
from freerun.rewards.math.shapes import Pieces, kinds_agree, take_apart
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.math.words import choice, chosen, same_words

_UNWORKED = re.compile(r"\\(?:sum|prod|i*int|lim|bigcup|bigcap)(?![A-Za-z])")
_BEYOND = re.compile(
    r"matrix|array|\\(?:c[au]p|setminus|mathbb|[lg]e|in)(?![A-Za-z])|[<>]|(?<![\\A-Za-z])[A-Za-z]\s?\(|"
    + _UNWORKED.pattern
)
"""What only the library knows: matrices added and multiplied, sets, functions without a name, sums."""


def same(found: str, right: str) -> bool:
    """Raises `Unreadable` or `Hard` where nothing can be made of the answer."""
    if spelled(found) == spelled(right):
        return bool(right)
    found, right = without_approximation(found), without_approximation(right)
    if asked := choice(right):
        return chosen(found) == asked
    found, right = without_names(found, right)
    if spelled(found) == spelled(right):
        return True
    if "\\infty" in found + right and not re.search(r"[,<>=]|\\[cl]", found + right):
        return spelled(found).lstrip("+") == spelled(right).lstrip("+")
    for compare in (same_words, same_quantity, same_relation):
        verdict = compare(found, right)
        if verdict is not None:
            return verdict
    return _same_pieces_or_by_library(found, right)


def _same_pieces_or_by_library(found: str, right: str) -> bool:
    pieces, right_pieces = take_apart(found), take_apart(right)
    if pieces or right_pieces:
        if same_pieces(pieces or Pieces("", [found]), right_pieces or Pieces("", [right])):
            return True
        return same_in_other_locale(found, right) or bool(_by_library(found, right))
    judged = _by_library(found, right)
    if judged is None:
        raise Unreadable("it cannot be read as mathematics")
    return judged


def _by_library(found: str, right: str) -> bool | None:
    """Where there is something in them that we do not know. An answer that is a sum, where the reference is none, still
    has to be worked out."""
    if _UNWORKED.search(found) and not _UNWORKED.search(right):
        raise Unreadable("a sum, product, integral or limit that is not worked out")
    return library.same(found, right) if _BEYOND.search(found + right) else None


def same_pieces(found: Pieces, right: Pieces) -> bool:
    items, right_items = _distinct(found), _distinct(right)
    if len(items) != len(right_items) or not kinds_agree(found, right):
        return False
    if not (found.ordered or right.ordered):
        return _same_in_some_order(items, right_items)
    return all(_same_or_not(one, other) for one, other in zip(_by_name(items), _by_name(right_items), strict=True))


def _distinct(pieces: Pieces) -> list[str]:
    """Every point once."""
    if pieces.ordered or not all(item.startswith("(") for item in pieces.items):
        return pieces.items
    return list({spelled(item): item for item in pieces.items}.values())


def _by_name(items: list[str]) -> list[str]:
    """y = 1, x = 2 as (2, 1)."""
    return sorted(items, key=spelled) if all(map(named, items)) else items


def _same_in_some_order(found: list[str], right: list[str]) -> bool:
    left = list(right)
    for item in found:
        match = next((other for other in left if _same_or_not(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_or_not(found: str, right: str) -> bool:
    try:
        return same(found, right)
    except Unreadable:
        return False
