"""Where in a text its final answer stands, and that answer in one way of writing.

In this order: what the last <answer> tags hold; the last \\boxed{…}; what follows the last ####; what follows the last
"answer is"; a short text as a whole; the last formula or, after it, the last number. Only one answer is ever taken, so
that a text with many guesses is no better off. The work is bounded, however long the text: what cannot be near the end
is not looked at.
"""

import re

from freerun.rewards.numerals import last_numeral

LONGEST = 1000
"""Characters of an answer. What is longer is no answer, and is not read."""
TAIL = 4000
"""Characters at the end of a text in which an answer without a box is looked for."""
_BOXES = 10
"""How many unfinished boxes are skipped to find a whole one."""

_SAYS_ANSWER = re.compile(
    r"answer\b[*_\s]*(?:[^.\n:=]{0,40}?\b(?:is|are|equals)\b|[:=])[\s:=*_]*(?P<rest>\S.*)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|;|,(?=\s+[a-z]{2,}\b)(?!\s+(?:and|or)\b)|\*\*|(?<=\$)[,.]?\s+(?=[A-Za-z]{2})")
_FORMULA = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<![\\\w$])\$(?P<d>(?:\\\$|[^$\n])+?)(?<!\\)\$(?!\d)",
    re.DOTALL,
)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_NAMES = {"sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp", "or", "and", "oo", "infinity"}


class TooLong(Exception):
    """There is an answer, and it is longer than an answer can be."""


def final_answer(text: str) -> str | None:
    """The answer as it stands in the text, behind the thinking that may come first; None where there is none, or only a
    box that never closes."""
    after_thinking = text.rpartition("</think>")[2]
    text = after_thinking if after_thinking.strip() else text
    tagged = _tagged(text)
    if tagged is not None:
        return final_answer(tagged) or tagged
    if "\\boxed" in text or "\\fbox" in text:
        boxed = _boxed(text)
        return boxed and (_after_answer_is(rewritten(boxed)) or boxed)
    tail = text[-TAIL:]
    _, marks, after = tail.rpartition("####")
    if marks and after.strip():
        return _from_prose(after.strip().splitlines()[0], last=True)
    said = _after_answer_is(tail)
    if said is not None:
        return said
    whole = text.strip() if len(text) <= TAIL else ""
    if whole and len(whole) <= 200 and "\n" not in whole and not has_words(whole):
        return whole
    return _formula_or_number(tail) or (whole if 0 < len(whole.split()) <= 3 and len(whole) <= 50 else None)


def has_words(text: str) -> bool:
    """Whether there is prose in it, and not only formulas."""
    bare = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{[^{}]*\}", "", text)
    return any(word.lower() not in _NAMES for word in _WORD.findall(bare))


def _tagged(text: str) -> str | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start)
    if start < 0 or end < 0:
        return None
    if end - start > LONGEST:
        raise TooLong
    return text[start + len("<answer>") : end].strip()


def _boxed(text: str) -> str | None:
    end = len(text)
    for _ in range(_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            return None
        opened = start + (6 if text.startswith("\\boxed", start) else 5)
        inside = _inside(text, opened)
        if inside:  # an empty one is talked about, and not filled in
            return inside
        end = start
    return None


def _inside(text: str, start: int) -> str | None:
    """What stands in the braces that open at `start`, or the one word there without any; None if they never close."""
    window = text[start : start + LONGEST + 2]
    stripped = window.lstrip()
    if not stripped.startswith("{"):
        word = re.match(r"[^\s$\\{}]+", stripped)
        return word[0].rstrip(".,;") if word else None
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
                return stripped[1:place].strip()
    if start + LONGEST + 2 < len(text):
        raise TooLong
    return None


def _after_answer_is(text: str) -> str | None:
    said = [match["rest"] for match in _SAYS_ANSWER.finditer(text)]
    return _from_prose(said[-1], last=False) if said else None


def _from_prose(line: str, last: bool) -> str | None:
    """The answer at the start of a line that may go on in words; if it is a sentence, its last or its first number."""
    formula = _FORMULA.match(line)
    if formula is not None:
        return _content(formula)
    choice = re.match(r"\(?(?P<letter>[A-Z])\)", line)
    if choice is not None:
        return choice["letter"]
    ended = _SENTENCE_END.search(line)
    said = (line[: ended.start()] if ended else line).strip()
    if len(said) > LONGEST:
        raise TooLong
    if len(_WORD.findall(said)) < 3:
        return said or None
    numeral = last_numeral(said) if last else None
    if not last:
        parts = re.split(r"(?<=\d)(?=[^\d.,/%\s])|(?<=[\d%])\s+(?=[A-Za-z])", said)
        numeral = next((found for found in map(last_numeral, parts) if found is not None), None)
    return numeral or said


def _formula_or_number(tail: str) -> str | None:
    formulas = [match for match in _FORMULA.finditer(tail) if not has_words(_content(match))]
    if formulas and last_numeral(tail[formulas[-1].end() :]) is None:
        content = _content(formulas[-1])
        left, _, right = content.rpartition("=")
        return right.strip() if re.search(r"[0-9]", left) and right.strip() else content
    return last_numeral(tail)


def _content(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip()


_UNICODE = {
    "−": "-", "–": "-", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "×": "\\cdot ", "·": "\\cdot ",
    "⋅": "\\cdot ", "÷": "/", "∪": "\\cup ", "∅": "\\emptyset ", "²": "^2", "³": "^3", "°": "^\\circ ", "±": "\\pm ",
    "∈": "\\in ", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
}  # fmt: skip
_REWRITES = [
    (re.compile(pattern), by)
    for pattern, by in [
        (r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|limits)(?![A-Za-z])", ""),
        (r"(?<=\d)(?:\\[,! ]|~|\{,\}|,\\!)(?=\d{3}(?!\d))", ","),  # thousands, as 1\,000 and 1{,}000 write them
        (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\{,\}", ","),
        *(
            (rf"\\(?:text(?:rm)?|mathrm|mbox)\s*\{{\s*{letter}\s*\}}", f" {unit} ")  # what is meant as a unit
            for letter, unit in (("m", "metre"), ("s", "second"), ("g", "gram"), ("h", "hour"), ("l", "litre"))
        ),
        (r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|it|bb)?|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\(?:leq|leqslant|leqq)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant|geqq)(?![A-Za-z])", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:times|ast)(?![A-Za-z])|\*", r"\\cdot "),
        (r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"(?:√|(?<![\\A-Za-z])sqrt)\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<!\\)\\([$%#&])", r"\1"),
        (r"\\lor(?![A-Za-z])", " or "),
        (r"(?<=\d)(?=(?:[mck]m|[mk]g|ml|lbs?|ft|yd|mi|min|sec|hrs?|mph)(?![A-Za-z]))", " "),  # 12cm
        (r"_\{(\w)\}", r"_\1"),
        (r"\s+", " "),
    ]
]


def rewritten(answer: str) -> str:
    """The answer without what only changes its looks, so that fewer ways of writing are left to understand."""
    answer = answer.strip().replace("**", "^") if re.search(r"\w\*\*\w", answer) else answer.replace("**", "")
    for sign, latex in _UNICODE.items():
        answer = answer.replace(sign, latex)
    for pattern, by in _REWRITES:
        answer = pattern.sub(by, answer)
    answer = re.sub(r"^\$+(.*?[^\\])\$+$", r"\1", answer.strip())
    return answer.strip().rstrip(".,;:").strip()
