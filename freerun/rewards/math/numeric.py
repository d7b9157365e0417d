"""Are two expressions equal? Decided by computing both at a few points.

Two expressions that agree at points chosen beforehand and to 60 digits and more are equal, but for a chance that nobody
meets. What is too hard to compute is only equal to what is built the same way.
"""

import zlib
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mpmath import mp, mpc, mpf

from freerun.rewards.math.computing import (
    CONSTANTS,
    MOST_FRACTION_BITS,
    NOISE,
    Computer,
    Hard,
    Undefined,
    Value,
    inexact,
    magnitude,
)
from freerun.rewards.math.expression import Node

PRECISION = 300
"""Bits, besides those that large numbers need."""
POINTS = 6
CLOSE, RELATIVE = mpf(6e-7), mpf(1e-5)
"""How far a decimal may be from the value it stands for: 0.333333 is a third, 0.3333 is not."""


def equal(found: Node, right: Node) -> bool:
    """Raises `Hard` where that of `found` cannot be told."""
    if found == right:
        return True
    try:
        return any(_equal_by_value(found, right, base) for base in _log_bases(found, right))
    except Hard:
        if _equal_by_build(found, right):
            return True
        raise


def _log_bases(found: Node, right: Node) -> tuple[int, ...]:
    """\\log is the natural one to some and that of ten to others, but the same in a problem and its answer."""
    return (0, 10) if "log" in _ops(found) | _ops(right) else (0,)


def _equal_by_value(found: Node, right: Node, log_base: int) -> bool:
    names = sorted(symbols(found) | symbols(right))
    decimals = has_decimals(found) or has_decimals(right)
    agree, unreal = 0, list[bool]()
    for n in range(POINTS if names else 1):
        point = {name: _coordinate(name, n) for name in names}
        try:
            same, real = _same_at(found, right, point, log_base, decimals)
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
    """Small fractions, of both signs from the third point on; the same for a name wherever it stands."""
    seed = zlib.crc32(f"{name} {n}".encode())
    size = Fraction(seed % 211 + 30, (seed >> 8) % 83 + 61)
    return -size if n >= 2 and (n == 2 or seed >> 20 & 1) else size


def _same_at(found: Node, right: Node, point: dict[str, Fraction], log_base: int, decimals: bool) -> tuple[bool, bool]:
    """Whether they are equal there, and whether both are real."""
    precision = PRECISION
    for _ in range(4):
        computer = Computer(point, log_base, precision)
        one, other = computer.value(found), computer.value(right)
        if isinstance(one, Fraction) and isinstance(other, Fraction):
            return one == other or (decimals and _close(one, other)), True
        needed = PRECISION + max(computer.scale, magnitude(one), magnitude(other)) + computer.lost
        if needed <= precision + NOISE:
            break
        precision = needed
        if precision > MOST_FRACTION_BITS:
            raise Hard("a number with too many digits")
    else:
        raise Undefined  # it grows with the precision, as \tan(\pi/2) does
    with mp.workprec(precision):
        one, other = inexact(one), inexact(other)
        off = abs(one - other)
        size = max(magnitude(one), magnitude(other))
        same = off <= mpf(2) ** (size + computer.lost - precision + NOISE) or (decimals and _close(one, other))
        return bool(same), not (isinstance(one, mpc) or isinstance(other, mpc))


def _close(one: Value, other: Value) -> bool:
    one, other = inexact(one), inexact(other)
    off = abs(one - other)
    return bool(off <= CLOSE and off <= RELATIVE * max(abs(one), abs(other)))


def _equal_by_build(found: Node, right: Node) -> bool:
    """For what cannot be computed: the same operation on equal operands, in any order where order is free."""
    if found.op != right.op or len(found.args) != len(right.args) or found.op in ("number", "symbol"):
        return found == right
    orders = [right.args, right.args[::-1]] if found.op in ("+", "*") else [right.args]
    return any(all(map(_equal_or_not, found.args, order)) for order in orders)


def _equal_or_not(found: Any, right: Any) -> bool:
    try:
        return equal(found, right)
    except Hard:
        return False


@lru_cache(maxsize=512)
def _ops(tree: Node) -> frozenset[str]:
    return frozenset({tree.op}).union(*(_ops(arg) for arg in tree.args if isinstance(arg, Node)))


@lru_cache(maxsize=512)
def symbols(tree: Node) -> frozenset[str]:
    """Letters that stand for any number."""
    if tree.op == "symbol":
        return frozenset() if tree.args[0] in CONSTANTS else frozenset({str(tree.args[0])})
    return frozenset[str]().union(*(symbols(arg) for arg in tree.args if isinstance(arg, Node)))


def has_decimals(tree: Node) -> bool:
    if tree.op == "number":
        return len(tree.args) > 1
    return any(has_decimals(arg) for arg in tree.args if isinstance(arg, Node))


def proportional(found: Node, right: Node) -> int:
    """1 or -1 if one is the other times a constant of that sign, else 0: whether x + y - 5 = 0 is 2x + 2y = 10."""
    names = sorted(symbols(found) | symbols(right))
    ratios = []
    for n in range(POINTS):
        computer = Computer({name: _coordinate(name, n) for name in names}, 0, 2 * PRECISION)
        try:
            one, other = computer.value(found), computer.value(right)
            if (one == 0) != (other == 0):
                return 0
            if one != 0:
                with mp.workprec(2 * PRECISION):
                    ratios.append(inexact(computer.over(one, other)))
        except Undefined:
            continue
    same = all(abs(one - other) <= abs(one) * mpf(2) ** -PRECISION for one, other in pairwise(ratios))
    if not ratios or not same or isinstance(ratios[0], mpc):
        return 0
    return 1 if ratios[0] > 0 else -1
