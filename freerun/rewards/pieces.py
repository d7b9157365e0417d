"""Answers of several pieces, taken apart: lists, points, intervals, unions, sets, matrices, and what stands for one.

0 \\le x < 1 is an interval, 1 \\pm \\sqrt{2} a list of two. Knows brackets and commas; what equals what it does not.
"""

import re
from dataclasses import dataclass

MOST_PIECES = 64
"""Of a list or a matrix."""


class TooMany(Exception):
    """More pieces than an answer has."""


@dataclass(frozen=True)
class Pieces:
    """`kind` is its brackets; "," of a list without any, "u" of a union, "" of a single thing, 2x3 of a matrix."""

    kind: str
    items: list[str]

    @property
    def ordered(self) -> bool:
        return self.kind not in (",", "{}", "u")


_BRACKETS = re.compile(r"(?P<left>\(|\[|\\\{|\{)(?P<inside>.*?)(?P<right>\)|\]|\\\}|\})", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[^{}]*\})?(?P<rows>.*)\\end\{\1\}", re.DOTALL)
_SET_BUILDER = re.compile(r"\\?\{\s*[A-Za-z]\s*(?:\||:|\\mid)(?P<condition>.*?)\\?\}")
_RELATION = re.compile(r"(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z]))")
_SYMBOL = re.compile(r"[A-Za-z](?:_\w+)?")


def take_apart(answer: str) -> Pieces | None:
    """None for what is one thing."""
    matrix = _MATRIX.fullmatch(answer)
    if matrix:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix["rows"]) if row.strip()]
        return _limited(f"{len(rows)}x{len(rows[0]) if rows else 0}", [cell.strip() for row in rows for cell in row])
    condition = _SET_BUILDER.fullmatch(answer)
    interval = _as_interval(condition["condition"] if condition else answer)
    if interval:
        return interval
    parts = _split(answer, "\\cup")
    if len(parts) > 1:
        return _limited("u", parts)
    either = _split(re.sub(r"(?<![A-Za-z])or(?![A-Za-z])", "\\\\cup", answer), "\\cup")
    if len(either) > 1 and all(map(_as_interval, either)):
        return _limited("u", either)  # x < -1 or x > 1
    brackets = _BRACKETS.fullmatch(answer)
    if brackets and _balanced(brackets["inside"]):
        kind = (brackets["left"] + brackets["right"]).replace("\\", "")
        items = _split(brackets["inside"], ",")
        if len(items) > 1 or kind == "{}":
            return _limited(kind, items)
        return take_apart(items[0]) or Pieces("", items)
    items = _split(re.sub(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])", ",", answer), ",")
    items = [item for item in items if item]
    if len(items) > 1 and not is_text(answer):
        return _limited(",", items)
    if answer.count("\\pm") == 1:
        return Pieces(",", [answer.replace("\\pm", "+").strip().removeprefix("+"), answer.replace("\\pm", "-").strip()])
    return None


def kinds_agree(found: Pieces, right: Pieces) -> bool:
    """A list without brackets may be a set or a point; (1, 2) and [1, 2] differ, since they may be intervals."""
    kinds = {found.kind, right.kind}
    if len(kinds) == 1:
        return True
    if any("x" in kind for kind in kinds):
        return False
    if "," in kinds:
        return not kinds & {"[)", "(]", "u"}
    if "" in kinds:
        return True  # of one item each: {5} and 5
    return kinds == {"()", "[]"} and len(found.items) > 2


def _limited(kind: str, items: list[str]) -> Pieces:
    if len(items) > MOST_PIECES:
        raise TooMany(f"a list of more than {MOST_PIECES}")
    return Pieces(kind, items)


def _as_interval(answer: str) -> Pieces | None:
    """0 \\le x < 1, x > 3, 3 < x."""
    parts = [part.strip() for part in _RELATION.split(answer)]
    signs = ["<" if sign in ("<", "\\le") else ">" for sign in parts[1::2]]
    closed = [sign in ("\\le", "\\ge") for sign in parts[1::2]]
    if len(parts) == 3 and _SYMBOL.fullmatch(parts[2]):
        parts, signs = [parts[2], parts[1], parts[0]], ["<" if signs[0] == ">" else ">"]
    if len(parts) == 3 and _SYMBOL.fullmatch(parts[0]):
        end = "]" if closed[0] else ")"
        if signs[0] == "<":
            return Pieces(f"({end}", ["-\\infty", parts[2]])
        return Pieces(f"{'[' if closed[0] else '('})", [parts[2], "\\infty"])
    if len(parts) == 5 and _SYMBOL.fullmatch(parts[2]) and signs[0] == signs[1]:
        ends, shut = ([parts[0], parts[4]], closed) if signs[0] == "<" else ([parts[4], parts[0]], closed[::-1])
        return Pieces(f"{'[' if shut[0] else '('}{']' if shut[1] else ')'}", ends)
    return None


def _split(text: str, by: str) -> list[str]:
    """At the top level only: the commas of (1,2),(3,4) between the brackets, not in them."""
    items, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(by, place) and place >= start:
            items.append(text[start:place].strip())
            start = place + len(by)
    return [*items, text[start:].strip()]


def _balanced(text: str) -> bool:
    """Whether no bracket closes that did not open: the inside of (1,2)+(3,4) is not."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return True


def is_text(answer: str) -> bool:
    """Words, or the letter of a choice in brackets: (B)."""
    return re.fullmatch(r"\(?[A-Za-z]\)|[A-Za-z][A-Za-z'. -]*[A-Za-z]{2,}[A-Za-z'. -]*", answer.strip()) is not None
