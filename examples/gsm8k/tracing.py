"""Which number of a worked problem comes from where: problem to Template, or Refused.

Every numeral of question and solution becomes a slot for a quantity. A quantity is *given* (a numeral of the question),
*constant* (7 days of a week), or *computed* from others, as the marks `<<48/2=24>>` of the solution say. Sources are
found by value. Where one value has several sources, nothing is guessed: either they have the same value whatever the
given numbers are, or a given number is made to follow (a 12 of the question, where 5 + 7 are 12 as well), or all given
numbers that matter for it are held as they are. What is traced to nothing is refused, by a reason.
"""

import random
import re

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Unreadable, compute, leaves, longest_sum, parse, relabelled
from examples.gsm8k.numerals import NUMERAL, Form, Number, exact
from examples.gsm8k.template import SEPARATOR, Quantity, Reason, Refused, Slot, Template

MARK = re.compile(r"<<([^<>\n]*)>>")
FINAL = re.compile(r"\n#### *(\S+)\s*$")
EQUATION = re.compile(
    r"(?<![\d.,/*+=\-x])\(?\$?{n}\)?(?: ?[-+*/x×÷] ?\(?\$?{n}\)?)+ ?= ?\$?{n}(?![\d]|,\d|\.\d| ?[-+*/=x×÷] ?[\d$(])".replace(
        "{n}", rf"(?:{NUMERAL.pattern})"
    )
)
"""One that the solution has without a mark: 5 * 3 = 15."""


_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_ALGEBRA = re.compile(r"\d[b-lnp-z]\b(?! ?\d)|\b[a-zX] ?[=+]|[=+] ?[a-zX]\b(?!')|\b[Ll]et \w\b")
_YEARS = range(1900, 2100)


def trace(question: str, answer: str) -> Template:
    """The template of that problem, or Refused."""
    return Tracer(question, answer).template()


class Tracer:
    """Finds the quantities of one problem."""

    def __init__(self, question: str, answer: str) -> None:
        self._text = f"{question}{SEPARATOR}{answer}"
        self._answer_start = len(question) + 1
        final = FINAL.search(answer)
        if final is None or SEPARATOR in question + answer or not MARK.search(answer):
            raise Refused(Reason.NO_MARK)
        self._final_start = self._answer_start + final.start(1)
        self._quantities: list[Quantity] = []
        self._slots: list[Slot] = []
        self._by_value: dict[Number, list[int]] = {}
        """Given numbers and results."""
        self._constants: dict[Number, int] = {}
        self._derived: dict[tuple[int, str], int] = {}
        self._given: list[int] = []
        self._results: list[int] = []
        self._alike: list[list[int]] = []
        """Several sources of one numeral."""
        self._implied = words.implied(self._text)
        self._people = words.counted_names(question)
        self._groups = any("," in found.group() for found in NUMERAL.finditer(self._text))

    def template(self) -> Template:
        self._read_question()
        if _ALGEBRA.search(MARK.sub("", self._text[self._answer_start : self._final_start])):
            raise Refused(Reason.ALGEBRA)
        start = self._answer_start
        for line in self._text[start : self._final_start].rpartition("\n")[0].splitlines(keepends=True):
            self._read_line(start, line)
            start += len(line)
        self._read_final()
        self._follow()
        self._hold_what_is_unused()
        self._hold_what_words_say()
        self._settle()
        return self._made()

    # What is there

    def _new(self, value: Number, **facts: object) -> int:
        self._quantities.append(Quantity(value, **facts))  # type: ignore[arg-type]
        return len(self._quantities) - 1

    def _constant(self, value: Number) -> int:
        if value not in self._constants:
            self._constants[value] = self._new(value)
        return self._constants[value]

    def _slot(self, start: int, end: int, quantity: int, in_mark: bool = False) -> None:
        numeral = self._text[start:end]
        money = self._text[start - 1] == "$"
        form = Form.of(numeral, groups=self._groups and not in_mark, money=money)
        if not form.fits(exact(numeral)) or form.write(exact(numeral)) != numeral:
            self._hold(quantity)  # written unusually, such as 007: it stays
            return
        about = self._quantities[quantity]
        about.places = min(about.places, form.places)
        self._slots.append(Slot(start, end, quantity, form))

    def _read_question(self) -> None:
        end_of_question = self._answer_start - 1
        for found in NUMERAL.finditer(self._text, 0, end_of_question):
            start, end = found.span()
            value = exact(found.group())
            if value in self._by_value:
                quantity = self._by_value[value][0]
            else:
                quantity = self._new(value, free=value > 1)
                self._by_value[value] = [quantity]
                self._given.append(quantity)
            about = self._quantities[quantity]
            before, after = self._text[max(0, start - 12) : start], self._text[end : end + 24].partition(SEPARATOR)[0]
            if words.FIXED_BEFORE.search(before) or words.FIXED_AFTER.match(after):
                about.free = False
            if value in _YEARS and "," not in found.group() and not before.endswith("$"):
                about.free = False
            about.percent |= bool(re.match(r" ?%| percent", after))
            about.counts |= bool(words.PEOPLE_OR_TIMES.match(after))
            for pattern, most in words.AT_MOST:
                if pattern.match(after):
                    about.at_most = min(about.at_most or most, most)
            self._slot(start, end, quantity)

    def _read_line(self, start: int, line: str) -> None:
        """Marks and equations in their order, then the other numerals, which may be of any of them."""
        taken: set[int] = set()
        marks = list(MARK.finditer(line))
        plain = MARK.sub(lambda mark: "\x01" * len(mark.group()), line)
        steps = sorted([*marks, *EQUATION.finditer(plain)], key=lambda step: step.start())
        for step in steps:
            if step.re is MARK:
                self._read_mark(start, line, step, taken)
            else:
                self._read_equation(start, step, taken)
        for found in NUMERAL.finditer(plain):
            if found.start() in taken or _ORDINAL.match(plain, found.end()):
                continue
            self._slot(
                start + found.start(), start + found.end(), self._source(exact(found.group()), Reason.NUMERAL)
            )

    def _read_mark(self, start: int, line: str, mark: re.Match[str], taken: set[int]) -> None:
        expression, _, shown = mark.group(1).rpartition("=")
        try:
            tree, values, spans = parse(expression)
            result = compute(tree, values)
        except (Unreadable, ZeroDivisionError):
            raise Refused(Reason.UNREADABLE) from None
        if not re.fullmatch(NUMERAL, shown) or exact(shown) != result or result < 0:
            raise Refused(Reason.INEXACT)
        operands = self._operands(values)
        inside = start + mark.start(1)
        for (first, last), operand in zip(spans, operands, strict=True):
            self._slot(inside + first, inside + last, operand, in_mark=True)
        quantity = self._result(result, tree, operands)
        self._slot(inside + len(expression) + 1, start + mark.end(1), quantity, in_mark=True)
        after = re.compile(rf"[ $]*({NUMERAL.pattern})").match(line, mark.end())
        if after and exact(after.group(1)) == result:
            taken.add(after.start(1))
            self._slot(start + after.start(1), start + after.end(1), quantity)
        elif after and after.start(1) == mark.end():
            raise Refused(Reason.INEXACT)
        before = [found for found in NUMERAL.finditer(MARK.sub(lambda m: "\x01" * len(m.group()), line), 0, mark.start())]
        nearest = before[-len(values) :]
        if [exact(found.group()) for found in nearest] == values and not taken & {f.start() for f in nearest}:
            for found, operand in zip(nearest, operands, strict=True):
                taken.add(found.start())
                self._slot(start + found.start(), start + found.end(), operand)

    def _read_equation(self, start: int, found: re.Match[str], taken: set[int]) -> None:
        """A result like that of a mark, if it is right and its operands are known."""
        expression, _, shown = re.sub(r"[x×]", "*", found.group().replace("$", " ").replace("÷", "/")).rpartition("=")
        numerals = list(NUMERAL.finditer(found.group()))
        try:
            tree, values, _ = parse(expression)
            if compute(tree, values) != exact(shown.strip()):
                return
            operands = self._operands(values)
        except (Unreadable, ZeroDivisionError, Refused):
            return
        quantity = self._result(exact(shown.strip()), tree, operands)
        for numeral, source in zip(numerals, [*operands, quantity], strict=True):
            place = found.start() + numeral.start()
            taken.add(place)
            self._slot(start + place, start + found.start() + numeral.end(), source)

    def _operands(self, values: list[Number]) -> list[int]:
        operands = [self._source(value, Reason.OPERAND) for value in values]
        for operand in operands:
            for given in self._support(operand):
                self._quantities[given].used = True
        return operands

    def _result(self, value: Number, tree: object, operands: list[int]) -> int:
        for terms in {longest_sum(tree)} - {1}:  # type: ignore[arg-type]
            for given in self._given:  # the 3 in (80+90+70)/3 may be how many they are
                if self._quantities[given].value == terms:
                    self._hold(given)
        quantity = self._new(value, tree=relabelled(tree, operands))  # type: ignore[arg-type]
        self._by_value.setdefault(value, []).append(quantity)
        self._results.append(quantity)
        return quantity

    def _read_final(self) -> None:
        start = self._final_start
        shown = self._text[start:].rstrip()
        if not self._results or not re.fullmatch(NUMERAL, shown):
            raise Refused(Reason.NO_MARK)
        if exact(shown) != self._quantities[self._results[-1]].value:
            raise Refused(Reason.FINAL)
        self._slot(start, start + len(shown), self._results[-1])

    # Where a number comes from

    def _source(self, value: Number, reason: Reason) -> int:
        """The first of its sources. That it is as good as the others is seen to in the end."""
        sources = list(self._by_value.get(value, []))
        if value in self._implied or (value > 2 and value == self._people):
            sources.append(self._constant(value))
        sources += self._percents(value)
        if not sources:
            raise Refused(reason)
        sources += self._counts(value)
        if len(sources) > 1:
            self._alike.append(sources)
        return sources[0]

    def _percents(self, value: Number) -> list[int]:
        """20%: 0.2; and of what is cheaper, 80%: 80, 0.8; dearer: 120, 1.2."""
        found = []
        for given in list(self._given):
            about = self._quantities[given]
            if not about.percent:
                continue
            hundred = self._constant(100)
            trees: dict[str, object] = {
                "part": ("/", given, hundred),
                "rest": ("-", hundred, given),
                "more": ("+", hundred, given),
                "rest's part": ("/", ("-", hundred, given), hundred),
                "more's part": ("/", ("+", hundred, given), hundred),
            }
            for name, tree in trees.items():
                if compute(tree, [quantity.value for quantity in self._quantities]) == value:  # type: ignore[arg-type]
                    found.append(self._derive(given, name, tree, value))
        return found

    def _counts(self, value: Number) -> list[int]:
        """One more or one fewer than some number of people or times."""
        found = []
        for given in list(self._given):
            about = self._quantities[given]
            if about.counts and value in (about.value - 1, about.value + 1) and value <= 20:
                operator = "+" if value > about.value else "-"
                found.append(self._derive(given, operator, (operator, given, self._constant(1)), value))
        return found

    def _derive(self, given: int, name: str, tree: object, value: Number) -> int:
        if (given, name) not in self._derived:
            self._derived[given, name] = self._new(value, tree=tree)
        return self._derived[given, name]

    # What may change

    def _support(self, quantity: int) -> frozenset[int]:
        """The given numbers that are free, on which it depends."""
        about = self._quantities[quantity]
        if about.tree is None:
            return frozenset([quantity]) if about.free else frozenset()
        return frozenset().union(*map(self._support, leaves(about.tree)))

    def _depends(self, quantity: int, on: int) -> bool:
        tree = self._quantities[quantity].tree
        return quantity == on or (tree is not None and any(self._depends(leaf, on) for leaf in leaves(tree)))

    def _hold(self, quantity: int) -> None:
        """It keeps its value."""
        for given in self._support(quantity):
            self._quantities[given].free = False

    def _follow(self) -> None:
        """A given number that is a result as well is computed like that result, used or not."""
        for given in self._given:
            about = self._quantities[given]
            for result in self._results:
                other = self._quantities[result]
                if about.tree is None and other.value == about.value and not self._depends(result, given):
                    if about.free and self._support(result):
                        about.tree, about.free = result, False
                    else:
                        self._hold(result)

    def _hold_what_is_unused(self) -> None:
        """A number that nothing is computed with may yet say the same as others: 7 of 12 where 5 are the rest."""
        unused = [about.value for given in self._given if not (about := self._quantities[given]).used]
        unused += [value for value in words.number_words(self._text[: self._answer_start]) if value > 2]
        for given in self._given:
            if not self._quantities[given].used:
                self._hold(given)
        known = [*self._given, *self._results]
        for value in set(unused):
            for i, one in enumerate(known):
                for other in known[:i]:
                    a, b = self._quantities[one].value, self._quantities[other].value
                    if value in (a + b, abs(a - b), a * b) or value * b == a or value * a == b:
                        self._hold(one)
                        self._hold(other)

    def _hold_what_words_say(self) -> None:
        """A number in words is not rewritten, so nothing that it may stand for changes."""
        in_words = {*words.number_words(self._text)}
        in_words |= {int(found) for found in re.findall(r"(\d+)(?:st|nd|rd|th)\b", self._text)}
        for quantity in [*self._given, *self._results]:
            if self._quantities[quantity].value in in_words:
                self._hold(quantity)
        percents = [given for given in self._given if self._quantities[given].percent]
        if sum(self._quantities[given].value for given in percents) == 100:
            for given in percents:
                self._hold(given)

    def _settle(self) -> None:
        """Where one numeral has several sources that may differ, hold all that matters to them."""
        for sources in self._alike:
            if len({values for values in self._tried(sources)}) > 1:
                for source in sources:
                    self._hold(source)

    def _tried(self, sources: list[int]) -> list[tuple[Number, ...]]:
        """What each of them is at three places chosen at random."""
        rng = random.Random(0)
        template = self._made(check=False)
        places = []
        for _ in range(3):
            given = {index: rng.randrange(10**6, 10**7) for index in template.given}
            try:
                places.append(template.values(given))
            except ZeroDivisionError:
                continue
        return [tuple(values[source] for values in places) for source in sources]

    def _made(self, check: bool = True) -> Template:
        order: list[int] = []

        def visit(index: int) -> None:
            tree = self._quantities[index].tree
            if tree is not None and index not in order:
                for leaf in leaves(tree):
                    visit(leaf)
                order.append(index)

        for index in range(len(self._quantities)):
            visit(index)
        given = [index for index in self._given if self._quantities[index].free]
        if check and not self._support(self._results[-1]):
            raise Refused(Reason.NOTHING_FREE)
        slots = sorted(self._slots, key=lambda slot: slot.start)
        return Template(self._text, slots, self._quantities, order, given, self._ranked())

    def _ranked(self) -> frozenset[int]:
        """Numbers of the question keep their order, and so do results where something is chosen by size."""
        question = self._text[: self._answer_start]
        for value in words.number_words(question):
            self._constant(value)
        ranked = [*self._given, *(index for value, index in self._constants.items() if value in words.number_words(question))]
        if words.CHOOSING.search(question):
            ranked += self._results
        by_value = {self._quantities[index].value: index for index in ranked}
        return frozenset(by_value.values())
