"""Finds the final answer of a text.

In this order: the content of the last <answer> tags; the last \\boxed{…}, with those next to it (\\boxed{1} and
\\boxed{2}), unless "final answer" follows it; what follows the last ####; what follows the last "answer is"; a short
text as a whole; the last formula or, after it, the last number. Only one answer is read, so that writing many guesses
does not help. The work is bounded however long the text is, because only its end is searched.
"""

import re

from freerun.rewards.math.notation import normalize
from freerun.rewards.numerals import last_numeral

MAX_ANSWER_CHARS = 1000
"""Anything longer is not an answer, and is not read."""
TAIL_CHARS = 4000
"""How much of the end of a text is searched for an answer without a box."""
_MAX_BOXES = 12
"""How many boxes are tried, from the end, to find one that is complete."""
_MAX_BETWEEN_BOXES = 70
"""How many characters may be between two boxes of one answer."""

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
_SEPARATOR = re.compile(r"\s*(?:,|,?\s*(?:and|or)|\\text\{\s*(?:and|or)\s*\}|\\quad|\s)+\s*")
_BROKEN_FORMULA = re.compile(r"(?<!\$)\$[ \t]*\n[^$\nA-Za-z]*\n[ \t]*\$(?!\$)|\\\([ \t]*\n[^\nA-Za-z]*\n[ \t]*\\\)")
"""Single dollar signs on different lines do not enclose a formula."""
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_OTHER_SCRIPTS = re.compile("[\u0400-\u04ff\u0600-\u06ff\u3040-\u9fff\uac00-\ud7af]")
_NAMES = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "or", "and", "oo", "infinity", "matrix", "array"}
_RETRACTION = re.compile(
    r"\b(?:but|no|not|wait|actually|instead|rather|correct\w*|so|thus|hence|therefore|then|final\w*|answer)\b",
    re.IGNORECASE,
)
"""A word between two boxes that means that the second replaces the first."""
_DECIMAL_COMMA = re.compile(r"(?<![\d,.\w])-?\d+,\d{1,2}(?![\d,]|\.\d)(?=[^\d]*$)")

_WITHOUT_UNIT = re.compile(
    r"(?<=[\d})])\s+[A-Za-z]{2,}\.?\Z|(?<=\w)\s+(?:radians|million|billion|trillion|thousand)\.?\Z"
)
"""The unit after the value, in a text that is nothing but an answer: `60 mm`."""
_LETTER_AT_END = re.compile(r"\([A-J]\)\.?\s*\Z|(?<=\n)[A-J]\.?\s*\Z")
_EITHER = re.compile(r"(?:-?\d[\d.]*, ?)*-?\d[\d.]*,? or -?\d[\d.,]*(?=\D*$)")


class TooLong(Exception):
    """The answer is longer than `MAX_ANSWER_CHARS`."""


def final_answer(text: str) -> str | None:
    """The answer as it is written in the text, after any thinking. None if there is none, or only a box that is never
    closed."""
    text = _TURN_ENDS.split(text.removeprefix("<|im_start|>"), maxsplit=1)[0]
    after_thinking = text.rpartition("</think>")[2]
    text = after_thinking if after_thinking.strip() else text
    tagged = _in_answer_tags(text)
    if tagged is not None:
        return final_answer(tagged) or tagged
    if "\\boxed" in text or "\\fbox" in text:
        return _final_answer_after_boxes(text) or _in_boxes(text)
    tail = _BROKEN_FORMULA.sub(" ", text[-TAIL_CHARS:])
    _, marks, after = tail.rpartition("####")
    if marks and after.strip(" :\n"):
        return _from_line(after.strip(" :\n").splitlines()[0])
    stated = _after_answer_is(tail)
    if stated is not None:
        return stated
    whole = tail.strip() if len(text) <= TAIL_CHARS else ""
    if alone := _FORMULA.fullmatch(whole):
        return _content(alone)
    if whole and len(whole) <= 200 and "\n" not in whole and not has_words(_WITHOUT_UNIT.sub("", whole)):
        return whole
    return _formula_or_number(tail) or (whole if 0 < len(whole.split()) <= 3 and len(whole) <= 50 else None)


def has_words(text: str) -> bool:
    """Whether it contains words, other than names of functions."""
    bare = re.sub(r"\\(?:text\w*|mathrm|mbox|(?:begin|end)\{array\}|begin|end)\s*\{[^{}]*\}", "", text)
    bare = re.sub(r"(?<![A-Za-z])(?:and|or)(?=[A-Z(\d])", " ", bare)
    return any(word.lower() not in _NAMES for word in _WORD.findall(bare)) or _OTHER_SCRIPTS.search(bare) is not None


def is_prose(text: str) -> bool:
    """Whether it contains words outside its formulas."""
    return has_words(_FORMULA.sub(" ", text))


def _in_answer_tags(text: str) -> str | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    if start < 0 or end < 0:
        return None
    if end - start > MAX_ANSWER_CHARS:
        raise TooLong
    return text[start + len("<answer>") : end].strip()


def _final_answer_after_boxes(text: str) -> str | None:
    """What follows "final answer" after the last box."""
    rest = text[max(text.rfind("\\boxed"), text.rfind("\\fbox")) :][-TAIL_CHARS:]
    phrases = list(_SAYS_FINAL.finditer(rest))
    found = _from_sentence(rest[phrases[-1].end() :]) if phrases else None
    return found if found and re.search(r"\d|\\", found) else None


def _in_boxes(text: str) -> str | None:
    """The content of the last box that is closed and not empty, or of several boxes that are one answer."""
    found: list[str] = []
    end, next_start = len(text), -1
    for _ in range(_MAX_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        opened = start + (6 if text.startswith("\\boxed", start) else 5)
        inside, closed = _braced(text, opened)
        if inside:  # an empty box is only being talked about
            if found and (closed > next_start or not _belong_together(text[closed:next_start])):
                break
            found.append(inside)
            next_start = start
        end = start
    distinct = list(dict.fromkeys(reversed(found)))
    if len(distinct) == 1:
        return _after_answer_is(normalize(distinct[0])) or distinct[0]
    return ", ".join(distinct) or None


def _belong_together(between: str) -> bool:
    """Whether two boxes with this text between them are one answer."""
    bare = re.sub(
        r"\\(?:text\w*|mathrm)\s*\{([^{}]*)\}|\\[A-Za-z]+|\\[()\[\],; ]|[$&]|[A-Za-z]\w*\s*=|\s", r" \1 ", between
    )
    if len(bare) > _MAX_BETWEEN_BOXES or _RETRACTION.search(bare) or re.search(r"\.\s|\n\s*\n", between):
        return False
    return not re.search(r"\w", bare) or re.search(r"\b(?:and|or)\b", bare) is not None


def _braced(text: str, start: int) -> tuple[str | None, int]:
    """The content of the braces that open at `start`, or the next word if there are none, and where it ends. None if
    the braces are never closed."""
    window = text[start : start + MAX_ANSWER_CHARS + 2]
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
    if start + MAX_ANSWER_CHARS + 2 < len(text):
        raise TooLong
    return None, start


def _after_answer_is(text: str) -> str | None:
    """What follows the last "answer is"."""
    phrases = list(_SAYS_ANSWER.finditer(text))
    return _from_sentence(text[phrases[-1].end() :]) if phrases else None


def _from_sentence(rest: str) -> str | None:
    """The answer at the start of a text that may continue in words. If it is a sentence, what follows its last verb."""
    rest = rest.lstrip('"\\“ ') if re.match(r'\\?["“]', rest) else rest
    joined = _joined_formulas(rest)
    if joined is not None:
        return joined
    line = re.split(r"\n|\\[\])]", rest, maxsplit=1)[0]
    if choice := re.match(r"\(?(?P<letter>[A-Z])\)", line):
        return line if re.search(r"\b(?:or|and)\b", line) else choice["letter"]
    sentence, rest = _first_sentence(line)
    if rest and re.match(r"[^.]*\b(?:no|wait|actually|sorry)\b", rest):
        return last_numeral(line) or sentence
    if len(_WORD.findall(sentence)) < 3:
        return sentence or None
    verbs = list(re.finditer(r"\b(?:is|are|equals|be)\s+(?=\S)", sentence))
    if verbs and verbs[-1].end() < len(sentence):
        return _from_sentence(sentence[verbs[-1].end() :])
    return _first_number(sentence)


def _first_sentence(line: str) -> tuple[str, str]:
    """The line up to the end of its first sentence or clause, and the rest."""
    end = _SENTENCE_END.search(line)
    sentence = (line[: end.start()] if end else line).strip()
    if len(sentence) > MAX_ANSWER_CHARS:
        raise TooLong
    return sentence, line[end.start() :] if end else ""


def _first_number(sentence: str) -> str:
    """The first number in a sentence; the last if the sentence says what the answer is not."""
    if re.search(r"\b(?:not|but)\b", sentence):
        return last_numeral(sentence) or sentence
    parts = re.split(r"(?<=\d)(?=[^\d.,/%\s])|(?<=[\d%])\s+(?=[A-Za-z])", sentence)
    return next((found for found in map(last_numeral, parts) if found is not None), sentence)


def _from_line(line: str) -> str | None:
    """The answer in a line after ####: a formula or a number, possibly with words around it."""
    joined = _joined_formulas(line)
    if joined is not None:
        return joined
    sentence, _ = _first_sentence(line)
    return sentence if len(_WORD.findall(sentence)) < 3 else last_numeral(sentence) or sentence


def _joined_formulas(text: str) -> str | None:
    """The formulas at the start of a text, as one answer ($2$ and $3$), with the unit that may follow."""
    found, place = list[str](), 0
    while (match := _FORMULA.match(text, place)) and len(found) < 6:
        found.append(_content(match))
        place = match.end()
        joint = _SEPARATOR.match(text, place)
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
        while first and _SEPARATOR.fullmatch(tail[formulas[first - 1].end() : formulas[first].start()]):
            first -= 1
        content = ", ".join(map(_content, formulas[first:]))
        return content + ("%" if re.match(r"\s*(?:\\?%|percent\b)", after) else "")
    written = _DECIMAL_COMMA.search(tail) or _EITHER.search(tail) or _LETTER_AT_END.search(tail)
    return written[0].strip(" .") if written else last_numeral(tail)


def _content(formula: re.Match[str]) -> str:
    return next(group for group in (formula[name] for name in "abcde") if group is not None).strip()
