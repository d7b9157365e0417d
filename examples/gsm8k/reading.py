"""What a worked problem says: the numbers of the question, and the steps of the solution in their order."""

import re
from dataclasses import dataclass, field, replace

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Tree, Unreadable, compute, parse
from examples.gsm8k.numerals import NUMERAL, Number, exact
from examples.gsm8k.template import SEPARATOR, Reason, Refused

MARK = re.compile(r"<<([^<>\n]*)>>")
FINAL = re.compile(r"\n#### *(\S+)\s*$")
_UNIT = r"%?(?:[ -]?[A-Za-z][A-Za-z'’/]*(?: [A-Za-z'’/]+){0,3}?)?\)*"
_OPERATOR = re.compile(rf"({_UNIT})\s*([-+*/x×X÷−–])\s*([($]*)")
_AFTER_MARK = re.compile(rf"[ $]*({NUMERAL.pattern})")
_EQUALS = re.compile(rf"({_UNIT})\s*=\s*\$?")
_OPERATORS = {"x": "*", "X": "*", "×": "*", "÷": "/", "−": "-", "–": "-"}
_ALGEBRA = re.compile(
    r"\d ?[b-fhjknp-wyzX] ?[-+*/=]|\d ?x ?(?=[-+=/*)]|$)|(?<![\w'’])[a-zA-Z] ?[=+]|[=+] ?[a-zX]\b(?!['’])|"
    r"\b[Ll]et \w\b",
    re.MULTILINE,
)
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
    said: bool = True
    """The text before it says the same: 48/2 = <<48/2=24>>, and not 20+4 = <<48/2=24>>, which is right by chance."""


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
        before, after = question[max(0, start - 16) : start], question[end : end + 48]
        is_year = value in _YEARS and "," not in found.group() and not before.endswith("$")
        if is_year or words.FIXED_BEFORE.search(before) or words.FIXED_AFTER.match(after):
            about.free = False
        about.percent |= bool(re.match(r" ?%| percent", after))
        about.counts |= bool(words.PEOPLE_OR_TIMES.match(after))
        about.free &= not words.is_conversion(question[max(0, start - 48) : start], after)
        for most in words.most(question, after):
            about.at_most = min(about.at_most or most, most)
    return asked


def read_line(reading: Reading, at: int, line: str) -> None:
    """Its steps in their order, then the numerals that are none of theirs."""
    first = len(reading.steps)
    plain = MARK.sub(lambda mark: "\x01" * len(mark.group()), line)
    numerals = list(NUMERAL.finditer(plain))
    taken: set[int] = set()
    for found in sorted([*MARK.finditer(line), *numerals], key=lambda found: found.start()):
        before = [numeral for numeral in numerals if numeral.end() <= found.start()]
        step = of_mark(found, line, before, taken) if found.re is MARK else of_equation(found, line, before)
        if step is not None:
            for spans in [*step.operand_spans, step.result_spans]:
                spans[:] = [span for span in spans if span[0] not in taken]  # = 15 may begin 15*2
                taken.update(start for start, _ in spans)
            reading.steps.append(shifted(step, at))
    for numeral in numerals:
        if numeral.start() not in taken and not _ORDINAL.match(plain, numeral.end()):
            span = at + numeral.start(), at + numeral.end()
            reading.mentions.append(Mention(exact(numeral.group()), span, range(first, len(reading.steps))))


def of_mark(mark: re.Match[str], line: str, before: list[re.Match[str]], taken: set[int]) -> Step:
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
    after = _AFTER_MARK.match(line, mark.end())
    if after and exact(after.group(1)) == result:
        result_spans.append(after.span(1))
    elif after and after.start(1) == mark.end():
        raise Refused(Reason.INEXACT)
    chain = chain_before(line, before, mark.start())
    written = None if chain is None else in_numbers(chain, result)
    if tree == 0 and written is not None:  # 8*3 = <<24=24>>24
        return Step(*written, result, [*operand_spans[0], *result_spans])
    nearest = before[-len(values) :]
    if [exact(found.group()) for found in nearest] == values and not taken & {found.start() for found in nearest}:
        for spans, found in zip(operand_spans, nearest, strict=True):
            spans.append(found.span())
    return Step(tree, values, operand_spans, result, result_spans, said=written is not None)


def of_equation(shown: re.Match[str], line: str, before: list[re.Match[str]]) -> Step | None:
    """5 boxes * 3 = 15, where a solution has it without a mark; None if that numeral is not the result of one."""
    if not before or "=" not in line[before[-1].end() : shown.start()]:
        return None
    chain = chain_before(line, before, shown.start())
    written = None if chain is None else in_numbers(chain, exact(shown.group()))
    return None if written is None else Step(*written, exact(shown.group()), [shown.span()])


Part = tuple[str, re.Match[str], str]
"""A numeral with the parentheses before it, and what comes after it: a percent sign, parentheses, an operator."""


def chain_before(line: str, numerals: list[re.Match[str]], end: int) -> list[Part] | None:
    """The numerals joined by operators that stand before an equals sign there."""
    parts: list[Part] = []
    next_start, opened = end, ""
    for numeral in reversed(numerals):
        gap = line[numeral.end() : next_start]
        found = (_OPERATOR if parts else _EQUALS).fullmatch("*(" if parts and gap == "(" else gap)
        if found is None:
            break
        unit = "".join(character for character in found[1] if character in "%)")
        if parts:
            opened = found[3].replace("$", "")
            parts[0] = (opened, *parts[0][1:])
            unit += _OPERATORS.get(found[2], found[2])
        parts.insert(0, ("", numeral, unit))
        next_start = numeral.start()
    if len(parts) < 2:
        return None
    before = re.search(r"[($]*$", line[: parts[0][1].start()])
    missing = sum(part[2].count(")") - part[0].count("(") for part in parts)
    if before is None or before.group().count("(") < missing:
        return None
    parts[0] = ("(" * missing, *parts[0][1:])
    return parts


def in_numbers(chain: list[Part], result: Number) -> tuple[Tree, list[Number], list[list[Span]]] | None:
    """Tree, operands and their places, if that is what the chain comes to, with 20% as 20 or as 20/100."""
    for as_part in (False, True):
        text, spans = "", list[list[Span]]()
        for opened, numeral, after in chain:
            spans.append([numeral.span()])
            part = as_part and "%" in after
            text += f"{opened}({numeral.group()}/100)" if part else opened + numeral.group()
            text += after.replace("%", "")
            if part:
                spans.append([])
        try:
            tree, values, _ = parse(text)
            if compute(tree, values) == result:
                return tree, values, spans
        except (Unreadable, ZeroDivisionError):
            return None
    return None


def shifted(step: Step, by: int) -> Step:
    """The same step of a line that starts there."""
    operands = [[(start + by, end + by) for start, end in spans] for spans in step.operand_spans]
    result = [(start + by, end + by) for start, end in step.result_spans]
    return replace(step, operand_spans=operands, result_spans=result)
