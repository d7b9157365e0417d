"""Exact arithmetic on expressions like 3*(4+.5): read into a tree, computed with whole numbers and fractions.

A tree's leaves are numbers that say which quantity stands there: the first numeral of an expression is leaf 0, and
`relabelled` makes other quantities of them.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeAlias

from examples.gsm8k.numerals import NUMERAL, Number, exact, whole

Tree: TypeAlias = "int | tuple[str, Tree, Tree]"
"""A quantity, or an operator between two trees."""


class Unreadable(Exception):
    """It is not arithmetic of + - * / and parentheses."""


def parse(expression: str) -> tuple[Tree, list[Number], list[tuple[int, int]]]:
    """The tree of it, the values of its leaves, and where their numerals are in it."""
    values: list[Number] = []
    spans: list[tuple[int, int]] = []
    position = 0

    def peek() -> str:
        nonlocal position
        while expression[position : position + 1] == " ":
            position += 1
        return expression[position : position + 1]

    def chain(operators: str, part: Callable[[], Tree]) -> Tree:
        nonlocal position
        tree = part()
        while (operator := peek()) and operator in operators:
            position += 1
            tree = (operator, tree, part())
        return tree

    def atom() -> Tree:
        nonlocal position
        if peek() == "(":
            position += 1
            tree = chain("+-", lambda: chain("*/", atom))
            if peek() != ")":
                raise Unreadable
            position += 1
            return tree
        found = NUMERAL.match(expression, position)
        if found is None:
            raise Unreadable
        position = found.end()
        values.append(exact(found.group()))
        spans.append(found.span())
        return len(values) - 1

    tree = chain("+-", lambda: chain("*/", atom))
    if peek():
        raise Unreadable
    return tree, values, spans


def compute(tree: Tree, values: Sequence[Number]) -> Number:
    """What the tree comes to. ZeroDivisionError where it divides by zero."""
    if isinstance(tree, int):
        return values[tree]
    operator, left, right = tree
    a, b = compute(left, values), compute(right, values)
    if operator == "+":
        return whole(a + b)
    if operator == "-":
        return whole(a - b)
    if operator == "*":
        return whole(a * b)
    return whole(Fraction(a) / b) if a % b else whole(a // b)


def relabelled(tree: Tree, quantities: Sequence[int]) -> Tree:
    """The same tree of these quantities: leaf i is quantities[i]."""
    if isinstance(tree, int):
        return quantities[tree]
    operator, left, right = tree
    return operator, relabelled(left, quantities), relabelled(right, quantities)


def leaves(tree: Tree) -> frozenset[int]:
    if isinstance(tree, int):
        return frozenset([tree])
    return leaves(tree[1]) | leaves(tree[2])


def longest_sum(tree: Tree) -> int:
    """How many terms its longest sum has: 3 in (80+90+70)/3."""
    if isinstance(tree, int):
        return 1
    operator, left, right = tree
    inside = max(longest_sum(left), longest_sum(right))
    return longest_sum(left) + 1 if operator == "+" else inside


def is_chain(tree: Tree) -> bool:
    """A sum of numerals, or a product: their order does not matter."""
    operators: set[str] = set()

    def visit(part: Tree) -> bool:
        if isinstance(part, int):
            return True
        operators.add(part[0])
        return visit(part[1]) and isinstance(part[2], int)

    return visit(tree) and operators in ({"+"}, {"*"})
