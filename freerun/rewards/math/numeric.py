"""Are two expressions equal? Decided by evaluating both at a few points.

Expressions that agree to 60 digits and more at several fixed points are equal, except with negligible probability. An
expression that is too expensive to evaluate equals only expressions of the same structure.
"""

import zlib
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mpmath import mp, mpc, mpf

from freerun.rewards.math.evaluate import (
    CONSTANTS,
    MAX_FRACTION_BITS,
    NOISE_BITS,
    Evaluator,
    TooExpensive,
    Undefined,
    Value,
    magnitude,
    to_mpmath,
)
from freerun.rewards.math.expression import Node

PRECISION = 300
"""Bits, in addition to those that large numbers need."""
POINTS = 6
CLOSE, RELATIVE = mpf(6e-7), mpf(1e-5)
"""How far a decimal may be from the exact value: 0.333333 is a third, 0.3333 is not."""


def equal(found: Node, expected: Node) -> bool:
    """Raises `TooExpensive` if it cannot be decided."""
    if found == expected:
        return True
    try:
        return any(_equal_by_value(found, expected, base) for base in _log_bases(found, expected))
    except TooExpensive:
        if _equal_by_structure(found, expected):
            return True
        raise


def _log_bases(found: Node, expected: Node) -> tuple[int, ...]:
    """The bases to try for \\log: natural (0) to some authors and 10 to others, but the same in task and answer."""
    return (0, 10) if "log" in _ops(found) | _ops(expected) else (0,)


def _equal_by_value(found: Node, expected: Node, log_base: int) -> bool:
    names = sorted(symbols(found) | symbols(expected))
    decimals = has_decimals(found) or has_decimals(expected)
    agree, unreal = 0, list[bool]()
    for n in range(POINTS if names else 1):
        point = {name: _coordinate(name, n) for name in names}
        try:
            same, real = _same_at(found, expected, point, log_base, decimals)
        except Undefined:
            if not names:
                return False
            continue
        if not real:
            unreal.append(same)
        elif not same:
            return False
        else:
            agree += 1
    return agree > 0 or (bool(unreal) and all(unreal))


def _coordinate(name: str, n: int) -> Fraction:
    """The value of a name at the n-th point: a small fraction, possibly negative from the third point on."""
    seed = zlib.crc32(f"{name} {n}".encode())
    size = Fraction(seed % 211 + 30, (seed >> 8) % 83 + 61)
    return -size if n >= 2 and (n == 2 or seed >> 20 & 1) else size


def _same_at(
    found: Node, expected: Node, point: dict[str, Fraction], log_base: int, decimals: bool
) -> tuple[bool, bool]:
    """Whether they are equal at the point, and whether both are real."""
    precision = PRECISION
    for _ in range(4):
        evaluator = Evaluator(point, log_base, precision)
        one, other = evaluator.value(found), evaluator.value(expected)
        if isinstance(one, Fraction) and isinstance(other, Fraction):
            return one == other or (decimals and _close(one, other)), True
        needed = PRECISION + max(evaluator.scale, magnitude(one), magnitude(other)) + evaluator.lost
        if needed <= precision + NOISE_BITS:
            break
        precision = needed
        if precision > MAX_FRACTION_BITS:
            raise TooExpensive("a number with too many digits")
    else:
        raise Undefined  # the value grows with the precision, as that of \tan(\pi/2) does
    with mp.workprec(precision):
        one, other = to_mpmath(one), to_mpmath(other)
        off = abs(one - other)
        size = max(magnitude(one), magnitude(other))
        same = off <= mpf(2) ** (size + evaluator.lost - precision + NOISE_BITS) or (decimals and _close(one, other))
        return bool(same), not (isinstance(one, mpc) or isinstance(other, mpc))


def _close(one: Value, other: Value) -> bool:
    one, other = to_mpmath(one), to_mpmath(other)
    off = abs(one - other)
    return bool(off <= CLOSE and off <= RELATIVE * max(abs(one), abs(other)))


def _equal_by_structure(found: Node, expected: Node) -> bool:
    """Whether both are the same operation on equal operands, in any order if the operation is commutative."""
    if found.op != expected.op or len(found.args) != len(expected.args) or found.op in ("number", "symbol"):
        return found == expected
    orders = [expected.args, expected.args[::-1]] if found.op in ("+", "*") else [expected.args]
    return any(all(map(_equal_if_computable, found.args, order)) for order in orders)


def _equal_if_computable(found: Any, expected: Any) -> bool:
    try:
        return equal(found, expected)
    except TooExpensive:
        return False


@lru_cache(maxsize=512)
def _ops(tree: Node) -> frozenset[str]:
    return frozenset({tree.op}).union(*(_ops(arg) for arg in tree.args if isinstance(arg, Node)))


@lru_cache(maxsize=512)
def symbols(tree: Node) -> frozenset[str]:
    """The variables: letters that are not constants."""
    if tree.op == "symbol":
        return frozenset() if tree.args[0] in CONSTANTS else frozenset({str(tree.args[0])})
    return frozenset[str]().union(*(symbols(arg) for arg in tree.args if isinstance(arg, Node)))


def has_decimals(tree: Node) -> bool:
    if tree.op == "number":
        return len(tree.args) > 1
    return any(has_decimals(arg) for arg in tree.args if isinstance(arg, Node))


def proportional(found: Node, expected: Node) -> int:
    """1 or -1 if one is the other times a constant of that sign, else 0. So x + y - 5 = 0 is 2x + 2y = 10."""
    names = sorted(symbols(found) | symbols(expected))
    ratios = []
    for n in range(POINTS):
        evaluator = Evaluator({name: _coordinate(name, n) for name in names}, 0, 2 * PRECISION)
        try:
            one, other = evaluator.value(found), evaluator.value(expected)
            if (one == 0) != (other == 0):
                return 0
            if one != 0:
                with mp.workprec(2 * PRECISION):
                    ratios.append(to_mpmath(evaluator.over(one, other)))
        except Undefined:
            continue
    same = all(abs(one - other) <= abs(one) * mpf(2) ** -PRECISION for one, other in pairwise(ratios))
    if not ratios or not same or isinstance(ratios[0], mpc):
        return 0
    return 1 if ratios[0] > 0 else -1
