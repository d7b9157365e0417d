"""Evaluates an expression at one point, with bounded work.

Values are exact fractions as long as possible, and then floating-point numbers of the requested precision.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import mp, mpc, mpf

from freerun.rewards.math.expression import Node

MAX_WORK = 50_000
"""The work of one judgement, about a second: one unit per operation, more if its numbers are long."""
MAX_BITS = 400_000
"""The length of whole numbers: about 120,000 digits."""
MAX_FRACTION_BITS = 20_000
"""The length of any other number."""
MAX_GAMMA_BITS = 1_000
"""At a higher precision, the gamma function takes minutes."""
NOISE_BITS = 60
"""How many of the last bits of a result are not trusted."""

Value = Any
"""A Fraction if it is exact, otherwise an mpf or an mpc."""


class TooExpensive(Exception):
    """Too large or too long to compute."""


class Undefined(Exception):
    """There is no value, as in 1/0."""


class WorkBudget:
    """The work that one judgement may still do, for all its comparisons together."""

    def __init__(self) -> None:
        self.left = float(MAX_WORK)

    def refill(self) -> None:
        self.left = float(MAX_WORK)

    def spend(self, work: float) -> None:
        self.left -= work
        if self.left < 0:
            raise TooExpensive("too much to compute")


work_budget = WorkBudget()


def to_mpmath(value: Value) -> Value:
    if isinstance(value, Fraction):
        return mpf(value.numerator) / value.denominator
    return value.real if isinstance(value, mpc) and value.imag == 0 else value


def bits(value: Value) -> int:
    """The length of a value, in bits: of its numerator or denominator if it is a fraction."""
    if isinstance(value, Fraction):
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    return magnitude(value)


def magnitude(value: Value) -> int:
    """The exponent of the power of two that is closest."""
    if isinstance(value, Fraction):
        return value.numerator.bit_length() - value.denominator.bit_length() if value else -MAX_BITS
    size = abs(value)
    return int(mp.mag(size)) if size else -MAX_BITS


class Evaluator:
    """Evaluates an expression at one point.

    `scale` is the length of the largest number in it, `lost` the number of bits lost to cancellation.
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
        work_budget.spend(1 + sum(map(bits, args)) / 500 + (self.precision / 500) ** 2 / 10)
        result = self._checked(_OPERATIONS[tree.op](self, *args))
        if isinstance(result, Fraction):
            return result
        self.scale = max(self.scale, *map(bits, args))
        return self._cancelled(args, result) if tree.op in _CANCELS else result

    def _cancelled(self, args: list[Value], result: Value) -> Value:
        """Record the precision lost when nearly equal numbers are subtracted. 0 if nothing but noise is left."""
        before, after = max(map(magnitude, args)), magnitude(result)
        if after < before - self.precision + NOISE_BITS:
            return Fraction(0)
        self.lost = max(self.lost, before - after)
        return result

    def _checked(self, result: Value) -> Value:
        if isinstance(result, (int, Fraction)):
            result = Fraction(result)
            limit = MAX_BITS if result.denominator == 1 else MAX_FRACTION_BITS
            if bits(result) > limit:
                raise TooExpensive("a number with too many digits")
            return result
        if not mp.isfinite(result):
            raise Undefined
        size = magnitude(result)
        if size > MAX_FRACTION_BITS:
            raise TooExpensive("a number with too many digits")
        noise = isinstance(result, mpc) and magnitude(result.imag) < size - self.precision + NOISE_BITS
        return result.real if noise else result

    def add(self, one: Value, other: Value) -> Value:
        return one + other if _exact(one, other) else to_mpmath(one) + to_mpmath(other)

    def subtract(self, one: Value, other: Value) -> Value:
        return one - other if _exact(one, other) else to_mpmath(one) - to_mpmath(other)

    def times(self, one: Value, other: Value) -> Value:
        return one * other if _exact(one, other) else to_mpmath(one) * to_mpmath(other)

    def over(self, one: Value, other: Value) -> Value:
        if other == 0:
            raise Undefined
        return one / other if _exact(one, other) else to_mpmath(one) / to_mpmath(other)

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
            if digits <= (MAX_BITS if base.denominator == 1 and exponent > 0 else MAX_FRACTION_BITS):
                return base**exponent.numerator
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 2 and base > 0:
            return self.power(self.root(base), Fraction(exponent.numerator))
        if size * max(abs(float(mp.log(abs(to_mpmath(base)), 2))), 1e-9) > MAX_FRACTION_BITS or size > 1 << 24:
            raise TooExpensive("a power too large to compute")
        return mp.power(to_mpmath(base), exponent.numerator if whole else to_mpmath(exponent))

    def root(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value >= 0:
            above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
            if above**2 == value.numerator and below**2 == value.denominator:
                return Fraction(above, below)
        return mp.sqrt(to_mpmath(value))

    def nth_root(self, value: Value, degree: Value) -> Value:
        if not isinstance(degree, Fraction) or degree.denominator != 1 or not 0 < degree <= 10_000:
            return self.power(value, self.over(Fraction(1), degree))
        n, value = degree.numerator, to_mpmath(value)
        if n % 2 and not isinstance(value, mpc) and value < 0:
            return -mp.root(-value, n)
        return mp.root(value, n)

    def exponential(self, value: Value) -> Value:
        return self.power(mp.e, value) if value != 0 else Fraction(1)

    def logarithm(self, value: Value) -> Value:
        if value == 0:
            raise Undefined
        return Fraction(0) if value == 1 else mp.log(to_mpmath(value))

    def common_logarithm(self, value: Value) -> Value:
        natural = self.logarithm(value)
        return to_mpmath(natural) / mp.log(self.log_base) if self.log_base else natural

    def factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise Undefined
            if value > 20_000:
                raise TooExpensive("a factorial too large to compute")
            work_budget.spend(float(value) / 5)
            return math.factorial(value.numerator)
        self._check_gamma(value)
        return mp.gamma(to_mpmath(value) + 1)

    def binomial(self, n: Value, k: Value) -> Value:
        if _exact(n, k) and k.denominator == 1 and n.denominator == 1 and n >= 0:
            if k < 0 or k > n:
                return 0
            small = min(k, n - k)
            if small * bits(n) > MAX_BITS:
                raise TooExpensive("a binomial too large to compute")
            work_budget.spend(float(small) * bits(n) / 100)
            return math.comb(n.numerator, small.numerator)
        self._check_gamma(n)
        self._check_gamma(k)
        return mp.binomial(to_mpmath(n), to_mpmath(k))

    def _check_gamma(self, value: Value) -> None:
        work_budget.spend(200)
        if magnitude(value) > 17 or self.precision > MAX_GAMMA_BITS:
            raise TooExpensive("a factorial too large to compute")

    def absolute(self, value: Value) -> Value:
        return abs(value)

    def floor(self, value: Value) -> Value:
        return Fraction(int(mp.floor(self._real(value))))

    def ceil(self, value: Value) -> Value:
        return Fraction(int(mp.ceil(self._real(value))))

    def _real(self, value: Value) -> Value:
        if isinstance(value, mpc):
            raise Undefined
        return to_mpmath(value)


def _exact(one: Value, other: Value) -> bool:
    return isinstance(one, Fraction) and isinstance(other, Fraction)


def _mpmath_function(function: str) -> Callable[..., Value]:
    """One of mpmath's functions. Its argument must be small enough to be reduced to a full turn."""

    def compute(_: Evaluator, value: Value) -> Value:
        if magnitude(value) > 200:
            raise TooExpensive("an angle too large to compute")
        try:
            return getattr(mp, function)(to_mpmath(value))
        except (ValueError, ZeroDivisionError):
            raise Undefined from None

    return compute


def _integer_function(function: Callable[..., int]) -> Callable[..., Value]:
    def compute(_: Evaluator, *values: Value) -> Value:
        if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
            raise Undefined
        return function(*(value.numerator for value in values))

    return compute


def _extremum(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda evaluator, *values: function(values, key=evaluator._real)


_MPMATH_NAMES = (
    *("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth"),
    *("asin", "acos", "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh"),
)
_OPERATIONS: dict[str, Callable[..., Value]] = {
    **{"+": Evaluator.add, "-": Evaluator.subtract, "*": Evaluator.times, "/": Evaluator.over, "^": Evaluator.power},
    **{"mod": Evaluator.modulo, "sqrt": Evaluator.root, "root": Evaluator.nth_root, "abs": Evaluator.absolute},
    **{"exp": Evaluator.exponential, "ln": Evaluator.logarithm, "log": Evaluator.common_logarithm},
    **{"factorial": Evaluator.factorial, "binomial": Evaluator.binomial},
    **{"floor": Evaluator.floor, "ceil": Evaluator.ceil, "min": _extremum(min), "max": _extremum(max)},
    **{"gcd": _integer_function(math.gcd), "lcm": _integer_function(math.lcm)},
    **{name: _mpmath_function(name) for name in _MPMATH_NAMES},
}
_CANCELS = frozenset({"+", "-", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log"})
CONSTANTS: dict[str, Callable[[], Value]] = {
    "pi": lambda: +mp.pi,
    "e": lambda: +mp.e,
    "i": lambda: mpc(0, 1),
}
