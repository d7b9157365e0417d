"""The numbers of one problem, and which of them depend on which."""

from collections.abc import Iterable
from dataclasses import dataclass

from examples.gsm8k.arithmetic import Tree, leaves
from examples.gsm8k.numerals import Number


@dataclass
class Quantity:
    """A number of the problem."""

    value: Number
    """In the problem as it was."""
    tree: "Tree | None" = None
    """How it is computed from other quantities; None if it is given or constant."""
    free: bool = False
    """A given number that may be changed."""
    percent: bool = False
    at_most: Number = 0
    """What there cannot be more of; 0 if that is not known."""
    used: bool = False
    """Something is computed with it."""
    counts: bool = False
    """The problem may count one more or one fewer of it."""
    odd: bool = False
    """It is written somewhere in a way that no other number could be."""
    places: int = 99
    """The most digits after the point that all of its slots have room for."""


class Quantities:
    """All of a problem's. They go by their place in `all`."""

    def __init__(self) -> None:
        self.all: list[Quantity] = []
        self.given: dict[Number, int] = {}
        """By the value that they have in the question: it may have several numerals of one value, which stay alike."""
        self.constants: dict[Number, int] = {}
        self.results: list[int] = []

    def add(self, quantity: Quantity) -> int:
        self.all.append(quantity)
        return len(self.all) - 1

    def constant(self, value: Number) -> int:
        if value not in self.constants:
            self.constants[value] = self.add(Quantity(value))
        return self.constants[value]

    def value(self, index: int) -> Number:
        return self.all[index].value

    def ancestors(self, index: int) -> frozenset[int]:
        """What it comes from in the end, by what is known so far."""
        tree = self.all[index].tree
        if tree is None:
            return frozenset([index])
        return frozenset().union(*map(self.ancestors, leaves(tree)))

    def support(self, index: int) -> frozenset[int]:
        """The numbers that may be changed, and change it."""
        return frozenset(given for given in self.ancestors(index) if self.all[given].free)

    def hold(self, indices: Iterable[int]) -> None:
        """These keep their values."""
        for index in indices:
            for given in self.support(index):
                self.all[given].free = False

    def order(self) -> list[int]:
        """Those that are computed, each after what it needs."""
        order: list[int] = []

        def visit(index: int) -> None:
            tree = self.all[index].tree
            if tree is not None and index not in order:
                for leaf in leaves(tree):
                    visit(leaf)
                order.append(index)

        for index in range(len(self.all)):
            visit(index)
        return order

    def free(self) -> list[int]:
        return [index for index in self.given.values() if self.all[index].free]
