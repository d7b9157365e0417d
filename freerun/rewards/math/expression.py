"""Parses an expression in LaTeX or plain notation into a tree: numbers, letters, + - * / ^, roots, common functions.

Either the whole text is parsed or none of it. What is not known here (sums, integrals, unknown functions) is left to
math-verify. Nothing is computed: the tree of 9^{9^{9^9}} is small.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, NoReturn

from freerun.rewards.math.tokens import FUNCTIONS, Token, Unreadable, tokens_of


class Node(NamedTuple):
    """`op` is "number", "symbol", + - * / ^, or the name of a function; `args` its operands, or what a leaf holds."""

    op: str
    args: tuple["Node | Fraction | str", ...]


MAX_CHARS = 2_000
MAX_DEPTH = 60
"""How deep brackets may be nested."""

_VARIADIC = ("min", "max", "gcd", "lcm")
"""Functions with any number of arguments."""
_GREEK = re.compile(
    "(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|"
    "omega)|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|hbar"
)
_IN_BASE = re.compile(r"(?P<digits>[0-9A-F]+)_\{?\s?(?P<base>\d{1,2})\s?\}?")
_CONJUNCTION = re.compile(r"(?<![A-Za-z\\])(?:and|or|not|if|but|of)(?![A-Za-z])")
"""Words that are never products of letters. Otherwise `0 or 1` would be 0."""
_CLOSES = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_BARS = {"lfloor": "rfloor", "lceil": "rceil", "lvert": "rvert", "langle": "rangle"}
_STARTS_FACTOR = frozenset({"number", "command", "operator", "word", "letter"})
_NEVER_A_FACTOR = frozenset(
    {*_BARS.values(), "pm", "mp", "div", "bmod", "mod", "cdot", "times", "right", "approx", "to"}
)


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """Parse the whole text as one expression."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"an expression of more than {MAX_CHARS} characters")
    if _CONJUNCTION.search(text):
        raise Unreadable("words where a formula should be")
    in_base = _IN_BASE.fullmatch(text)
    if in_base:
        return _in_base(in_base["digits"], int(in_base["base"]))
    parser = _Parser(tokens_of(text))
    tree = parser.sum()
    if parser.at < len(parser.tokens):
        parser.fail()
    return tree


def parse_or_none(text: str) -> Node | None:
    try:
        return parse(text)
    except Unreadable:
        return None


def _in_base(digits: str, base: int) -> Node:
    try:
        return number(int(digits, base))
    except ValueError:
        raise Unreadable(f"not a number in base {base}") from None


class _Parser:
    """A recursive-descent parser with one method for each level of precedence."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth, self.bars = tokens, 0, 0, 0

    def fail(self) -> NoReturn:
        rest = "".join(token.text for token in self.tokens[self.at : self.at + 8])
        raise Unreadable(f"cannot read {rest!r}" if rest else "it ends too early")

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else Token("end", "")

    def took(self, *texts: str) -> bool:
        if self.peek().text in texts and self.peek().kind in ("sign", "command"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.took(text):
            self.fail()

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"brackets more than {MAX_DEPTH} deep")
        tree = self.product()
        while self.peek().text in ("+", "-"):
            op = self.peek().text
            self.at += 1
            tree = Node(op, (tree, self.product()))
        self.depth -= 1
        return tree

    def product(self) -> Node:
        tree = self.signed()
        while True:
            if self.took("*", "cdot", "times", "ast"):
                tree = Node("*", (tree, self.signed()))
            elif self.took("/", "div"):
                tree = Node("/", (tree, self.signed()))
            elif self.took("bmod", "mod"):
                tree = Node("mod", (tree, self.signed()))
            elif self.starts_factor():
                tree = self.joined(tree)
            else:
                return tree

    def joined(self, tree: Node) -> Node:
        """Multiply by a factor that follows without a sign. 1 2 is an error, but 2^3 3^2 is a product."""
        before, after = self.tokens[self.at - 1], self.peek()
        powers = self.peek(1).text == "^" and tree.op in ("^", "*") and after.spaced
        if after.kind == "number" and (before.kind == "number" or before.text == "}") and not powers:
            self.fail()
        return Node("*", (tree, self.power()))

    def mixed(self, tree: Node) -> Node:
        """Add the fraction of a mixed number: 2\\frac{1}{2} and 2 1/2 are 2.5."""
        whole = tree.op == "number" and len(tree.args) == 1 and self.tokens[self.at - 1].kind == "number"
        after, bar, below = self.peek(), self.peek(1), self.peek(2)
        if not whole:
            return tree
        if after.text == "frac" and after.kind == "command":
            factor = self.power()
            return Node("+" if _proper(factor) else "*", (tree, factor))
        if after.spaced and bar.text == "/" and below.value and after.value and after.value < below.value:
            self.at += 3
            return Node("+", (tree, number(after.value / below.value)))
        return tree

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in _STARTS_FACTOR:
            return token.text not in _NEVER_A_FACTOR
        return token.text in ("(", "[", "{", "\\{") or (token.text == "|" and not self.bars)

    def signed(self) -> Node:
        if self.took("-"):
            return Node("-", (number(0), self.signed()))
        if self.took("+"):
            return self.signed()
        return self.mixed(self.power())

    def power(self) -> Node:
        base = self.postfixed(self.atom())
        if self.took("^"):
            if self.is_degree():
                return self.postfixed(Node("*", (base, Node("/", (Node("symbol", ("pi",)), number(180))))))
            return self.postfixed(Node("^", (base, self.argument(signed=True))))
        return base

    def is_degree(self) -> bool:
        for sign in ("circ", "degree"):
            if self.took(sign):
                return True
            if self.peek().text == "{" and self.peek(1).text == sign and self.peek(2).text == "}":
                self.at += 3
                return True
        return False

    def postfixed(self, tree: Node) -> Node:
        while self.peek().text in ("!", "%") and self.peek().kind == "sign":
            self.at += 1
            percent = self.tokens[self.at - 1].text == "%"
            tree = Node("/", (tree, number(100))) if percent else Node("factorial", (tree,))
        return tree

    def argument(self, signed: bool = False) -> Node:
        """A command's argument: braces or a single token, as in TeX. With `signed`, an exponent, perhaps longer."""
        if self.took("{"):
            tree = self.sum()
            self.expect("}")
            return tree
        token = self.peek()
        if token.kind == "number" and not signed and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("number", token.text[1:], Fraction(token.text[1:]))
            return number(Fraction(token.text[0]))
        if signed and self.took("-"):
            return Node("-", (number(0), self.argument(signed=True)))
        tree = self.postfixed(self.atom())
        return Node("^", (tree, self.argument(signed=True))) if signed and self.took("^") else tree

    def atom(self) -> Node:
        token = self.peek()
        self.at += 1
        if token.kind == "number" and token.value is not None:
            return Node("number", (token.value, token.text)) if "." in token.text else number(token.value)
        if token.kind in ("command", "operator", "word"):
            return self.command(token)
        if token.kind == "letter":
            return self.symbol(token.text)
        if token.text in _CLOSES:
            return self.bracketed(_CLOSES[token.text])
        if token.text in ("|", "\\|"):
            self.bars += 1
            tree = self.sum()
            self.bars -= 1
            self.expect(token.text)
            return Node("abs", (tree,))
        self.at -= 1
        return self.fail()

    def bracketed(self, closing: str) -> Node:
        bars, self.bars = self.bars, 0
        tree = self.sum()
        self.bars = bars
        self.expect(closing)
        return tree

    def symbol(self, name: str) -> Node:
        if self.took("_"):
            name += "_" + self.subscript()
        while self.took("'"):
            name += "'"
        return Node("symbol", (name,))

    def subscript(self) -> str:
        if not self.took("{"):
            self.at += 1
            return self.tokens[self.at - 1].text if self.at <= len(self.tokens) else self.fail()
        inside, depth = "", 1
        while depth:
            token = self.peek()
            if token.kind == "end":
                self.fail()
            depth += (token.text == "{") - (token.text == "}")
            inside += token.text if depth else ""
            self.at += 1
        return inside

    def command(self, token: Token) -> Node:
        name = token.text
        if name in FUNCTIONS and not (name == "sqrt" and token.kind == "command"):
            return self.function(FUNCTIONS[name])
        if name == "frac":
            return Node("/", (self.argument(), self.argument()))
        if name == "binom":
            return Node("binomial", (self.argument(), self.argument()))
        if name == "sqrt":
            if not self.took("["):
                return Node("sqrt", (self.argument(),))
            degree = self.bracketed("]")
            return Node("root", (self.argument(), degree))
        if name in _BARS:
            inside = self.bracketed(_BARS[name])
            return (
                Node({"lfloor": "floor", "lceil": "ceil"}.get(name, "abs"), (inside,)) if name != "langle" else inside
            )
        if name == "pi":
            return Node("symbol", (name,))
        if name in ("overline", "bar", "hat", "vec", "tilde", "overrightarrow"):
            return Node("symbol", (f"{name} {self.subscript()}",))
        if _GREEK.fullmatch(name):
            return self.symbol(name)
        self.at -= 1
        return self.fail()

    def function(self, name: str) -> Node:
        base = None
        if name in ("log", "lg"):
            base = self.argument() if self.took("_") else number(10) if name == "lg" else None
        power = self.argument(signed=True) if self.took("^") else None
        if power == Node("-", (number(0), number(1))) and f"a{name}" in FUNCTIONS.values():
            name, power = f"a{name}", None
        argument = self.arguments(name)
        tree = Node(name, argument)
        if base is not None:
            tree = Node("/", (Node("ln", argument), Node("ln", (base,))))
        return Node("^", (tree, power)) if power is not None else tree

    def arguments(self, name: str) -> tuple[Node, ...]:
        if self.peek().text in ("(", "{", "[", "\\{"):
            closing = _CLOSES[self.tokens[self.at].text]
            self.at += 1
            found = [self.sum()]
            while name in _VARIADIC and self.took(","):
                found.append(self.sum())
            self.expect(closing)
            return tuple(found)
        tree = self.signed()  # \sin 2x: factors that follow without a sign belong to it, except another function
        while self.starts_factor() and self.peek().text not in ("(", "[") and not self.is_function():
            tree = self.joined(tree)
        return (tree,)

    def is_function(self) -> bool:
        return self.peek().kind != "letter" and self.peek().text in FUNCTIONS


def number(value: Fraction | int) -> Node:
    return Node("number", (Fraction(value),))


def _proper(tree: Node) -> bool:
    """Whether it is a fraction of two whole numbers, between 0 and 1."""
    if tree.op != "/":
        return False
    above, below = (arg.args[0] if isinstance(arg, Node) and arg.op == "number" else None for arg in tree.args)
    return isinstance(above, Fraction) and isinstance(below, Fraction) and 0 < above < below
