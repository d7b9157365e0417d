"""Finds the last number in a text, as a person would read it: 1,234 and $5 and -3.50 and 1/2 and 2 1/2 and 12%.

Values are exact (fractions, not floats). The 2 in `x2`, `cm2` or `cm^2` is not a number.
"""

import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

_NUMERAL = re.compile(
    r"""
    (?<![\w^])(?<!\^\{)(?<!\^-)(?<!\^\{-)                                   # not inside a word, a number or a power
    (?P<sign>(?<![\w)\]])[-−][$€£]?|(?<![\w)\]])[$€£][-−])?                 # the minus of 5-3 is not a sign
    (?:(?P<units>[0-9]+)[ ](?=[0-9]+/[0-9]))?                               # the 2 of 2 1/2
    (?P<value>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)
    (?P<power>[eE][-+]?[0-9]{1,3}(?![0-9]))?
    (?:\s?/\s?(?P<below>[0-9]+(?:\.[0-9]+)?))?
    (?P<percent>\s?(?:%|percent\b))?
    """,
    re.VERBOSE,
)
_LATEX_FRACTION = re.compile(r"(?P<before>[0-9]?)(?P<space>\s?)\\[dt]?frac\{(?P<above>[0-9]+)\}\{(?P<below>[0-9]+)\}")
_LATEX_NOISE = {"\\$": "$", "\\%": "%", "{,}": ",", "\\!": "", "\\,": ""}
_MAX_CHARS = 400
"""A policy can write a numeral of a million digits, which would be slow to compare and is certainly wrong."""


class Numeral(NamedTuple):
    value: Fraction
    is_percent: bool

    def same_as(self, reference: "Numeral") -> bool:
        """Whether they are equal as written (a missing or an extra % is forgiven) or in value (50% and 0.5)."""
        return self.value == reference.value or self._without_percent == reference._without_percent

    @property
    def _without_percent(self) -> Fraction:
        return self.value / 100 if self.is_percent else self.value


def last_number(text: str) -> Numeral | None:
    """The last number in the text; None if there is none, or if the last one has no value (1/0)."""
    match = _last_match(text)
    return _numeral(match) if match and len(match[0]) <= _MAX_CHARS else None


def last_numeral(text: str) -> str | None:
    """The last number in the text as it is written, without LaTeX commands."""
    match = _last_match(text)
    return match[0].strip() if match else None


def _last_match(text: str) -> re.Match[str] | None:
    for latex, plain in _LATEX_NOISE.items():
        text = text.replace(latex, plain)
    last = deque(_NUMERAL.finditer(_LATEX_FRACTION.sub(_plain_fraction, text)), maxlen=1)
    return last[0] if last else None


def _plain_fraction(match: re.Match[str]) -> str:
    space = " " if match["before"] else match["space"]
    return f"{match['before']}{space}{match['above']}/{match['below']}"


def _numeral(match: re.Match[str]) -> Numeral | None:
    value = Fraction(Decimal(match["value"].replace(",", "") + (match["power"] or "")))
    if match["below"] is not None:
        below = Fraction(match["below"])
        if below == 0:
            return None
        value /= below
    if match["units"] is not None and value < 1:  # 2 1/2, but not the 10 in "day 10 48/2"
        value += int(match["units"])
    return Numeral(-value if match["sign"] else value, match["percent"] is not None)
