"""What the words of a problem say about its numbers: constants that they imply, and numerals to leave as they are."""

import re
from collections.abc import Iterator
from fractions import Fraction

from examples.gsm8k.numerals import IN_WORDS, Number, whole, words_value

IMPLIED: dict[str, tuple[str, str]] = {
    r"week(?:s|ly)?": ("7", "4 5 52"),
    r"(?:week)?days?|daily": ("24", "7 5 30 365"),
    r"weekends?": ("2", "5 8"),
    r"months?|monthly|quarterly": ("12 30", "31 28 4 3"),
    r"years?|yearly|annual(?:ly)?|age": ("12", "365 52 366 4"),
    r"decades?": ("10", ""),
    r"century|centuries": ("100", ""),
    r"hours?|hourly|hrs?|mph": ("60", "24 3600 12"),
    r"minutes?|mins?": ("60", ""),
    r"seconds?|secs?": ("60", "3600"),
    r"noon|midnight|a\.?m\.?|p\.?m\.?|o'clock": ("12", "24"),
    r"dozens?": ("12", "6"),
    r"twice|double[sd]?|doubling|both|pairs?|couples?|half|halves": ("2 .5", "50 1.5 .25"),
    r"thrice|triple[sd]?|tripling|triplets": ("3", ""),
    r"quadruple[sd]?|quadruplets": ("4", ""),
    r"quintuple[sd]?": ("5", ""),
    r"quarters?": ("4 1/4 3/4 25", "3 .25"),
    r"third": ("3 1/3 2/3", ""),
    r"fourth": ("4 1/4 3/4", "3"),
    r"fifth": ("5 1/5 4/5", "4"),
    r"sixth": ("6 1/6 5/6", "5"),
    r"seventh": ("7 1/7", "6"),
    r"eighth": ("8 1/8", "7"),
    r"ninth": ("9 1/9", "8"),
    r"tenth": ("10 1/10", "9"),
    r"feet|foot|ft": ("12", "3"),
    r"inch(?:es)?": ("12", "36"),
    r"yards?": ("3", "36"),
    r"miles?": ("", "5280"),
    r"pounds?|lbs?|ounces?|oz": ("16", ""),
    r"gallons?|quarts?|pints?": ("4 2 8 16", "128 32"),
    r"cups?": ("", "2 8 16"),
    r"tablespoons?|teaspoons?": ("3", ""),
    r"\w*(?:meter|metre)s?|cm|km|m": ("100 1000", "10"),
    r"kg|kilos?|kilograms?|kilometers?|liters?|litres?|ml|milliliters?|tons?": ("1000 2000", ""),
    r"percent(?:age)?|discount|cents?|dollars?|interest": ("100", ".01"),
    r"dimes?": ("10", ".1"),
    r"nickels?": ("5", ".05"),
    r"coins?|penny|pennies": ("25 10 5", ".01"),
    r"squares?|rectang\w*|perimeter": ("4 2", ""),
    r"fenc\w*|gardens?|sides?": ("", "4 2"),
    r"triang\w*": ("3", "2"),
    r"hexagon\w*": ("6", ""),
    r"pentagon\w*": ("5", ""),
    r"octagon\w*": ("8", ""),
    r"cubes?": ("6", "3 8"),
    r"legs?|legged|paws?|feet|hooves": ("4 2", "8 6"),
    r"dogs?|cats?|cows?|goats?|sheep|horses?|pigs?|chickens?|ducks?|animals?": ("", "4 2"),
    r"spiders?|octopus\w*": ("8", ""),
    r"ants?|insects?|bugs?": ("", "6"),
    r"wheels?|tires?": ("4 2 3", ""),
    r"cars?|bikes?|bicycles?|tricycles?|motorcycles?": ("", "4 2 3"),
    r"hands?|fingers?|toes?|nails?": ("5 10 20", ""),
    r"parents?|grandparents": ("2", "4"),
    r"alphabet|letters?": ("", "26"),
    r"cards?|decks?": ("", "52"),
    r"leap": ("366", ""),
    r"seasons?": ("", "4"),
}
"""Constants that words stand for: those to reckon with, and those to think of where nothing else explains a number."""

_WEEKDAYS = re.compile(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b")
_MONTH_NAMES = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTHS = re.compile(rf"\b(?:{_MONTH_NAMES})\b".lower())
Constants = frozenset[Number]


def _constants(values: str) -> Constants:
    return frozenset(whole(Fraction(value)) for value in values.split())


_IMPLIED: list[tuple[re.Pattern[str], Constants, Constants]] = [
    (re.compile(rf"\b(?:{pattern})\b"), _constants(likely), _constants(unlikely))
    for pattern, (likely, unlikely) in IMPLIED.items()
]
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "twelfth": 12, "twentieth": 20, "hundredth": 100,
}  # fmt: skip
_FRACTION_IN_WORDS = re.compile(
    rf"\b(one|two|three|four|five|six|seven|eight|nine)[ -]({'|'.join(_PARTS)})s?\b", re.IGNORECASE
)
FRACTION = re.compile(r"(?<![\d.,/])(?:(\d+) (?:and )?)?(\d+)/(\d+)(?![\d/])")
_LIST_OF_NAMES = re.compile(r"\b[A-Z]\w+(?:, [A-Z]\w+)*,? and [A-Z]\w+\b")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+\b")


def number_words(text: str) -> Iterator[int]:
    """The values of the numbers that it has in words, save "one", which is mostly no number."""
    for found in IN_WORDS.finditer(text):
        if (value := words_value(found.group())) != 1:
            yield value


def ordinals(text: str) -> set[int]:
    """The numbers of ordinals: 5 for "the 5th day"."""
    return {int(found) for found in re.findall(r"(?<![\d.,])(\d+)(?:st|nd|rd|th)\b", text)}


def implied(question: str, answer: str) -> tuple[frozenset[Number], frozenset[Number]]:
    """The constants that a solution may use although they are no numeral of the question: likely and less likely."""
    text = f"{question} {answer}"
    likely: set[Number] = {1, 2, 100, 1_000, *number_words(text)}
    unlikely: set[Number] = {0}
    text = text.lower()
    for pattern, values, others in _IMPLIED:
        if pattern.search(text):
            likely |= values
            unlikely |= others
    if "%" in text:
        unlikely.add(Fraction(1, 100))
    if _WEEKDAYS.search(text):
        likely |= {5, 7}
        unlikely.update(range(1, 8))
    if _MONTHS.search(text):
        unlikely.update([*range(1, 13), 28, 30, 31])
    for count, part in _FRACTION_IN_WORDS.findall(text):
        likely |= _of_fraction(words_value(count), _PARTS[part.lower()])
    for before, above, below in FRACTION.findall(question):
        if int(below):
            likely |= _of_fraction(int(above), int(below))
            likely.add(whole(int(before or 0) + Fraction(int(above), int(below))))
    return frozenset(likely), frozenset(unlikely)


def _of_fraction(above: int, below: int) -> set[Number]:
    """What a solution makes of 2/5: 2, 5, 0.4, and 3, 0.6 of the rest."""
    part = Fraction(above, below)
    return {above, below, abs(below - above), whole(part), whole(abs(1 - part))}


FIXED_BEFORE = re.compile(
    rf"(?:\b(?:{_MONTH_NAMES}|[Dd]ay|[Gg]rade|[Cc]hapter|[Ll]evel|[Rr]oute|[Hh]ighway|[Ff]light|[Nn]umber|[Nn]o\.|"
    r"[Rr]oom|[Pp]age|[Ss]tep|[Ww]eek|[Yy]ear|[Aa]partment|[Ss]eason|[Gg]roup|[Tt]eam|[Bb]ox|[Tt]ype|[Pp]lan) |"
    r"[A-Za-z#:/^\-–]|\bx ?)$"
)
"""Before a numeral that names or dates something, or is part of a fraction, a time of day or a size."""
FIXED_AFTER = re.compile(
    r"(?:st|nd|rd|th)\b|[:/^]\d|['’]|[kKmM]\b|s\b|D\b| ?[AaPp]\.?[Mm]\b| ?[Oo]['’][Cc]lock|[x×]\d| ?x ?\d|-by-|"
    r" \d+/\d|[-–]\d| (?:work|week|school |business )days?\b"
)
"""After a numeral that is an ordinal, a time of day, part of a fraction or a range, or written with another unit."""
PEOPLE_OR_TIMES = re.compile(
    r"(?: \w+)? ?(?:times|friends|brothers|sisters|siblings|children|kids|people|co-?workers|others|other|classmates|"
    r"guests|roommates|cousins|teammates|more|colleagues|students|employees|family|members|sons|daughters)\b"
)
"""After a numeral n whose problem may count n + 1 or n - 1: "4 times as many", "with 3 friends"."""
AT_MOST = (
    (re.compile(r"[ -]hours? (?:a|per|each|every) day|[ -]hours? (?:of sleep|daily)"), 24),
    (re.compile(r"[ -]hours? (?:a|per|each|every) (?:work ?)?week"), 80),
    (re.compile(r"[ -](?:\w+ )?days? (?:a|per|each|every|of the|in a|of each) (?:school )?week"), 7),
    (re.compile(r"[ -]degrees"), 110),
    (re.compile(r"[ -]years?[ -](?:old|of age)"), 90),
    (re.compile(r" months? (?:a|per|each|every|of the|in a|out of the) year"), 12),
    (re.compile(r" weeks? (?:a|per|each|every|of the|in a) year"), 52),
    (re.compile(r" weeks? (?:a|per|each|every|of the|in a) month"), 4),
    (re.compile(r" days? (?:a|per|each|every|of the|in a) month"), 30),
)
"""What there cannot be more of."""
IN_A_WEEK, IN_A_DAY = re.compile(r"[ -]days?\b"), re.compile(r"[ -]hours?\b")
EVERY_WEEK = re.compile(r"\b(?:(?:a|per|each|every|this|that|the) (?:\w+ )?week|weekly)\b")
EVERY_DAY = re.compile(r"\b(?:(?:a|per|each|every|one) day|daily)\b")
"""Where one of these is in the question, its days may be days of a week, its hours hours of a day."""
CONDITION = re.compile(
    r"\b(?:if|when|once|until|unless|for (?:any|every|each|all)|any|orders?|first|hours|after|anything|needs?|wants?|"
    r"holds?|cannot)\b[^.?]*?\b(?:less than|more than|fewer than|over|under|at least|at most|between|exceed\w*|above|"
    r"below|beyond|up to|maximum|minimum|limit|no more)\b(?: of)? \$?\d|\bovertime\b|\bbulk\b",
    re.IGNORECASE,
)
"""A problem that goes another way beyond some number: its numbers and results keep their order, all together."""
RATIO = re.compile(r"\b\d+ ?: ?\d+\b|\bratios?\b")
_UNIT = (
    r"(?:inch(?:es)?|feet|foot|yards?|miles?|\w*met(?:er|re)s?|pounds?|lbs?|ounces?|\w*grams?|tons?|cups?|pints?|quarts?|"
    r"gallons?|\w*lit(?:er|re)s?|\w*spoons?|minutes?|hours?|seconds?|days?|weeks?|months?|years?|cents|dollars?|cm|kg|oz)\b"
)
_IS = r"(?:is|are|was|has|have|contains?|equals?|makes?|=|(?:is|are) (?:equal to|about|the same as|approximately))"
CONVERSION_BEFORE = re.compile(rf"\b(?:1|an?|one|each|every) {_UNIT} {_IS} ?$")
CONVERSION_AFTER = re.compile(rf" ?{_UNIT}")
"""Around a numeral that says how large a unit is: "1 foot is equal to 12 inches"."""
RATE_BEFORE = re.compile(r"(?:[Tt]here (?:are|is)|[Aa]ssume|[Rr]emember|[=(]) ?$")
RATE_AFTER = re.compile(rf" ?{_UNIT} (?:per|in|to|for|{_IS})(?: an?| one| each| every| the| 1)? {_UNIT}")
"""The same the other way round: "there are 12 inches in a foot"."""
CHOOSING = re.compile(
    r"\b(?:cheape[rs]t?|least|most|maximum|minimum|greatest|largest|smallest|highest|lowest|fastest|slowest|longest|"
    r"shortest|whichever|better|best|winner|wins?|biggest|oldest|youngest|exceed\w*)\b"
)
"""A problem with one of these words may go another way when its numbers come in another order."""


def is_conversion(before: str, after: str) -> bool:
    """Whether a numeral between these says how two units belong together."""
    return bool(
        (CONVERSION_BEFORE.search(before) and CONVERSION_AFTER.match(after))
        or (RATE_BEFORE.search(before) and RATE_AFTER.match(after))
    )


def counted_names(text: str) -> set[int]:
    """How many people the text may name: all, and those of each list like "Ann, Bob and Carl"."""
    lists = {len(re.findall(r"[A-Z]\w+", found.group())) for found in _LIST_OF_NAMES.finditer(text)}
    return {len(set(_NAME.findall(text))), *lists} - {0, 1}


def most(question: str, after: str) -> Iterator[int]:
    """What a numeral cannot exceed that has this after it."""
    yield from (limit for pattern, limit in AT_MOST if pattern.match(after))
    if IN_A_WEEK.match(after) and EVERY_WEEK.search(question):
        yield 7
    if IN_A_DAY.match(after) and EVERY_DAY.search(question):
        yield 24
