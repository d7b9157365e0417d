"""Numbers as people write them, with a unit, a currency or a percent sign: exact, and fast.

42, 1,234.50, 1/2, 2 1/2, 1\\frac{1}{2}, 1.5 \\cdot 10^6, 1.5 million, 50%, $18, 10 cm, 60 km/h, 45^\\circ. What is more
than that, 2\\sqrt{3} or 2x, is not a quantity, and is for others to understand.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

LONGEST = 400
"""Characters of a quantity: nobody means a number of more digits."""
ROUNDED_DECIMALS = 6
"""A decimal with at least so many places stands for the fraction that it is rounded from: 0.333333 for 1/3."""

_QUANTITY = re.compile(
    r"""
    [≈~=\s]*(?P<sign>[-+])?\s*(?P<currency>[$€£¥])?\s*(?P<sign_after>-)?
    (?:
      (?:(?P<units>\d+)\s*(?:\s|(?=\\frac)))?
      (?:(?P<above>\d+)\s?/\s?(?P<below>\d+)|\\frac\s*\{\s*(?P<up>-?\d+)\s*\}\s*\{\s*(?P<down>-?\d+)\s*\})
     |
      (?P<decimal>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)
      (?:[eE](?P<exponent>[-+]?\d{1,3}))?
      (?:\s*\\cdot\s*10\s*\^\s*(?:\{\s*(?P<power>[-+]?\d{1,3})\s*\}|(?P<digit>\d)))?
     |
      (?P<before>\d*\.\d*)\\overline\s*\{(?P<repeats>\d+)\}
     |
      (?<![\d.])10\s*\^\s*\{\s*(?P<alone>-?\d{1,3})\s*\}
    )
    (?P<scale>\s*(?:hundred|thousand|million|billion|trillion|dozen)s?\b)?
    (?P<unit>\s*%|\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\s+.*)?
    """,
    re.VERBOSE,
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_UNIT_NAMES: dict[str, list[tuple[Fraction, str]]] = {
    "length": [
        (Fraction(1, 1000), "mm millimeter millimetre"),
        (Fraction(1, 100), "cm centimeter centimetre"),
        (Fraction(1), "m meter metre"),
        (Fraction(1000), "km kilometer kilometre"),
        (Fraction(254, 10000), "in inch inche"),
        (Fraction(3048, 10000), "ft foot feet"),
        (Fraction(9144, 10000), "yd yard"),
        (Fraction(1609344, 1000), "mi mile"),
    ],
    "mass": [
        (Fraction(1, 1000), "mg milligram"),
        (Fraction(1), "g gram"),
        (Fraction(1000), "kg kilogram kilo"),
        (Fraction(45359237, 100000), "lb pound"),
    ],
    "time": [
        (Fraction(1), "s sec second"),
        (Fraction(60), "min minute"),
        (Fraction(3600), "h hr hour"),
        (Fraction(86400), "day"),
        (Fraction(604800), "week"),
    ],
    "months": [(Fraction(1), "month"), (Fraction(12), "yr year")],
    "volume": [(Fraction(1, 1000), "ml milliliter millilitre"), (Fraction(1), "l liter litre")],
    "dollars": [(Fraction(1), "$ dollar usd buck"), (Fraction(1, 100), "¢ cent")],
    "euros": [(Fraction(1), "€ euro eur")],
    "pounds sterling": [(Fraction(1), "£ gbp")],
    "yen": [(Fraction(1), "¥ yen")],
    "angle": [(Fraction(1), "^\\circ ^{\\circ} degree deg")],
}
_UNITS = {
    name: (dimension, worth)
    for dimension, rows in _UNIT_NAMES.items()
    for worth, names in rows
    for name in names.split()
}
_UNIT_TEXT = re.compile(r"[A-Za-z¢][A-Za-z.'-]*(?:[ /]+[A-Za-z.'-]+)*(?:\s?\^\s?\{?[23]\}?)?")
_NO_UNITS = re.compile(r"\b(?:or|and|pi|sqrt|sin|cos|tan|log|ln|x|y|z|n|i|e|not|mod)\b")
_CHANGES = re.compile(
    r"(?:squared|cubed|factorial|half|halves|thirds?|fourths?|fifths?|sixths?|eighths?|tenths?|hundredths?|thousandths?|"
    r"to the)\b|(?:times|over|plus|minus|choose|divided by|multiplied by)\s+"
    r"(?:[b-z]|\d\S*|one|two|three|four|five|six|seven|eight|nine|ten)\b"
)
"""At the beginning of what follows a number: words that make it another."""


@dataclass(frozen=True)
class Quantity:
    value: Fraction
    is_percent: bool = False
    unit: tuple[str, Fraction] | None = None
    """Its dimension, and what one of it is worth; None for none, and for words that are no unit, such as apples."""
    places: int | None = None
    """Digits after the decimal point; None of a fraction."""

    def same_as(self, reference: "Quantity") -> bool:
        """Equal as written (a forgotten % or unit is forgiven), or equal in worth (50% and 0.5, 2 m and 200 cm)."""
        if self.unit and reference.unit:
            if self.unit[0] != reference.unit[0]:
                return False
            return self.value * self.unit[1] == reference.value * reference.unit[1]
        if self.value == reference.value or self.worth == reference.worth:
            return True
        return _rounds_to(reference.worth, self) or _rounds_to(self.worth, reference)

    @property
    def worth(self) -> Fraction:
        return self.value / 100 if self.is_percent else self.value


def _rounds_to(exact: Fraction, decimal: Quantity) -> bool:
    """Only of a fraction that no decimal is equal to."""
    if decimal.places is None or decimal.places < ROUNDED_DECIMALS or decimal.is_percent or _terminates(exact):
        return False
    return abs(exact - decimal.value) <= Fraction(1, 2 * 10**decimal.places)


def _terminates(value: Fraction) -> bool:
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1


def read_quantity(text: str) -> Quantity | None:
    """None when the text, rewritten, is not just a quantity."""
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        return None
    value = _value(match)
    unit_text = (match["unit"] or "").strip()
    is_percent = unit_text.lower() in ("%", "percent", "per cent", "percentage points")
    unit = _UNITS.get(match["currency"] or "")
    if unit_text and not is_percent:
        if not unit_text.startswith("^") and not _is_unit(unit_text):
            return None
        unit = unit or _unit(unit_text)
    if value is None:
        return None
    if match["scale"]:
        value *= _SCALES[match["scale"].strip().rstrip("s")]
    negative = (match["sign"] == "-") != bool(match["sign_after"])
    decimal = (
        match["decimal"] if not (match["power"] or match["digit"] or match["exponent"] or match["scale"]) else None
    )
    places = len(decimal.partition(".")[2]) if decimal else None
    return Quantity(-value if negative else value, is_percent, unit, places)


def _is_unit(text: str) -> bool:
    """Or any other words that leave a number what it is. A small letter by itself is a factor, unless it is a unit."""
    if not _UNIT_TEXT.fullmatch(text) or _NO_UNITS.search(text) or _CHANGES.match(text):
        return False
    return len(text) > 1 or not text.islower() or text in _UNITS


def without_unit(expression: str, letters: bool = True) -> str:
    """16\\pi of 16\\pi cm^2, and of 16\\pi apples. Single `letters` stay, if you like: they may be factors."""
    trailing = re.search(r"(?<=[\w})\]%!])\s+(?P<unit>[A-Za-z][A-Za-z. /]*(?:\s?\^\s?\{?[23]\}?)?)$", expression)
    if not trailing or (len(trailing["unit"]) == 1 and not letters):
        return expression
    if not _unit(trailing["unit"]) and not (len(trailing["unit"]) > 2 and _is_unit(trailing["unit"])):
        return expression
    return expression[: trailing.start()]


def _value(match: re.Match[str]) -> Fraction | None:
    if match["alone"]:
        return Fraction(10) ** int(match["alone"])
    if match["repeats"]:
        before, repeats = match["before"], match["repeats"]
        shift = 10 ** len(before.partition(".")[2])
        return Fraction(before + "0") + Fraction(int(repeats), (10 ** len(repeats) - 1) * shift)
    if match["decimal"]:
        value = Fraction(Decimal(match["decimal"].replace(",", "")))
        power = int(match["power"] or match["digit"] or match["exponent"] or 0)
        return value * Fraction(10) ** power
    above, below = int(match["above"] or match["up"]), int(match["below"] or match["down"])
    if below == 0:
        return None
    part = Fraction(above, below)
    return part if match["units"] is None else int(match["units"]) + part


def _unit(text: str) -> tuple[str, Fraction] | None:
    """`cm`, `square inches`, `m^2`, `km/h`, `miles per hour`; None of what is no known unit."""
    text = text.lower().replace("mph", "mile/hour").strip(". ")
    above, per, below = re.sub(r"\s+per\s+|\s*/\s*", "/", text).partition("/")
    if per:
        up, down = _unit(above), _unit(below)
        return (f"{up[0]}/{down[0]}", up[1] / down[1]) if up and down else None
    raised = re.fullmatch(r"(?:(?P<sq>square|sq\.?|cubic)\s+)?(?P<name>\S+?)(?:\s?\^\s?\{?(?P<power>[23])\}?)?", above)
    if raised is None:
        return None
    name = raised["name"].rstrip(".")
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    power = 3 if raised["sq"] == "cubic" else 2 if raised["sq"] else int(raised["power"] or 1)
    return (f"{known[0]}^{power}", known[1] ** power) if known and power > 1 else known
