"""Splits an expression into tokens: numbers with their values, commands, names of functions, letters, signs."""

import re
from fractions import Fraction
from typing import NamedTuple

FUNCTIONS = {
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "exp", "ln")},
    **{name: name for name in ("log", "lg", "min", "max", "gcd", "lcm", "floor", "ceil", "abs", "sqrt")},
    **{long + name: f"a{name}" for long in ("arc", "a", "ar") for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{long + name: f"a{name}" for long in ("arc", "a", "ar") for name in ("sinh", "cosh", "tanh")},
}
_WORDS = sorted(FUNCTIONS, key=len, reverse=True)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+|\.(?![\d.]))?|\.\d+)"
    r"(?:\\overline\s*\{\s*(?P<repeats>\d{1,50})\s*\}|(?P<exponent>[eE][-+]?\d{1,4}(?![\d.A-Za-z])))?"
    rf"|\\operatorname\s*\*?\{{\s*(?P<operator>[A-Za-z]+)\s*\}}|\\(?P<command>[A-Za-z]+)|(?P<word>{'|'.join(_WORDS)})(?![a-z])"
    r"|(?P<letter>[A-Za-z])|(?P<sign>\\[{}|]|[-+*/^_!(){}\[\]|,%']))"
)


class Unreadable(Exception):
    """The text is not an expression, or not one that we know."""


class Token(NamedTuple):
    kind: str
    text: str
    value: Fraction | None = None
    spaced: bool = False
    """Whether there is white space before it."""


def tokens_of(text: str) -> list[Token]:
    found, place, text = [], 0, text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unreadable(f"cannot read {text[place : place + 20]!r}")
        spaced = text[place].isspace()
        kind = str(match.lastgroup)
        if match["number"]:
            found.append(Token("number", match["number"], _number(match), spaced))
        else:
            found.append(Token(kind, match[kind], None, spaced))
        place = match.end()
    return found


def _number(match: re.Match[str]) -> Fraction:
    digits = match["number"].replace(",", "")
    value = Fraction(digits + "0" if digits.endswith(".") else digits)
    if match["repeats"]:
        places = len(digits.partition(".")[2]) if "." in digits else 0
        return value + Fraction(int(match["repeats"]), (10 ** len(match["repeats"]) - 1) * 10**places)
    return value * Fraction(10) ** int(match["exponent"][1:]) if match["exponent"] else value
