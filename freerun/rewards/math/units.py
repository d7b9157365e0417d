"""Separates a number from its unit, its currency, its percent sign, or other words around it."""

import re
from fractions import Fraction
from typing import NamedTuple

_NAMES: dict[str, dict[Fraction | int, str]] = {
    "length": {
        **{Fraction(1, 1000): "mm millimeter millimetre", Fraction(1, 100): "cm centimeter centimetre"},
        **{1: "m meter metre", 1000: "km kilometer kilometre", Fraction(254, 10000): "in inch inche"},
        **{Fraction(3048, 10000): "ft foot feet", Fraction(9144, 10000): "yd yard", Fraction(1609344, 1000): "mi mile"},
    },
    "mass": {
        **{Fraction(1, 1000): "mg milligram", 1: "g gram", 1000: "kg kilogram kilo"},
        **{Fraction(45359237, 100000): "lb pound", Fraction(45359237, 1600000): "oz ounce"},
    },
    "time": {1: "s sec second", 60: "min minute", 3600: "h hr hour", 86400: "day", 604800: "week"},
    "months": {1: "month", 12: "yr year", 120: "decade", 1200: "century centurie"},
    "volume": {Fraction(1, 1000): "ml milliliter millilitre", 1: "l liter litre"},
    "US volume": {1: "cup", 2: "pint", 4: "quart", 16: "gallon"},
    "dollars": {1: "$ dollar usd buck", Fraction(1, 100): "¢ cent"},
    "euros": {1: "€ euro eur"},
    "pounds sterling": {1: "£ gbp"},
    "yen": {1: "¥ yen"},
    "rupees": {1: "₹ rupee"},
    "angle": {1: "^\\circ ^{\\circ} degree deg"},
    "morning": {1: "am a.m"},
    "afternoon": {1: "pm p.m"},
    "celsius": {1: "^\\circc celsiu degree_celsiu"},
    "fahrenheit": {1: "^\\circf fahrenheit degree_fahrenheit"},
}
_UNITS = {
    name: (dimension, Fraction(factor))
    for dimension, rows in _NAMES.items()
    for factor, names in rows.items()
    for name in names.split()
}
_CURRENCY = re.compile(r"(?P<sign>[-+]?)\s*(?:US\s?|Rs\.?\s?)?(?P<currency>[$€£¥₹])\s*(?P<rest>.*)", re.DOTALL)
_WORDS = r"[A-Za-z][A-Za-z.'-]*(?:[ /·-]+[A-Za-z.'()-]+)*(?:\s?\^\s?(?:[23]|\{\s?[23]\s?\}))?"
_SPACED = re.compile(rf"(?P<bare>.*?[\w}})\]!.|%])\s+(?P<unit>{_WORDS})", re.DOTALL)
_DIRECT = re.compile(
    r"(?P<bare>.*?[\d})\]|A-Za-z])\s*(?P<unit>%.*|[$€£¥₹¢]|\^\s?(?:\\circ|\{\s?\\circ\s?\})(?:\s?[CF](?![A-Za-z]))?)"
    rf"|(?P<number>.*[\d}})])(?P<glued>{_WORDS})",
    re.DOTALL,
)
_NO_UNITS = re.compile(
    r"\b(?:or|and|pi|sqrt|sin|cos|tan|log|ln|exp|[xyzni]|not|but|mod|plus|minus|over|than|less|more|fewer|choose|squared|"
    r"cubed|factorial|half|halves|(?:thir|four|fif|six|seven|eigh|nin|ten|hundred|thousand)(?:th|d)s?|quarters? of|to|"
    r"out|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|"
    r"(?:times|divided by|multiplied by|by) (?:[b-z]|one|two|three)|if|when|for|solutions?|is|are|was)\b"
)
"""Words after a number that may change its value."""
MAX_CHARS = 1000
"""The patterns are slow on longer texts."""
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}


class Unit(NamedTuple):
    dimension: str
    """"" for words that are not a unit, such as apples."""
    factor: Fraction = Fraction(1)
    """The value of one of it, in the base unit of its dimension."""
    scale: int = 1
    """The factor in words: a million, in "five million people"."""


PERCENT = Unit("percent", Fraction(1, 100))


def without_unit(text: str, glued: bool = False) -> tuple[str, Unit | None]:
    """The text without its unit, and the unit. With `glued`, a letter directly after a number (12m) is a unit too."""
    if len(text) > MAX_CHARS:
        return text, None
    currency = _CURRENCY.fullmatch(text)
    if currency and currency["rest"]:
        bare, unit = without_unit(currency["sign"] + currency["rest"])
        return bare, Unit(*_UNITS[currency["currency"]], scale=unit.scale if unit else 1)
    spaced = _SPACED.fullmatch(text)
    if spaced and not spaced["bare"].rstrip("} ").endswith("\\circ"):
        return _spaced(spaced["bare"], spaced["unit"].lower().strip(" .")) or (text, None)
    direct = _DIRECT.fullmatch(text)
    if direct is None or re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])", text):
        return text, None
    if direct["glued"]:
        known = _known(direct["glued"].lower())
        meant = known and (len(direct["glued"].strip(".")) > 1 or (glued and direct["glued"] in "mghsl"))
        return (direct["number"], Unit(*known)) if meant and known else (text, None)
    percent = _percent(direct["unit"].lower())
    known = _known(direct["unit"].lower())
    unit = percent or (Unit(*known) if known else None)
    return (direct["bare"], unit) if unit else (text, None)


def _percent(words: str) -> Unit | None:
    """Read a percent sign or word, possibly with what it is a percentage of: 50% of the apples."""
    found = re.match(r"(?:%|per ?cent(?:age points?)?\b|pct\b)\s*(?P<after>.*)", words)
    return PERCENT if found and not _NO_UNITS.search(found["after"]) and not re.search(r"\d", found["after"]) else None


def _spaced(bare: str, words: str) -> tuple[str, Unit] | None:
    first, _, rest = words.partition(" ")
    if first.removesuffix("s") in SCALES:
        further = _spaced(bare, rest) if rest else (bare, Unit(""))
        return (bare, further[1]._replace(scale=SCALES[first.removesuffix("s")])) if further else None
    if percent := _percent(words):
        return bare, percent
    if known := _known(words):
        return (bare, Unit(*known)) if len(words) > 1 or re.fullmatch(r"[-+\d.,/ ]+", bare) else None
    if _NO_UNITS.search(words):
        return None
    return (bare, Unit("")) if re.search(r"[a-z]{3}", words) else None


def _known(text: str) -> tuple[str, Fraction] | None:
    """The dimension and the factor of a unit such as `cm`, `square inches`, `m^2`, `km/h` or `miles per hour`; None if
    it is unknown."""
    text = re.sub(r"\bkmp?h\b", "km/h", text.replace("mph", "mile/hour")).strip(". ")
    text = re.sub(r"\s*\^\s*(\\circ|\{\s?\\circ\s?\})\s*", r"^\\circ", re.sub(r"degrees? (?=[cf])", "degree_", text))
    above, per, below = re.sub(r"\s+per\s+|\s+an?\s+|\s*/\s*", "/", text).partition("/")
    if per:
        up, down = _known(above), _known(below)
        return (f"{up[0]}/{down[0]}", up[1] / down[1]) if up and down else None
    raised = re.fullmatch(
        r"(?:(?P<prefix>square|sq\.?|cubic|cu\.?)\s+)?(?P<name>\S+?)(?:\s?\^\s?\{?\s?(?P<power>[23])\s?\}?|\s(?P<word>squared|cubed))?",
        above,
    )
    if raised is None:
        return None
    name = raised["name"].rstrip(".")
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    word = raised["prefix"] or raised["word"]
    power = (3 if "cu" in word else 2) if word else int(raised["power"] or 1)
    return (f"{known[0]}^{power}", known[1] ** power) if known and power > 1 else known
