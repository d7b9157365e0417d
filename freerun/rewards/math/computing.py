"""The value of an expression at one point, in bounded work.

Fractions stay exact as long as there is nothing but them; then there are as many digits as are asked for.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import mp, mpc, mpf

from freerun.rewards.math.expression import Node

MOST_WORK = 50_000
"""How much work one judgement may take, about a second: a unit a step, more where numbers are long."""
MOST_BITS = 400_000
"""How long a whole number may get: about 120,000 digits."""
MOST_FRACTION_BITS = 20_000
"""How long any other number may get."""
MOST_GAMMA_BITS = 1_000
"""The gamma function of more takes minutes."""
NOISE = 60
"""How many of the last bits computed are not trusted."""

Value = Any
"""A Fraction while it is exact; then an mpf or an mpc."""


class Hard(Exception):
    """Too large or too long to compute."""


class Undefined(Exception):
    """There is no value, as in 1/0."""


class Budget:
    """The work that is left to one judgement, however many comparisons it makes."""

    def __init__(self) -> None:
        self.left = float(MOST_WORK)

    def refill(self) -> None:
        self.left = float(MOST_WORK)

    def spend(self, work: float) -> None:
        self.left -= work
        if self.left < 0:
            raise Hard("too much to compute")


budget = Budget()


def inexact(value: Value) -> Value:
    if isinstance(value, Fraction):
        return mpf(value.numerator) / value.denominator
    return value.real if isinstance(value, mpc) and value.imag == 0 else value


def bits(value: Value) -> int:
    """The length of the largest number that is written down in it."""
    if isinstance(value, Fraction):
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    return magnitude(value)


def magnitude(value: Value) -> int:
    """The power of two it is about."""
    if isinstance(value, Fraction):
        return value.numerator.bit_length() - value.denominator.bit_length() if value else -MOST_BITS
    size = abs(value)
    return int(mp.mag(size)) if size else -MOST_BITS


class Computer:
    """Computes a tree at one point.

    `scale` is how many bits the largest number in it has, `lost` how many taking numbers from each other has cost.
    """

    def __init__(self, point: dict[str, Fraction], log_base: int, precision: int) -> None:
        self.point, self.log_base, self.precision = point, log_base, precision
        self.scale = self.lost = 0

    def value(self, tree: Node) -> Value:
        with mp.workprec(self.precision):
            return self._value(tree)

    def _value(self, tree: Node) -> Value:
        if tree.op == "number":
            return tree.args[0]
        if tree.op == "symbol":
            constant = CONSTANTS.get(str(tree.args[0]))
            return constant() if constant else self.point[str(tree.args[0])]
        args = [self._value(arg) for arg in tree.args if isinstance(arg, Node)]
        budget.spend(1 + sum(map(bits, args)) / 500 + (self.precision / 500) ** 2 / 10)
        result = self._checked(_OPERATIONS[tree.op](self, *args))
        if isinstance(result, Fraction):
            return result
        self.scale = max(self.scale, *map(bits, args))
        return self._cancelled(args, result) if tree.op in _CANCELS else result

    def _cancelled(self, args: list[Value], result: Value) -> Value:
        """What is left when nearly equal numbers are taken from each other; 0 where that is noise."""
        before, after = max(map(magnitude, args)), magnitude(result)
        if after < before - self.precision + NOISE:
            return Fraction(0)
        self.lost = max(self.lost, before - after)
        return result

    def _checked(self, result: Value) -> Value:
        if isinstance(result, (int, Fraction)):
            result = Fraction(result)
            most = MOST_BITS if result.denominator == 1 else MOST_FRACTION_BITS
            if bits(result) > most:
                raise Hard("a number with too many digits")
            return result
        if not mp.isfinite(result):
            raise Undefined
        size = magnitude(result)
        if size > MOST_FRACTION_BITS:
            raise Hard("a number with too many digits")
        noise = isinstance(result, mpc) and magnitude(result.imag) < size - self.precision + NOISE
        return result.real if noise else result

    def add(self, one: Value, other: Value) -> Value:
        return one + other if _exact(one, other) else inexact(one) + inexact(other)

    def subtract(self, one: Value, other: Value) -> Value:
        return one - other if _exact(one, other) else inexact(one) - inexact(other)

    def times(self, one: Value, other: Value) -> Value:
        return one * other if _exact(one, other) else inexact(one) * inexact(other)

    def over(self, one: Value, other: Value) -> Value:
        if other == 0:
            raise Undefined
        return one / other if _exact(one, other) else inexact(one) / inexact(other)

    def modulo(self, one: Value, other: Value) -> Value:
        if not _exact(one, other) or other == 0:
            raise Undefined
        return one % other

    def power(self, base: Value, exponent: Value) -> Value:
        if base == 0:
            if not isinstance(exponent, Fraction) or exponent < 0:
                raise Undefined
            return Fraction(exponent == 0)
        whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        size = float(abs(exponent)) if magnitude(exponent) < 60 else math.inf
        if whole and isinstance(base, Fraction):
            if abs(base) == 1:
                return base ** (exponent.numerator % 2)
            digits = size * bits(base)
            if digits <= (MOST_BITS if base.denominator == 1 and exponent > 0 else MOST_FRACTION_BITS):
                return base**exponent.numerator
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 2 and base > 0:
            return self.power(self.root(base), Fraction(exponent.numerator))
        if size * max(abs(float(mp.log(abs(inexact(base)), 2))), 1e-9) > MOST_FRACTION_BITS or size > 1 << 24:
            raise Hard("a power too large to compute")
        return mp.power(inexact(base), exponent.numerator if whole else inexact(exponent))

    def root(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value >= 0:
            above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
            if above**2 == value.numerator and below**2 == value.denominator:
                return Fraction(above, below)
        return mp.sqrt(inexact(value))

    def nth_root(self, value: Value, degree: Value) -> Value:
        if not isinstance(degree, Fraction) or degree.denominator != 1 or not 0 < degree <= 10_000:
            return self.power(value, self.over(Fraction(1), degree))
        n, value = degree.numerator, inexact(value)
        if n % 2 and not isinstance(value, mpc) and value < 0:
            return -mp.root(-value, n)
        return mp.root(value, n)

    def exponential(self, value: Value) -> Value:
        return self.power(mp.e, value) if value != 0 else Fraction(1)

    def logarithm(self, value: Value) -> Value:
        if value == 0:
            raise Undefined
        return Fraction(0) if value == 1 else mp.log(inexact(value))

    def common_logarithm(self, value: Value) -> Value:
        natural = self.logarithm(value)
        return inexact(natural) / mp.log(self.log_base) if self.log_base else natural

    def factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise Undefined
            if value > 20_000:
                raise Hard("a factorial too large to compute")
            budget.spend(float(value) / 5)
            return math.factorial(value.numerator)
        self._check_gamma(value)
        return mp.gamma(inexact(value) + 1)

    def binomial(self, n: Value, k: Value) -> Value:
        if _exact(n, k) and k.denominator == 1 and n.denominator == 1 and n >= 0:
            if k < 0 or k > n:
                return 0
            small = min(k, n - k)
            if small * bits(n) > MOST_BITS:
                raise Hard("a binomial too large to compute")
            budget.spend(float(small) * bits(n) / 100)
            return math.comb(n.numerator, small.numerator)
        self._check_gamma(n)
        self._check_gamma(k)
        return mp.binomial(inexact(n), inexact(k))

    def _check_gamma(self, value: Value) -> None:
        budget.spend(200)
        if magnitude(value) > 17 or self.precision > MOST_GAMMA_BITS:
            raise Hard("a factorial too large to compute")

    def absolute(self, value: Value) -> Value:
        return abs(value)

    def floor(self, value: Value) -> Value:
        return Fraction(int(mp.floor(self._real(value))))

    def ceil(self, value: Value) -> Value:
        return Fraction(int(mp.ceil(self._real(value))))

    def _real(self, value: Value) -> Value:
        if isinstance(value, mpc):
            raise Undefined
        return inexact(value)


def _exact(one: Value, other: Value) -> bool:
    return isinstance(one, Fraction) and isinstance(other, Fraction)


def _by(function: str) -> Callable[..., Value]:
    """One of mpmath's, whose argument must be no larger than what can be reduced to a turn of the circle."""

    def compute(_: Computer, value: Value) -> Value:
        if magnitude(value) > 200:
            raise Hard("an angle too large to compute")
        try:
            return getattr(mp, function)(inexact(value))
        except (ValueError, ZeroDivisionError):
            raise Undefined from None

    return compute


def _whole(function: Callable[..., int]) -> Callable[..., Value]:
    def compute(_: Computer, *values: Value) -> Value:
        if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
            raise Undefined
        return function(*(value.numerator for value in values))

    return compute


def _extreme(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda computer, *values: function(values, key=computer._real)


_OPERATIONS: dict[str, Callable[..., Value]] = {
    **{"+": Computer.add, "-": Computer.subtract, "*": Computer.times, "/": Computer.over, "^": Computer.power},
    **{"mod": Computer.modulo, "sqrt": Computer.root, "root": Computer.nth_root, "abs": Computer.absolute},
    **{"exp": Computer.exponential, "ln": Computer.logarithm, "log": Computer.common_logarithm},
    **{"factorial": Computer.factorial, "binomial": Computer.binomial, "floor": Computer.floor, "ceil": Computer.ceil},
    **{"gcd": _whole(math.gcd), "lcm": _whole(math.lcm), "min": _extreme(min), "max": _extreme(max)},
    **{name: _by(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth")},
    **{name: _by(name) for name in ("asin", "acos", "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh")},
}
_CANCELS = frozenset({"+", "-", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log"})
CONSTANTS: dict[str, Callable[[], Value]] = {
    "pi": lambda: +mp.pi,
    "e": lambda: +mp.e,
    "i": lambda: mpc(0, 1),
}
