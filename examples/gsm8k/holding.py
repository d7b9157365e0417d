"""Which numbers of a problem keep their values, because a change might make it wrong."""

import random
from itertools import combinations, pairwise

from examples.gsm8k import words
from examples.gsm8k.arithmetic import Tree, compute, longest_sum
from examples.gsm8k.numerals import Number
from examples.gsm8k.quantities import Quantities
from examples.gsm8k.reading import Reading
from examples.gsm8k.template import Reason, Refused

LARGE = 10
"""A number as large as that is the sum of three others hardly by chance."""


def hold(reading: Reading, quantities: Quantities, alike: list[list[int]]) -> None:
    """`alike`: sources of one numeral, of which one is right."""
    quantities.hold(index for index, quantity in enumerate(quantities.all) if quantity.odd)
    follow_results(quantities)
    follow_sums(reading, quantities)
    hold_counts_of_terms(reading, quantities)
    hold_what_is_unused(reading, quantities)
    hold_what_words_say(reading, quantities)
    for sources in alike:
        if len(set(tried(quantities, sources))) > 1:
            quantities.hold(sources)


def follow_results(quantities: Quantities) -> None:
    """A given number that is a result as well is computed like that result."""
    for value, given in quantities.given.items():
        about = quantities.all[given]
        for result in quantities.results:
            if quantities.value(result) != value or given in quantities.ancestors(result):
                continue
            if about.free and quantities.support(result):
                about.tree, about.free = result, False
            elif about.tree is None and not about.used:
                quantities.hold([result])


def follow_sums(reading: Reading, quantities: Quantities) -> None:
    """A given number that is the sum of others may be all of them: 5 men, 4 women, and the 9 people that they are."""
    times = {given: len(reading.asked[value].spans) for value, given in quantities.given.items()}
    for value, given in quantities.given.items():
        parts = [part for part, count in times.items() if quantities.value(part) < value for _ in range(min(count, 3))]
        for terms in [*combinations(parts, 2), *(combinations(parts, 3) if value >= LARGE else ())]:
            about = quantities.all[given]
            if sum(map(quantities.value, terms)) != value or any(given in quantities.ancestors(term) for term in terms):
                continue
            if about.free and any(map(quantities.support, terms)):
                tree: Tree = terms[0]
                for term in terms[1:]:
                    tree = ("+", tree, term)
                about.tree, about.free = tree, False
            elif about.tree is None:
                quantities.hold(terms)


def hold_counts_of_terms(reading: Reading, quantities: Quantities) -> None:
    """The 3 in (80+90+70)/3 may be how many they are."""
    terms = {longest_sum(step.tree) for step in reading.steps}
    for value, given in quantities.given.items():
        if value in terms and any(value in step.operands and has_division(step.tree) for step in reading.steps):
            quantities.hold([given])


def hold_what_is_unused(reading: Reading, quantities: Quantities) -> None:
    """A number that nothing is computed with may yet say the same as others: 7 of 12 where 5 are the rest."""
    left = [(value, quantities.all[given]) for value, given in quantities.given.items()]
    unused = {value for value, about in left if not about.used and about.tree is None}
    quantities.hold(quantities.given[value] for value in unused)
    if unused and words.RATIO.search(reading.question):
        raise Refused(Reason.RATIO)
    said = set(words.number_words(reading.question))
    unused |= said - {value for step in reading.steps for value in step.operands} - {2}
    known = [*quantities.given.values(), *quantities.results]
    for i, one in enumerate(known):
        a = quantities.value(one)
        if a in unused and quantities.given.get(a) != one:
            quantities.hold([one])
        for other in known[:i]:
            b = quantities.value(other)
            if a + b in unused or abs(a - b) in unused:
                quantities.hold([one, other])
    for one, other in combinations(quantities.given.values(), 2):
        a, b = quantities.value(one), quantities.value(other)
        if a + b in said or any(value * a == b or value * b == a or value == a * b for value in unused):
            quantities.hold([one, other])


def hold_what_words_say(reading: Reading, quantities: Quantities) -> None:
    """A number in words is not rewritten, so nothing that it may stand for changes. All of 100% remain all."""
    said = set(words.number_words(reading.answer)) - set(words.number_words(reading.question))
    said |= words.ordinals(reading.text)
    known = [*quantities.given.values(), *quantities.results]
    quantities.hold(index for index in known if quantities.value(index) in said)
    percents = [given for given in quantities.given.values() if quantities.all[given].percent]
    if sum(map(quantities.value, percents)) == 100:
        quantities.hold(percents)


def tried(quantities: Quantities, sources: list[int]) -> list[tuple[Number, ...]]:
    """What each of them is for three choices of the given numbers, made at random."""
    rng = random.Random(0)
    free = quantities.free()
    order = [(index, tree) for index in quantities.order() if (tree := quantities.all[index].tree) is not None]
    places: list[list[Number]] = []
    for _ in range(3):
        values = [quantity.value for quantity in quantities.all]
        for index in free:
            values[index] = rng.randrange(10**6, 10**7)
        try:
            for index, tree in order:
                values[index] = compute(tree, values)
        except ZeroDivisionError:
            continue
        places.append(values)
    return [tuple(values[source] for values in places) for source in sources]


def ranked(reading: Reading, quantities: Quantities) -> list[tuple[int, int]]:
    """Pairs of which the first stays the smaller one.

    Numbers of the question keep their order. A result stays below what it was below: 45 people who drink from 50 cans.
    Where something is chosen by size, or goes another way beyond some number, results keep their order too.
    """
    in_words = [quantities.constant(value) for value in words.number_words(reading.question)]
    asked = in_order(quantities, [*in_words, *quantities.given.values()])
    if words.CONDITION.search(reading.question):
        return list(pairwise(in_order(quantities, [*asked, *quantities.results])))
    above = [
        (result, next((index for index in asked if quantities.value(index) > quantities.value(result)), None))
        for result in quantities.results
    ]
    pairs = [*pairwise(asked), *((result, index) for result, index in above if index is not None)]
    if words.CHOOSING.search(reading.question):
        pairs += pairwise(in_order(quantities, quantities.results))
    return pairs


def in_order(quantities: Quantities, indices: list[int]) -> list[int]:
    """By value, one of each."""
    by_value = {quantities.value(index): index for index in indices}
    return [by_value[value] for value in sorted(by_value)]


def has_division(tree: Tree) -> bool:
    return not isinstance(tree, int) and (tree[0] == "/" or has_division(tree[1]) or has_division(tree[2]))
