"""Where in a text its final answer stands.

In this order: what the last <answer> tags hold; the last \\boxed{…}, with those beside it (\\boxed{1} and \\boxed{2}),
unless "final answer" is said after it; what follows the last ####; what follows the last "answer is"; a short text as
a whole; the last formula or, after it, the last number. Only one answer is ever taken, so that a text with many guesses
is no better off. The work is bounded, however long the text: what cannot be near the end is not looked at.
"""

import re

from freerun.rewards.math.notation import plain
from freerun.rewards.numerals import last_numeral

LONGEST = 1000
"""Characters of an answer. What is longer is no answer, and is not read."""
TAIL = 4000
"""Characters at the end of a text in which an answer without a box is looked for."""
_MOST_BOXES = 12
"""How many boxes are looked at, from the end, to find whole ones."""
_BETWEEN = 70
"""Characters between two boxes of one answer."""

_TURN_ENDS = re.compile(r"(?<=\S)\s*(?:<\|(?:im_end|eot_id|endoftext|end_of_text|end|im_start)\|>|</s>|<end_of_turn>)")
_SAYS_ANSWER = re.compile(
    r"\b(?:answers?|(?:correct|right) (?:option|choice))\b[*_\s}]*"
    r"(?:[^.\n:=]{0,60}?\b(?:is|are|equals|be)\b|[:=])[\s:=*_]*(?=\S)",
    re.IGNORECASE,
)
_SAYS_FINAL = re.compile(r"final answer\b[*_\s]*(?:[^.\n:=]{0,60}?\bis\b|:)[\s:*_]*(?=\S)", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"\.(?=\s|$)|;(?=\s)|!(?=\s+[A-Z]|\s*$)|,(?=\s+[a-z]{2,}\b)(?!\s+(?:and|or)\b)|\*\*|\s+\(?(?:because|since|as|which|so)\b"
)
_FORMULA = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<![\\\w$])\$(?P<d>(?:\\\$|[^$\n])+?)(?<!\\)\$(?!\d)"
    r"|(?P<e>\\begin\{(?P<kind>[pbvBV]?matrix|array)\}.+?\\end\{(?P=kind)\})",
    re.DOTALL,
)
_JOINT = re.compile(r"\s*(?:,|,?\s*(?:and|or)|\\text\{\s*(?:and|or)\s*\}|\\quad|\s)+\s*")
_BROKEN_FORMULA = re.compile(r"(?<!\$)\$[ \t]*\n[^$\nA-Za-z]*\n[ \t]*\$(?!\$)|\\\([ \t]*\n[^\nA-Za-z]*\n[ \t]*\\\)")
"""One in single dollars over several lines is none."""
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_OTHER_SCRIPTS = re.compile("[\u0400-\u04ff\u0600-\u06ff\u3040-\u9fff\uac00-\ud7af]")
_NAMES = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "or", "and", "oo", "infinity", "matrix", "array"}
_TAKES_BACK = re.compile(
    r"\b(?:but|no|not|wait|actually|instead|rather|correct\w*|so|thus|hence|therefore|then|final\w*|answer)\b",
    re.IGNORECASE,
)
"""Between two boxes: the second replaces the first."""
_DECIMAL_COMMA = re.compile(r"(?<![\d,.\w])-?\d+,\d{1,2}(?![\d,]|\.\d)(?=[^\d]*$)")

_WITHOUT_UNIT = re.compile(
    r"(?<=[\d})])\s+[A-Za-z]{2,}\.?\Z|(?<=\w)\s+(?:radians|million|billion|trillion|thousand)\.?\Z"
)
"""The word behind the value of a text that is all answer: `60 mm`."""
_LETTER_AT_END = re.compile(r"\([A-J]\)\.?\s*\Z|(?<=\n)[A-J]\.?\s*\Z")
_EITHER = re.compile(r"(?:-?\d[\d.]*, ?)*-?\d[\d.]*,? or -?\d[\d.,]*(?=\D*$)")


class TooLong(Exception):
    """There is an answer, and it is longer than an answer can be."""


def final_answer(text: str) -> str | None:
    """The answer as it stands in the text, behind the thinking that may come first; None where there is none, or only a
    box that never closes."""
    text = _TURN_ENDS.split(text.removeprefix("<|im_start|>"), maxsplit=1)[0]
    after_thinking = text.rpartition("</think>")[2]
    text = after_thinking if after_thinking.strip() else text
    tagged = _tagged(text)
    if tagged is not None:
        return final_answer(tagged) or tagged
    if "\\boxed" in text or "\\fbox" in text:
        return _after_boxes(text) or _boxed(text)
    tail = _BROKEN_FORMULA.sub(" ", text[-TAIL:])
    _, marks, after = tail.rpartition("####")
    if marks and after.strip(" :\n"):
        return _from_line(after.strip(" :\n").splitlines()[0])
    said = _said(tail)
    if said is not None:
        return said
    whole = tail.strip() if len(text) <= TAIL else ""
    if alone := _FORMULA.fullmatch(whole):
        return _content(alone)
    if whole and len(whole) <= 200 and "\n" not in whole and not has_words(_WITHOUT_UNIT.sub("", whole)):
        return whole
    return _formula_or_number(tail) or (whole if 0 < len(whole.split()) <= 3 and len(whole) <= 50 else None)


def has_words(text: str) -> bool:
    """Whether there is prose in it, and not only formulas."""
    bare = re.sub(r"\\(?:text\w*|mathrm|mbox|(?:begin|end)\{array\}|begin|end)\s*\{[^{}]*\}", "", text)
    bare = re.sub(r"(?<![A-Za-z])(?:and|or)(?=[A-Z(\d])", " ", bare)
    return any(word.lower() not in _NAMES for word in _WORD.findall(bare)) or _OTHER_SCRIPTS.search(bare) is not None


def is_prose(text: str) -> bool:
    """Whether there are words besides its formulas."""
    return has_words(_FORMULA.sub(" ", text))


def _tagged(text: str) -> str | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    if start < 0 or end < 0:
        return None
    if end - start > LONGEST:
        raise TooLong
    return text[start + len("<answer>") : end].strip()


def _after_boxes(text: str) -> str | None:
    """What "Final answer" is said to be, after the last box."""
    rest = text[max(text.rfind("\\boxed"), text.rfind("\\fbox")) :][-TAIL:]
    said = list(_SAYS_FINAL.finditer(rest))
    found = _from_prose(rest[said[-1].end() :]) if said else None
    return found if found and re.search(r"\d|\\", found) else None


def _boxed(text: str) -> str | None:
    """The last box that closes and is not empty, or several that are one answer."""
    found: list[str] = []
    end, next_start = len(text), -1
    for _ in range(_MOST_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        opened = start + (6 if text.startswith("\\boxed", start) else 5)
        inside, closed = _inside(text, opened)
        if inside:  # an empty one is talked about, and not filled in
            if found and (closed > next_start or not _are_one(text[closed:next_start])):
                break
            found.append(inside)
            next_start = start
        end = start
    distinct = list(dict.fromkeys(reversed(found)))
    if len(distinct) == 1:
        return _said(plain(distinct[0])) or distinct[0]
    return ", ".join(distinct) or None


def _are_one(between: str) -> bool:
    bare = re.sub(
        r"\\(?:text\w*|mathrm)\s*\{([^{}]*)\}|\\[A-Za-z]+|\\[()\[\],; ]|[$&]|[A-Za-z]\w*\s*=|\s", r" \1 ", between
    )
    if len(bare) > _BETWEEN or _TAKES_BACK.search(bare) or re.search(r"\.\s|\n\s*\n", between):
        return False
    return not re.search(r"\w", bare) or re.search(r"\b(?:and|or)\b", bare) is not None


def _inside(text: str, start: int) -> tuple[str | None, int]:
    """What stands in the braces that open at `start`, or the one word there without any, and where it ends; None if
    they never close."""
    window = text[start : start + LONGEST + 2]
    stripped = window.lstrip()
    skipped = start + len(window) - len(stripped)
    if not stripped.startswith("{"):
        word = re.match(r"[^\s$\\{}]+", stripped)
        return (word[0].rstrip(".,;"), skipped + word.end()) if word else (None, start)
    depth, skip = 0, False
    for place, character in enumerate(stripped):
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return stripped[1:place].strip(), skipped + place + 1
    if start + LONGEST + 2 < len(text):
        raise TooLong
    return None, start


def _said(text: str) -> str | None:
    """After the last "answer is"."""
    said = list(_SAYS_ANSWER.finditer(text))
    return _from_prose(text[said[-1].end() :]) if said else None


def _from_prose(rest: str) -> str | None:
    """The answer at the start of a text that may go on in words; of a sentence, what it says something is."""
    rest = rest.lstrip('"\\“ ') if re.match(r'\\?["“]', rest) else rest
    joined = _joined_formulas(rest)
    if joined is not None:
        return joined
    line = re.split(r"\n|\\[\])]", rest, maxsplit=1)[0]
    if choice := re.match(r"\(?(?P<letter>[A-Z])\)", line):
        return line if re.search(r"\b(?:or|and)\b", line) else choice["letter"]
    ended = _SENTENCE_END.search(line)
    said = (line[: ended.start()] if ended else line).strip()
    if len(said) > LONGEST:
        raise TooLong
    if ended and re.match(r"[^.]*\b(?:no|wait|actually|sorry)\b", line[ended.start() :]):
        return last_numeral(line) or said
    if len(_WORD.findall(said)) < 3:
        return said or None
    verb = list(re.finditer(r"\b(?:is|are|equals|be)\s+(?=\S)", said))
    if verb and verb[-1].end() < len(said):
        return _from_prose(said[verb[-1].end() :])
    return _number_in(said)


def _number_in(said: str) -> str:
    """The first number of a sentence, the last where it says what is not the answer."""
    if re.search(r"\b(?:not|but)\b", said):
        return last_numeral(said) or said
    parts = re.split(r"(?<=\d)(?=[^\d.,/%\s])|(?<=[\d%])\s+(?=[A-Za-z])", said)
    return next((found for found in map(last_numeral, parts) if found is not None), said)


def _from_line(line: str) -> str | None:
    """After ####: a formula or a number, with words around it."""
    joined = _joined_formulas(line)
    if joined is not None:
        return joined
    ended = _SENTENCE_END.search(line)
    said = (line[: ended.start()] if ended else line).strip()
    if len(said) > LONGEST:
        raise TooLong
    return said if len(_WORD.findall(said)) < 3 else last_numeral(said) or said


def _joined_formulas(text: str) -> str | None:
    """$2$ and $3$, at the start of a text: one answer of several formulas, with the unit that may stand behind."""
    found, place = list[str](), 0
    while (match := _FORMULA.match(text, place)) and len(found) < 6:
        found.append(_content(match))
        place = match.end()
        joint = _JOINT.match(text, place)
        if joint is None or not _FORMULA.match(text, joint.end()):
            break
        place = joint.end()
    if not found:
        return None
    unit = re.match(r"\s*(%|(?:[A-Za-z]+ ?){1,3})(?=[.,;!]|\s*$)", text[place:])
    return ", ".join(found) + (
        rf"\text{{ {unit[1]}}}" if unit and len(found) == 1 and not re.search(r"\bI\b|^\s*so\b", unit[1]) else ""
    )


def _formula_or_number(tail: str) -> str | None:
    formulas = [match for match in _FORMULA.finditer(tail) if not has_words(_content(match))]
    after = tail[formulas[-1].end() :] if formulas else ""
    if formulas and last_numeral(after) is None:
        first = len(formulas) - 1
        while first and _JOINT.fullmatch(tail[formulas[first - 1].end() : formulas[first].start()]):
            first -= 1
        content = ", ".join(map(_content, formulas[first:]))
        return content + ("%" if re.match(r"\s*(?:\\?%|percent\b)", after) else "")
    written = _DECIMAL_COMMA.search(tail) or _EITHER.search(tail) or _LETTER_AT_END.search(tail)
    return written[0].strip(" .") if written else last_numeral(tail)


def _content(formula: re.Match[str]) -> str:
    return next(group for group in (formula[name] for name in "abcde") if group is not None).strip()
