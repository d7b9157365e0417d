"""What a worked problem says: the numbers of the question, and the steps of the solution in their order."""

import re
from dataclasses import dataclass, field

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Tree, Unreadable, compute, parse
from examples.gsm8k.numerals import NUMERAL, Number, exact
from examples.gsm8k.template import SEPARATOR, Reason, Refused

MARK = re.compile(r"<<([^<>\n]*)>>")
FINAL = re.compile(r"\n#### *(\S+)\s*$")
EQUATION = re.compile(
    r"(?<![\d.,/*+=\-x])\(?\$?{n}\)?(?: ?[-+*/x×÷] ?\(?\$?{n}\)?)+ ?= ?\$?{n}(?![\d]|,\d|\.\d| ?[-+*/=x×÷] ?[\d$(])".replace(
        "{n}", rf"(?:{NUMERAL.pattern})"
    )
)
"""One that the solution has without a mark: 5 * 3 = 15."""
_ALGEBRA = re.compile(r"\d[b-lnp-z]\b(?! ?\d)|\b[a-zX] ?[=+]|[=+] ?[a-zX]\b(?!')|\b[Ll]et \w\b")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_YEARS = range(1900, 2100)

Span = tuple[int, int]


@dataclass
class Asked:
    """A number of the question, wherever it has it as a numeral."""

    value: Number
    free: bool
    spans: list[Span] = field(default_factory=list)
    percent: bool = False
    counts: bool = False
    """The problem may count one more or one fewer of it."""
    at_most: Number = 0
    """What there cannot be more of; 0 if that is not known."""


@dataclass(frozen=True)
class Step:
    """Something that the solution computes, in a mark or beside them."""

    tree: Tree
    operands: list[Number]
    operand_spans: list[list[Span]]
    """Where each operand is: in the mark, and in the text before it."""
    result: Number
    result_spans: list[Span]


@dataclass(frozen=True)
class Mention:
    """Another numeral of the solution."""

    value: Number
    span: Span
    line: range
    """The steps of its line."""


@dataclass
class Reading:
    text: str
    """Question and solution."""
    asked: dict[Number, Asked]
    steps: list[Step]
    mentions: list[Mention]
    final: Span

    @property
    def question(self) -> str:
        return self.text.partition(SEPARATOR)[0]

    @property
    def answer(self) -> str:
        return self.text.partition(SEPARATOR)[2]


def read(question: str, answer: str) -> Reading:
    """Or Refused."""
    final = FINAL.search(answer)
    if final is None or SEPARATOR in question + answer or not MARK.search(answer):
        raise Refused(Reason.NO_MARK)
    solution = answer[: final.start() + 1]
    if _ALGEBRA.search(MARK.sub("", solution)):
        raise Refused(Reason.ALGEBRA)
    at = len(question) + 1
    reading = Reading(
        f"{question}{SEPARATOR}{answer}", read_question(question), [], [], (at + final.start(1), at + final.end(1))
    )
    for line in solution.splitlines(keepends=True):
        read_line(reading, at, line)
        at += len(line)
    shown = final.group(1)
    if not reading.steps or not NUMERAL.fullmatch(shown):
        raise Refused(Reason.NO_MARK)
    if exact(shown) != reading.steps[-1].result:
        raise Refused(Reason.FINAL)
    return reading


def read_question(question: str) -> dict[Number, Asked]:
    asked: dict[Number, Asked] = {}
    for found in NUMERAL.finditer(question):
        start, end = found.span()
        value = exact(found.group())
        about = asked.setdefault(value, Asked(value, free=value > 1))
        about.spans.append((start, end))
        before, after = question[max(0, start - 16) : start], question[end : end + 32]
        is_year = value in _YEARS and "," not in found.group() and not before.endswith("$")
        if is_year or words.FIXED_BEFORE.search(before) or words.FIXED_AFTER.match(after):
            about.free = False
        about.percent |= bool(re.match(r" ?%| percent", after))
        about.counts |= bool(words.PEOPLE_OR_TIMES.match(after))
        for pattern, most in words.AT_MOST:
            if pattern.match(after):
                about.at_most = min(about.at_most or most, most)
    return asked


def read_line(reading: Reading, at: int, line: str) -> None:
    """Its steps in their order, then the numerals that are none of theirs."""
    first = len(reading.steps)
    plain = MARK.sub(lambda mark: "\x01" * len(mark.group()), line)
    found = [*MARK.finditer(line), *EQUATION.finditer(plain)]
    taken: set[int] = set()
    for step in sorted(found, key=lambda step: step.start()):
        made = of_mark(step, line, plain, taken) if step.re is MARK else of_equation(step)
        if made is not None:
            spans = [span for spans in [*made.operand_spans, made.result_spans] for span in spans]
            taken.update(start for start, _ in spans)
            reading.steps.append(shifted(made, at))
    for numeral in NUMERAL.finditer(plain):
        if numeral.start() not in taken and not _ORDINAL.match(plain, numeral.end()):
            span = at + numeral.start(), at + numeral.end()
            reading.mentions.append(Mention(exact(numeral.group()), span, range(first, len(reading.steps))))


def of_mark(mark: re.Match[str], line: str, plain: str, taken: set[int]) -> Step:
    """It and what belongs to it in the text: 48/2 = <<48/2=24>>24."""
    expression, _, shown = mark.group(1).rpartition("=")
    try:
        tree, values, inside = parse(expression)
        result = compute(tree, values)
    except (Unreadable, ZeroDivisionError):
        raise Refused(Reason.UNREADABLE) from None
    if not NUMERAL.fullmatch(shown) or exact(shown) != result or result < 0:
        raise Refused(Reason.INEXACT)
    start = mark.start(1)
    operand_spans = [[(start + first, start + last)] for first, last in inside]
    result_spans = [(mark.end(1) - len(shown), mark.end(1))]
    after = re.compile(rf"[ $]*({NUMERAL.pattern})").match(line, mark.end())
    if after and exact(after.group(1)) == result:
        result_spans.append(after.span(1))
    elif after and after.start(1) == mark.end():
        raise Refused(Reason.INEXACT)
    before = list(NUMERAL.finditer(plain, 0, mark.start()))[-len(values) :]
    if [exact(found.group()) for found in before] == values and not taken & {found.start() for found in before}:
        for spans, found in zip(operand_spans, before, strict=True):
            spans.append(found.span())
    return Step(tree, values, operand_spans, result, result_spans)


def of_equation(found: re.Match[str]) -> Step | None:
    """None if it is not right."""
    expression, _, shown = re.sub(r"[x×]", "*", found.group().replace("$", " ").replace("÷", "/")).rpartition("=")
    try:
        tree, values, spans = parse(expression)
        if compute(tree, values) != exact(shown.strip()):
            return None
    except (Unreadable, ZeroDivisionError):
        return None
    start = found.start()
    operand_spans = [[(start + first, start + last)] for first, last in spans]
    return Step(tree, values, operand_spans, exact(shown.strip()), [(found.end() - len(shown.strip()), found.end())])


def shifted(step: Step, by: int) -> Step:
    """The same step of a line that starts there."""
    operand_spans = [[(start + by, end + by) for start, end in spans] for spans in step.operand_spans]
    return Step(
        step.tree, step.operands, operand_spans, step.result, [(start + by, end + by) for start, end in step.result_spans]
    )
