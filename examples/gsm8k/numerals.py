"""Numbers as texts have them: found, read exactly, and written in the manner of another."""

import re
from dataclasses import dataclass
from fractions import Fraction

Number = int | Fraction
"""A fraction that is whole is an int, which computes faster."""

NUMERAL = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d*\.\d+|\d+")

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITS = {word: value for value, word in enumerate(_UNITS.split())}
TENS = {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_BELOW_100 = rf"(?:(?:{'|'.join(TENS)})(?:[ -](?:{'|'.join(list(UNITS)[1:10])}))?|{'|'.join(reversed(UNITS))})"
_SCALE = "|".join(SCALES)
IN_WORDS = re.compile(
    rf"\b(?:{_BELOW_100}(?:[ -](?:{_SCALE})\b(?:(?: and)? {_BELOW_100}\b)?)*|{_SCALE})\b", re.IGNORECASE
)
"""A number in words: "two hundred and fifty"."""


def whole(value: Number) -> Number:
    """The same number, an int where it is whole."""
    return value.numerator if value.denominator == 1 else value


def exact(numeral: str) -> Number:
    numeral = numeral.replace(",", "")
    return int(numeral) if numeral.isdigit() else whole(Fraction(numeral))


@dataclass(frozen=True)
class Form:
    """How a numeral is written."""

    places: int
    """The most digits after the point."""
    always: bool
    """All of these digits, zeros too: $1.50."""
    grouped: bool
    """1,000 rather than 1000."""
    bare: bool
    """.5 rather than 0.5."""

    @classmethod
    def of(cls, numeral: str, groups: bool = False, money: bool = False) -> "Form":
        """`groups`: if the text around it writes 1,000, for numerals that are too small to show it."""
        before, _, after = numeral.partition(".")
        always = after.endswith("0") or (money and len(after) == 2)
        grouped = "," in before or (groups and len(before) <= 3)
        return cls(len(after), always, grouped, bare=not before)

    def write(self, value: Number) -> str:
        """The value in this form. `fits` says whether it can be."""
        if self.always:
            digits = f"{int(value * 10**self.places):0{self.places + 1}d}"
            before, after = digits[: -self.places], digits[-self.places :]
        else:
            before, _, after = decimal(value, self.places).partition(".")
        if self.grouped:
            before = f"{int(before):,}"
        if self.bare and before == "0" and after:
            before = ""
        return f"{before}.{after}" if after else before

    def fits(self, value: Number) -> bool:
        return value >= 0 and (value * 10**self.places).denominator == 1


def decimal(value: Number, places: int) -> str:
    """Without zeros at its end."""
    if value.denominator == 1:
        return str(int(value))
    digits = f"{int(value * 10**places):0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:].rstrip('0')}"


def significant_digits(value: Number) -> int:
    """1 of 300 or 0.03, 3 of 1.25; a number that no decimals can write has very many."""
    scaled, places = value, 0
    while scaled.denominator != 1 and places < 9:
        scaled, places = whole(scaled * 10), places + 1
    return len(str(abs(int(scaled))).strip("0")) if scaled.denominator == 1 else 99


def words_value(words: str) -> int:
    """`IN_WORDS` as a number: 250 of "two hundred and fifty"."""
    total = current = 0
    for word in re.split(r"[ -]", words.lower()):
        if word in SCALES:
            current = max(current, 1) * SCALES[word]
            if SCALES[word] > 100:
                total, current = total + current, 0
        elif word != "and":
            current += UNITS.get(word, 0) + TENS.get(word, 0)
    return total + current
