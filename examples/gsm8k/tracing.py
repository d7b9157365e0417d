"""Which number of a worked problem comes from where: problem to Template, or Refused.

Sources are found by value. Where one value has several, this is asked: which choices are there if every number of the
question and every result is used at least once? Where that leaves one, it is taken. Where it leaves more, nothing is
guessed: all given numbers that matter for them are held as they are, unless the sources agree whatever these are.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from math import prod

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Tree, compute, is_chain, leaves, relabelled
from examples.gsm8k.holding import hold, ranked
from examples.gsm8k.numerals import NUMERAL, Form, Number, exact
from examples.gsm8k.quantities import Quantities, Quantity
from examples.gsm8k.reading import Reading, Span, read
from examples.gsm8k.template import Reason, Refused, Slot, Template

MANY = 2_000
"""More choices than that are not looked at."""
MOST_COUNTED = 20

Place = tuple[int, int]
"""An operand: which step, and which of its numbers."""


def trace(question: str, answer: str) -> Template:
    """The template of that problem, or Refused."""
    reading = read(question, answer)
    tracer = Tracer(reading)
    quantities = tracer.quantities
    hold(reading, quantities, tracer.alike)
    if not quantities.support(quantities.results[-1]):
        raise Refused(Reason.NOTHING_FREE)
    slots = sorted(tracer.slots, key=lambda slot: slot.start)
    order, given = quantities.order(), quantities.free()
    return Template(reading.text, slots, quantities.all, order, given, ranked(reading, quantities))


class Tracer:
    """Finds the quantities of one problem, and where each of them is written."""

    def __init__(self, reading: Reading) -> None:
        self.quantities = Quantities()
        self.slots: list[Slot] = []
        self.alike: list[list[int]] = []
        """Several sources of one numeral."""
        self._reading = reading
        self._groups = any("," in found.group() for found in NUMERAL.finditer(reading.text))
        self._likely, self._unlikely = words.implied(reading.question, reading.answer)
        self._words = frozenset(words.number_words(reading.question))
        self._names = words.counted_names(reading.question)
        self._derived: dict[tuple[int, str], int] = {}
        for value, asked in reading.asked.items():
            quantity = Quantity(
                value, free=asked.free, percent=asked.percent, at_most=asked.at_most, counts=asked.counts
            )
            self.quantities.given[value] = self.quantities.add(quantity)
            self._write(asked.spans, self.quantities.given[value])
        self.quantities.results = [self.quantities.add(Quantity(step.result)) for step in reading.steps]
        self._find_operands()
        for mention in reading.mentions:
            self._write([mention.span], self._mentioned(mention.value, mention.line))
        self._write([reading.final], self.quantities.results[-1])

    def _find_operands(self) -> None:
        places: dict[Number, list[Place]] = defaultdict(list)
        for index, step in enumerate(self._reading.steps):
            for operand, value in enumerate(step.operands):
                places[value].append((index, operand))
        chosen = {place: source for value in places for place, source in self._chosen(value, places[value])}
        for index, step in enumerate(self._reading.steps):
            sources = [chosen[index, operand] for operand in range(len(step.operands))]
            result = self.quantities.results[index]
            self.quantities.all[result].tree = relabelled(step.tree, sources)
            for source, spans in zip(sources, step.operand_spans, strict=True):
                self._write(spans, source)
            self._write(step.result_spans, result)

    def _chosen(self, value: Number, places: list[Place]) -> Iterator[tuple[Place, int]]:
        """A source for each operand of this value."""
        made = self._made(value)
        options = [
            self._sources(value, [result for step, result in made if step < place[0]], Reason.OPERAND)
            for place in places
        ]
        choices = self._choices(places, options, self._obliged(value)) if prod(map(len, options)) <= MANY else []
        for number, (place, option) in enumerate(zip(places, options, strict=True)):
            possible = list(dict.fromkeys(choice[number] for choice in choices)) or option
            if len(possible) > 1:
                self.alike.append(possible)
            for source in possible:
                for given in self.quantities.ancestors(source):
                    self.quantities.all[given].used = True
            yield place, possible[0]

    def _obliged(self, value: Number) -> set[int]:
        """What has this value and must be used: numbers of the question, and all results but the last."""
        last = len(self._reading.steps) - 1
        obliged = {result for step, result in self._made(value) if step < last}
        if value in self.quantities.given:
            obliged.add(self.quantities.given[value])
        if value in self._words:
            obliged.add(self.quantities.constant(value))
        return obliged

    def _choices(self, places: list[Place], options: list[list[int]], obliged: set[int]) -> list[tuple[int, ...]]:
        """Which term of a sum is which does not matter: one order stands for all."""
        steps = self._reading.steps
        same = [a == b and is_chain(steps[a].tree) for (a, _), (b, _) in pairwise(places)]
        return [
            choice
            for choice in product(*options)
            if obliged <= set(choice)
            and all(a <= b for (a, b), is_same in zip(pairwise(choice), same, strict=True) if is_same)
        ]

    def _mentioned(self, value: Number, line: range) -> int:
        """The source of a numeral that nothing is computed with."""
        made = [result for step, result in self._made(value) if step < line.stop]
        sources = self._sources(value, made, Reason.NUMERAL)
        trees = [self.quantities.all[self.quantities.results[step]].tree for step in line]
        of_line = {leaf for tree in trees if tree is not None for leaf in leaves(tree)}
        constants = set(self.quantities.constants.values())
        if any(source in of_line for source in sources):  # then it is hardly the constant of another line
            sources = [source for source in sources if source in of_line or source not in constants]
        if len(sources) > 1:
            self.alike.append(sources)
        return sources[0]

    def _made(self, value: Number) -> list[tuple[int, int]]:
        """The steps with that result, and the result."""
        results = zip(self._reading.steps, self.quantities.results, strict=True)
        return [(index, result) for index, (step, result) in enumerate(results) if step.result == value]

    def _sources(self, value: Number, results: list[int], reason: Reason) -> list[int]:
        """All that it may come from: these results, the question, what words imply."""
        given = self.quantities.given
        sources = [given[value]] if value in given else []
        if value in self._likely or value in self._names:
            sources.append(self.quantities.constant(value))
        sources += self._percents(value)
        sources += results
        if not sources and value in self._unlikely:
            sources.append(self.quantities.constant(value))
        if not sources:
            raise Refused(reason)
        return sources + self._counts(value)

    def _percents(self, value: Number) -> list[int]:
        """20%: 0.2; and of what is cheaper, 80%: 80, 0.8; dearer: 120, 1.2."""
        found = []
        for given in self.quantities.given.values():
            if not self.quantities.all[given].percent:
                continue
            hundred = self.quantities.constant(100)
            trees: list[Tree] = [
                ("/", given, hundred),
                ("-", hundred, given),
                ("+", hundred, given),
                ("/", ("-", hundred, given), hundred),
                ("/", ("+", hundred, given), hundred),
            ]
            values = [quantity.value for quantity in self.quantities.all]
            found += [self._derive(given, tree, value) for tree in trees if compute(tree, values) == value]
        return found

    def _counts(self, value: Number) -> list[int]:
        """One more or one fewer than some number of people or times."""
        found = []
        for given in self.quantities.given.values():
            about = self.quantities.all[given]
            if about.counts and value in (about.value - 1, about.value + 1) and value <= MOST_COUNTED:
                operator = "+" if value > about.value else "-"
                found.append(self._derive(given, (operator, given, self.quantities.constant(1)), value))
        return found

    def _derive(self, given: int, tree: Tree, value: Number) -> int:
        key = (given, str(tree))
        if key not in self._derived:
            self._derived[key] = self.quantities.add(Quantity(value, tree=tree))
        return self._derived[key]

    def _write(self, spans: list[Span], quantity: int) -> None:
        """It has slots there."""
        text, about = self._reading.text, self.quantities.all[quantity]
        for start, end in spans:
            numeral = text[start:end]
            in_mark = text.rfind("<<", 0, start) > text.rfind(">>", 0, start)
            form = Form.of(numeral, groups=self._groups and not in_mark, money=text[start - 1] == "$")
            if form.fits(exact(numeral)) and form.write(exact(numeral)) == numeral:
                about.places = min(about.places, form.places)
                self.slots.append(Slot(start, end, quantity, form))
            else:
                about.odd = True  # written unusually, such as 007: it stays
