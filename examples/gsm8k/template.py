"""A worked problem as a template: slots for numbers, and how these numbers follow from each other.

Every numeral of question and solution becomes a slot for a quantity. A quantity is *given* (a numeral of the question),
*constant* (7 days of a week), or *computed* from others, as the marks `<<48/2=24>>` of the solution say. Sources are
found by value. Where one value has several sources, nothing is guessed: either they have the same value whatever the
given numbers are, or a given number is made to follow (a 12 of the question, where 5 + 7 are 12 as well), or all given
numbers that matter for it are held as they are. What is traced to nothing is refused, by a reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from examples.gsm8k.arithmetic import Tree, compute
from examples.gsm8k.numerals import Form, Number
from examples.gsm8k.quantities import Quantity

SEPARATOR = "\x00"
"""Between question and solution."""


class Reason(StrEnum):
    """Why a problem has no variants."""

    UNREADABLE = "a mark that is not arithmetic"
    INEXACT = "a mark that is not exactly right, or negative"
    NO_MARK = "no marks, or no final number"
    OPERAND = "a number is computed with that comes from nowhere"
    NUMERAL = "a numeral of the solution that comes from nowhere"
    FINAL = "the final number is not the last result"
    ALGEBRA = "letters that stand for numbers"
    NOTHING_FREE = "every number that matters has several sources, or must stay"
    RATIO = "a ratio that nothing is computed with"
    EQUATION = "an equation of the text would break"
    NOT_ITSELF = "its own numbers do not give it back"
    NO_DRAW = "no other numbers are as good"


class Refused(Exception):
    """This problem has no variants, for that reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Slot:
    """Where a quantity is written, and how."""

    start: int
    end: int
    quantity: int
    form: Form


@dataclass
class Template:
    """A problem whose numbers can be put in."""

    text: str
    """Question and solution, with SEPARATOR between them."""
    slots: list[Slot]
    quantities: list[Quantity]
    order: list[int]
    """The computed quantities, each after those that it needs."""
    given: list[int]
    """The quantities that are free."""
    ranked: list[tuple[int, int]]
    """Pairs of quantities of which the first stays the smaller one."""

    def values(self, given: dict[int, Number]) -> list[Number]:
        """The values of all quantities, if the free ones have these. ZeroDivisionError if there are none."""
        values = [quantity.value for quantity in self.quantities]
        for index, value in given.items():
            values[index] = value
        for index in self.order:
            values[index] = compute(self.tree(index), values)
        return values

    def tree(self, index: int) -> Tree:
        """The expression of a quantity that is computed."""
        tree = self.quantities[index].tree
        assert tree is not None
        return tree

    def filled(self, values: Sequence[Number]) -> dict[str, str]:
        """The row with these values."""
        pieces: list[str] = []
        end = 0
        for slot in self.slots:
            pieces += [self.text[end : slot.start], slot.form.write(values[slot.quantity])]
            end = slot.end
        question, _, answer = "".join([*pieces, self.text[end:]]).partition(SEPARATOR)
        return {"question": question, "answer": answer}
