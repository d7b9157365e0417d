"""What would take too long to compute, told from its looks.

A policy writes 9^{9^{9^9}} sooner or later, and learns to if it pays. Each such answer would cost a worker its life at
the deadline; refused here it costs microseconds. Limits are far above what answers hold (2^{2024}, 1000!, x^{100}).
"""

import re
from collections.abc import Iterator
from math import comb

LONGEST_EXPRESSION = 300
DEEPEST = 12
"""Of brackets in brackets."""
LONGEST_NUMBER = 200
"""Digits."""
LARGEST_EXPONENT = 10_000
LARGEST_RESULT = 100_000
"""Digits of a power of numbers."""
MOST_TERMS = 500
"""Of a power of a sum with symbols in it, which simplifying might multiply out."""
LARGEST_FUNCTION_EXPONENT = 50
"""As in \\sin^{50}(x)."""
LARGEST_FACTORIAL = 2_000
LONGEST_WORD = 20

_OPEN, _CLOSE = "([{", ")]}"


class Untamed(Exception):
    """Why it is not computed."""


def check_tame(expression: str) -> None:
    if len(expression) > LONGEST_EXPRESSION:
        raise Untamed(f"an expression of more than {LONGEST_EXPRESSION} characters")
    if re.search(rf"\d{{{LONGEST_NUMBER}}}", expression):
        raise Untamed(f"a number of {LONGEST_NUMBER} digits or more")
    if re.search(rf"(?<!\\)[A-Za-z]{{{LONGEST_WORD}}}", expression):
        raise Untamed("words where a formula should be")
    if re.search(r"\\(?:sum|prod|i*int|lim|bigcup|bigcap)(?![A-Za-z])", expression):
        raise Untamed("a sum, product, integral or limit that is not worked out")
    if len(re.findall(r"[<>=]|\\[lg]e(?![A-Za-z])", expression)) > 4:
        raise Untamed("a chain of equations")
    for base, exponent in _powers(expression):
        _check_power(base, exponent)
    for factor in _factorials(expression):
        if not factor.isdigit() or int(factor) > LARGEST_FACTORIAL:
            raise Untamed("a factorial too large to compute")
    for number in re.findall(r"\\binom\s*\{\s*(\d+)", expression):
        if int(number) > LARGEST_EXPONENT:
            raise Untamed("a binomial too large to compute")


def _check_power(base: str, exponent: str) -> None:
    largest = _largest(exponent)
    if "^" in exponent:
        tower = re.fullmatch(r"\s*(\d{1,3})\s*\^\s*\{?\s*(\d{1,2})\s*\}?\s*", exponent)
        largest = int(tower[1]) ** int(tower[2]) if tower else largest
        if not tower and (exponent.count("^") > 1 or not re.search(r"[A-Za-z]", exponent)):
            raise Untamed("a tower of powers")
    if largest > LARGEST_EXPONENT or "!" in exponent:
        raise Untamed("a power too large to compute")
    degree = largest * _degree(base)
    if not re.search(r"(?<![\\A-Za-z])[A-Za-z]", base):
        if degree * _digits(base) > LARGEST_RESULT:
            raise Untamed("a power too large to compute")
    elif degree > LARGEST_EXPONENT or comb(degree + base.count("+") + base.count("-"), degree) > MOST_TERMS:
        raise Untamed("a power too large to multiply out")
    if re.match(r"\\(?!sqrt|pi|frac)[a-z]", base) and degree > LARGEST_FUNCTION_EXPONENT:
        raise Untamed("a power too large to multiply out")


def _largest(exponent: str) -> int:
    return max((int(number) for number in re.findall(r"\d+", exponent)), default=1)


def _degree(expression: str) -> int:
    """The largest exponent in it, powers of powers multiplied."""
    return max((max(_largest(exponent), 1) * _degree(base) for base, exponent in _powers(expression)), default=1)


def _digits(base: str) -> int:
    """Of the largest number in it; of a factorial, those of the largest that is allowed."""
    return 6_000 if "!" in base else max((len(number) for number in re.findall(r"\d+", base)), default=1)


def _powers(expression: str) -> Iterator[tuple[str, str]]:
    for place, character in enumerate(expression):
        if character == "^":
            yield _before(expression, place), _after(expression, place + 1)


def _factorials(expression: str) -> Iterator[str]:
    for place, character in enumerate(expression):
        if character == "!":
            yield _before(expression, place).strip("(){} ")


def _before(expression: str, place: int) -> str:
    """The group, number, symbol or power that ends at `place`."""
    end = len(expression[:place].rstrip())
    if end and expression[end - 1] in _CLOSE:
        depth = 0
        for start in range(end - 1, -1, -1):
            depth += (expression[start] in _CLOSE) - (expression[start] in _OPEN)
            if depth == 0:
                command = re.search(r"(?:\\[A-Za-z]+|[\^_])\s*$", expression[:start])
                return expression[command.start() if command else start : end]
    number = re.search(r"(?:\d+(?:\.\d+)?|\\?[A-Za-z]+|!)$", expression[:end])
    return number[0] if number else expression[:end]


def _after(expression: str, place: int) -> str:
    """The group or the rest of the chain that begins at `place`: in 9^9^9 all of the towers."""
    rest = expression[place:].lstrip()
    if not rest.startswith("{"):
        chain = re.match(r"[-+]?(?:\d+|\\[A-Za-z]+|[A-Za-z])(?:\s*\^\s*(?:\{[^{}]*\}|\d+|\\?[A-Za-z]+))*", rest)
        return chain[0] if chain else rest[:1]
    depth = 0
    for end, character in enumerate(rest):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0:
            following = re.match(r"(?:\s*\^\s*(?:\{[^{}]*\}|\d+|\\?[A-Za-z]+))*", rest[end + 1 :])
            return rest[1:end] + (following[0] if following else "")
    return rest


def depth(expression: str) -> int:
    """Of its brackets."""
    now = deepest = 0
    for character in expression:
        now += (character in _OPEN) - (character in _CLOSE)
        deepest = max(deepest, now)
    return deepest
