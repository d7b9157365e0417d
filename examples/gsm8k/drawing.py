"""Other numbers for a template: of similar size and kind, with results that are as good as the original's.

One given number after the other is changed, and a change is kept if everything that follows from it is still sensible:
whole where it was whole, positive, of similar size, no harder to compute with, and in the same order. Starting from
numbers that are good already, this finds others even where few are, as with divisions that must leave no rest.
"""

import random
from collections.abc import Iterator
from fractions import Fraction

from examples.gsm8k.arithmetic import compute, leaves
from examples.gsm8k.numerals import Number, significant_digits, whole
from examples.gsm8k.quantities import Quantity
from examples.gsm8k.template import Template

GROWTH = 20
"""How many times larger or smaller than it was a number may be."""
PROPOSALS = 12
"""How many other values of a given number are tried in one turn."""
ROUNDS = 6
"""Rounds through the given numbers without anything new after which there is nothing more to find."""
FINER = 0.4
"""How often a round number becomes one that is less round: 300 becomes 350."""
SMALL = 12
"""Counts up to that are small, and stay so."""
PLACES = 6
"""The most digits after the point of a number that is written nowhere."""


def drawn(template: Template, count: int, rng: random.Random) -> Iterator[list[Number]]:
    """Up to `count` times the values of all quantities, all different, and different from the original's."""
    search = Search(template)
    seen = {search.given()}
    fruitless = 0
    while count and fruitless < ROUNDS:
        for given in rng.sample(template.given, len(template.given)):
            search.turn([given], rng)
        if search.given() in seen and len(template.given) > 1:
            search.turn(rng.sample(template.given, 2), rng)
        if search.given() in seen:
            fruitless += 1
            continue
        seen.add(search.given())
        fruitless = 0
        count -= 1
        yield list(search.values)


class Search:
    """Numbers that are good, and go on being so."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.values: list[Number] = [quantity.value for quantity in template.quantities]
        self._limits = [Limits(quantity) for quantity in template.quantities]
        self._after = {given: list(dependents(template, given)) for given in template.given}

    def given(self) -> tuple[Number, ...]:
        return tuple(self.values[given] for given in self._template.given)

    def turn(self, given: list[int], rng: random.Random) -> None:
        """Gives these other values, if it finds some that are good."""
        for _ in range(PROPOSALS):
            changes = {index: proposal(self._template.quantities[index], rng) for index in given}
            if all(self.values[index] != value for index, value in changes.items()) and self._take(changes):
                return

    def _take(self, changes: dict[int, Number]) -> bool:
        """Whether they are good; if not, everything stays."""
        before = list(self.values)
        for index, value in changes.items():
            self.values[index] = value
        if self._computed(changes) and self._in_order():
            return True
        self.values = before
        return False

    def _computed(self, changes: dict[int, Number]) -> bool:
        """Whether what was changed and all that follows from it is allowed."""
        if not all(self._limits[index].allow(value) for index, value in changes.items()):
            return False
        if len(changes) == 1:
            (given,) = changes
            after = self._after[given]
        else:
            changed = {index for given in changes for index in self._after[given]}
            after = [index for index in self._template.order if index in changed]
        for index in after:
            try:
                self.values[index] = compute(self._template.tree(index), self.values)
            except ZeroDivisionError:
                return False
            if not self._limits[index].allow(self.values[index]):
                return False
        return True

    def _in_order(self) -> bool:
        return all(self.values[smaller] < self.values[larger] for smaller, larger in self._template.ranked)


def dependents(template: Template, given: int) -> Iterator[int]:
    """What is computed from it, directly or not, in order."""
    found = {given}
    for index in template.order:
        if leaves(template.tree(index)) & found:
            found.add(index)
            yield index


class Limits:
    """What values a quantity may have."""

    def __init__(self, quantity: Quantity) -> None:
        was = quantity.value
        self._whole = was.denominator == 1
        self._scale = 10 ** min(quantity.places, PLACES)
        self._least: Number = was / Fraction(GROWTH)
        self._most: Number = was * GROWTH
        if quantity.at_most and was <= quantity.at_most:
            self._most = min(self._most, quantity.at_most)
        if quantity.percent and was <= 100:
            self._most = min(self._most, 100)
        self._digits = significant_digits(was) + 1

    def allow(self, value: Number) -> bool:
        if not self._least <= value <= self._most or (value <= 0) != (self._most == 0):
            return False
        if value.denominator != 1 and (self._whole or (value * self._scale).denominator != 1):
            return False
        return significant_digits(value) <= self._digits


def proposal(quantity: Quantity, rng: random.Random) -> Number:
    """A value of the same kind: 7 becomes 2 to 12; 300 other hundreds; 4.25 another number of two decimals."""
    scale = 1
    value = quantity.value
    while value.denominator != 1:
        value, scale = whole(value * 10), scale * 10
    was = int(value)
    steps = [step for step in (1_000_000, 100_000, 10_000, 1_000, 100, 10, 5, 1) if was % step == 0]
    step = steps[1] if len(steps) > 1 and (was == steps[0] or rng.random() < FINER) else steps[0]
    least, most = (2, max(9, was + 5)) if was <= SMALL and scale == 1 else (was // 2, was * 2)
    return whole(Fraction(rng.randint(max(-(-least // step), 1), max(most // step, 1)) * step, scale))
