"""Other numbers for a template: of similar size and kind, with results that are as good as the original's.

One given number after the other is changed, and a change is kept if everything that follows from it is still sensible:
whole where it was whole, positive, of similar size, no harder to compute with, and in the same order. Starting from
numbers that are good already, this finds others even where few are, as with divisions that must leave no rest.
"""

import random
from collections.abc import Iterator

from examples.gsm8k.numerals import Number, significant_digits, whole
from examples.gsm8k.template import Quantity, Template
from fractions import Fraction

GROWTH = 20
"""How many times larger or smaller than it was a result may be."""
PROPOSALS = 6
"""How often another value of a given number is tried in one turn."""
ROUNDS = 6
"""Rounds through the given numbers without anything new after which there is nothing more to find."""


def drawn(template: Template, count: int, rng: random.Random) -> Iterator[list[Number]]:
    """Up to `count` times the values of all quantities, all different, and different from the original's."""
    current = {given: template.quantities[given].value for given in template.given}
    seen = {tuple(current.values())}
    limits = [Limits(quantity) for quantity in template.quantities]
    order = sorted(range(len(template.quantities)), key=lambda index: template.quantities[index].value)
    ranked = [index for index in order if index in template.ranked]
    fruitless = 0
    while count and fruitless < ROUNDS:
        for given in rng.sample(template.given, len(template.given)):
            for _ in range(PROPOSALS):
                value = proposal(template.quantities[given], rng)
                if value != current[given] and good(template, {**current, given: value}, limits, ranked):
                    current[given] = value
                    break
        if tuple(current.values()) in seen:
            fruitless += 1
            continue
        seen.add(tuple(current.values()))
        fruitless = 0
        count -= 1
        yield template.values(current)


class Limits:
    """What values a quantity may have."""

    def __init__(self, quantity: Quantity) -> None:
        was = quantity.value
        self.places = min(quantity.places, 6) if was.denominator != 1 or quantity.places < 99 else 0
        self.is_whole = was.denominator == 1
        self.least: Number = was / Fraction(GROWTH)
        self.most: Number = was * GROWTH
        if quantity.at_most and was <= quantity.at_most:
            self.most = min(self.most, quantity.at_most)
        if quantity.percent and was <= 100:
            self.most = min(self.most, 100)
        self.digits = significant_digits(was) + 1

    def allow(self, value: Number) -> bool:
        if not self.least <= value <= self.most or (value <= 0) != (self.most == 0):
            return False
        if self.is_whole and value.denominator != 1:
            return False
        if (value * 10**self.places).denominator != 1:
            return False
        return significant_digits(value) <= self.digits


def good(template: Template, given: dict[int, Number], limits: list[Limits], ranked: list[int]) -> bool:
    try:
        values = template.values(given)
    except ZeroDivisionError:
        return False
    if any(values[a] >= values[b] for a, b in zip(ranked, ranked[1:], strict=False)):
        return False
    return all(limits[index].allow(values[index]) for index in [*template.given, *template.order])


def proposal(quantity: Quantity, rng: random.Random) -> Number:
    """A value of the same kind: 7 becomes 2 to 12; 300 other hundreds; 4.25 another number of two decimals."""
    scale = 1
    value = quantity.value
    while value.denominator != 1:
        value, scale = whole(value * 10), scale * 10
    was = int(value)
    step = next(step for step in (1_000_000, 100_000, 10_000, 1_000, 100, 10, 5, 1) if was % step == 0)
    if step > 1 and was == step:
        step = step // 2 if step > 5 else 1
    least, most = (2, max(9, was + 5)) if was <= 12 and scale == 1 else (was // 2, was * 2)
    return whole(Fraction(rng.randint(-(-max(least, 1) // step), max(most // step, 1)) * step, scale))
