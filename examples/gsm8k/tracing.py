"""Which number of a worked problem comes from where: problem to Template, or Refused.

Sources are found by value. Where one value has several, this is asked: which choices are there if every number of the
question and every result is used at least once? Where that leaves one, it is taken. Where it leaves more, nothing is
guessed: all given numbers that matter for them are held as they are, unless the sources agree whatever these are.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Tree, compute, is_chain, leaves, longest_sum, relabelled
from examples.gsm8k.numerals import NUMERAL, Form, Number, exact
from examples.gsm8k.reading import Reading, Span, read
from examples.gsm8k.template import SEPARATOR, Quantity, Reason, Refused, Slot, Template

MANY = 2_000
"""More choices than that are not looked at."""


def trace(question: str, answer: str) -> Template:
    """The template of that problem, or Refused."""
    tracer = Tracer(read(question, answer))
    tracer.find_sources()
    tracer.hold()
    return tracer.template()


class Tracer:
    """The quantities of one problem, and which of them may change."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._quantities: list[Quantity] = []
        self._slots: list[Slot] = []
        self._groups = any("," in found.group() for found in NUMERAL.finditer(reading.text))
        self._likely, self._unlikely = words.implied(reading.question, reading.answer)
        self._words = frozenset(words.number_words(reading.question))
        self._names = words.counted_names(reading.question)
        self._constants: dict[Number, int] = {}
        self._derived: dict[tuple[int, str], int] = {}
        self._alike: list[list[int]] = []
        """Several sources of one numeral."""
        self._given: dict[Number, int] = {}
        for value, asked in reading.asked.items():
            facts = {"percent": asked.percent, "at_most": asked.at_most, "counts": asked.counts}
            self._given[value] = self._new(value, free=asked.free, **facts)
        self._results = [self._new(step.result) for step in reading.steps]
        for value, asked in reading.asked.items():
            self._write(asked.spans, self._given[value])

    def find_sources(self) -> None:
        steps = self._reading.steps
        places: dict[Number, list[tuple[int, int]]] = defaultdict(list)
        for index, step in enumerate(steps):
            for operand, value in enumerate(step.operands):
                places[value].append((index, operand))
        chosen = {place: source for value in places for place, source in self._operands(value, places[value])}
        for index, step in enumerate(steps):
            sources = [chosen[index, operand] for operand in range(len(step.operands))]
            self._quantities[self._results[index]].tree = relabelled(step.tree, sources)
            for source, spans in zip(sources, step.operand_spans, strict=True):
                self._write(spans, source)
            self._write(step.result_spans, self._results[index])
        for mention in self._reading.mentions:
            self._write([mention.span], self._mentioned(mention.value, mention.line))
        self._write([self._reading.final], self._results[-1])

    def _operands(self, value: Number, places: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
        """The sources of this value where it is computed with."""
        steps, obliged = self._reading.steps, set()
        made = [(index, self._results[index]) for index, step in enumerate(steps) if step.result == value]
        options = [
            self._sources(value, [result for at, result in made if at < index], Reason.OPERAND) for index, _ in places
        ]
        if value in self._given:
            obliged.add(self._given[value])
        if value in self._words:
            obliged.add(self._constant(value))
        obliged.update(result for at, result in made if at < len(steps) - 1)
        count = 1
        for option in options:
            count *= len(option)
        choices = [
            choice
            for choice in (product(*options) if count <= MANY else ())
            if obliged <= set(choice) and self._is_first_of_its_like(places, choice)
        ]
        for number, (place, option) in enumerate(zip(places, options, strict=True)):
            possible = list(dict.fromkeys(choice[number] for choice in choices)) or option
            if len(possible) > 1:
                self._alike.append(possible)
            for source in possible:
                for given in self._ancestors(source):
                    self._quantities[given].used = True
            yield place, possible[0]

    def _is_first_of_its_like(self, places: list[tuple[int, int]], choice: tuple[int, ...]) -> bool:
        """Which term of a sum is which does not matter: of all orders take one."""
        return all(
            a <= b
            for (step, _), (next_step, _), a, b in zip(places, places[1:], choice, choice[1:], strict=False)
            if step == next_step and is_chain(self._reading.steps[step].tree)
        )

    def _mentioned(self, value: Number, line: range) -> int:
        steps = self._reading.steps
        made = [self._results[index] for index in range(line.stop) if steps[index].result == value]
        sources = self._sources(value, made, Reason.NUMERAL)
        of_line = {source for index in line for source in leaves_of(self._quantities[self._results[index]])}
        constants = set(self._constants.values())
        if any(source in of_line for source in sources):  # then it is hardly the constant of another line
            sources = [source for source in sources if source in of_line or source not in constants]
        if len(sources) > 1:
            self._alike.append(sources)
        return sources[0]

    def _sources(self, value: Number, results: list[int], reason: Reason) -> list[int]:
        """All that it may come from: these results, the question, what words imply."""
        sources = [self._given[value]] if value in self._given else []
        if value in self._likely or value in self._names:
            sources.append(self._constant(value))
        sources += self._percents(value)
        sources += results
        if not sources and value in self._unlikely:
            sources.append(self._constant(value))
        if not sources:
            raise Refused(reason)
        return sources + self._counts(value)

    def _percents(self, value: Number) -> list[int]:
        """20%: 0.2; and of what is cheaper, 80%: 80, 0.8; dearer: 120, 1.2."""
        found = []
        for given in self._given.values():
            if not self._quantities[given].percent:
                continue
            hundred = self._constant(100)
            trees: dict[str, Tree] = {
                "part": ("/", given, hundred),
                "rest": ("-", hundred, given),
                "more": ("+", hundred, given),
                "rest's part": ("/", ("-", hundred, given), hundred),
                "more's part": ("/", ("+", hundred, given), hundred),
            }
            for name, tree in trees.items():
                if compute(tree, [quantity.value for quantity in self._quantities]) == value:
                    found.append(self._derive(given, name, tree, value))
        return found

    def _counts(self, value: Number) -> list[int]:
        """One more or one fewer than some number of people or times."""
        found = []
        for given in self._given.values():
            about = self._quantities[given]
            if about.counts and value in (about.value - 1, about.value + 1) and value <= 20:
                operator = "+" if value > about.value else "-"
                found.append(self._derive(given, operator, (operator, given, self._constant(1)), value))
        return found

    # Quantities

    def _new(self, value: Number, **facts: object) -> int:
        self._quantities.append(Quantity(value, **facts))  # type: ignore[arg-type]
        return len(self._quantities) - 1

    def _constant(self, value: Number) -> int:
        if value not in self._constants:
            self._constants[value] = self._new(value)
        return self._constants[value]

    def _derive(self, given: int, name: str, tree: Tree, value: Number) -> int:
        if (given, name) not in self._derived:
            self._derived[given, name] = self._new(value, tree=tree)
        return self._derived[given, name]

    def _write(self, spans: list[Span], quantity: int) -> None:
        """It has slots there."""
        text, about = self._reading.text, self._quantities[quantity]
        for start, end in spans:
            numeral = text[start:end]
            in_mark = text[start - 1] in "<=" or text.rfind("<<", 0, start) > text.rfind(">>", 0, start)
            form = Form.of(numeral, groups=self._groups and not in_mark, money=text[start - 1] == "$")
            if form.fits(exact(numeral)) and form.write(exact(numeral)) == numeral:
                about.places = min(about.places, form.places)
                self._slots.append(Slot(start, end, quantity, form))
            else:
                about.odd = True  # written unusually, such as 007: it stays

    # What may change

    def _ancestors(self, quantity: int) -> frozenset[int]:
        """The given numbers on which it depends, by what is known so far."""
        tree = self._quantities[quantity].tree
        if tree is None:
            return frozenset([quantity])
        return frozenset().union(*map(self._ancestors, leaves(tree)))

    def _support(self, quantity: int) -> frozenset[int]:
        return frozenset(given for given in self._ancestors(quantity) if self._quantities[given].free)

    def _hold(self, *quantities: int) -> None:
        """They keep their values."""
        for quantity in quantities:
            for given in self._support(quantity):
                self._quantities[given].free = False

    def hold(self) -> None:
        self._hold(*(index for index, quantity in enumerate(self._quantities) if quantity.odd))
        self._follow()
        self._hold_counts_of_terms()
        self._hold_what_is_unused()
        self._hold_what_words_say()
        for sources in self._alike:
            if len(set(self._tried(sources))) > 1:
                self._hold(*sources)

    def _follow(self) -> None:
        """A given number that is a result as well is computed like that result."""
        for value, given in self._given.items():
            about = self._quantities[given]
            for result in self._results:
                if self._quantities[result].value != value or given in self._ancestors(result):
                    continue
                if about.free and self._support(result):
                    about.tree, about.free = result, False
                elif about.tree is None and not about.used:
                    self._hold(result)

    def _hold_counts_of_terms(self) -> None:
        """The 3 in (80+90+70)/3 may be how many they are."""
        steps = self._reading.steps
        terms = {longest_sum(step.tree) for step in steps}
        for value, given in self._given.items():
            if value in terms and any(value in step.operands and holds_division(step.tree) for step in steps):
                self._hold(given)

    def _hold_what_is_unused(self) -> None:
        """A number that nothing is computed with may yet say the same as others: 7 of 12 where 5 are the rest."""
        unused = [value for value, given in self._given.items() if not self._quantities[given].used]
        operands = {value for step in self._reading.steps for value in step.operands}
        unused += [value for value in self._words - operands if value > 2]
        for value in unused:
            if value in self._given:
                self._hold(self._given[value])
        if unused and words.RATIO.search(self._reading.question):
            raise Refused(Reason.RATIO)
        known = [*self._given.values(), *self._results]
        for value in unused:
            for i, one in enumerate(known):
                if self._quantities[one].value == value and self._given.get(value) != one:
                    self._hold(one)
                for other in known[:i]:
                    a, b = self._quantities[one].value, self._quantities[other].value
                    if value in (a + b, abs(a - b)):
                        self._hold(one, other)

    def _hold_what_words_say(self) -> None:
        """A number in words is not rewritten, so nothing that it may stand for changes."""
        said = set(words.number_words(self._reading.answer)) - self._words
        said |= words.ordinals(self._reading.text)
        for quantity in [*self._given.values(), *self._results]:
            if self._quantities[quantity].value in said:
                self._hold(quantity)
        percents = [given for given in self._given.values() if self._quantities[given].percent]
        if sum(self._quantities[given].value for given in percents) == 100:
            self._hold(*percents)

    def _tried(self, sources: list[int]) -> list[tuple[Number, ...]]:
        """What each of them is at three places chosen at random."""
        rng = random.Random(0)
        template = self._template()
        places = []
        for _ in range(3):
            given: dict[int, Number] = {index: rng.randrange(10**6, 10**7) for index in template.given}
            try:
                places.append(template.values(given))
            except ZeroDivisionError:
                continue
        return [tuple(values[source] for values in places) for source in sources]

    # The template

    def template(self) -> Template:
        if not self._support(self._results[-1]):
            raise Refused(Reason.NOTHING_FREE)
        return self._template()

    def _template(self) -> Template:
        order: list[int] = []

        def visit(index: int) -> None:
            tree = self._quantities[index].tree
            if tree is not None and index not in order:
                for leaf in leaves(tree):
                    visit(leaf)
                order.append(index)

        for index in range(len(self._quantities)):
            visit(index)
        given = [index for index in self._given.values() if self._quantities[index].free]
        slots = sorted(self._slots, key=lambda slot: slot.start)
        return Template(self._reading.text, slots, self._quantities, order, given, self._ranked())

    def _ranked(self) -> list[list[int]]:
        """Numbers of the question keep their order, and so do results where something is chosen by size."""
        ranked = [[*map(self._constant, self._words), *self._given.values()]]
        if words.CONDITION.search(self._reading.question):
            ranked[0] += self._results
        elif words.CHOOSING.search(self._reading.question):
            ranked.append(self._results)
        by_value = [{self._quantities[index].value: index for index in of_kind} for of_kind in ranked]
        return [[of_kind[value] for value in sorted(of_kind)] for of_kind in by_value]


def leaves_of(quantity: Quantity) -> frozenset[int]:
    return leaves(quantity.tree) if quantity.tree is not None else frozenset()


def holds_division(tree: Tree) -> bool:
    return not isinstance(tree, int) and (tree[0] == "/" or holds_division(tree[1]) or holds_division(tree[2]))
