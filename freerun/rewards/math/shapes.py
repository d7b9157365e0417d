"""Answers of several pieces, taken apart: lists, points, intervals, unions, sets, matrices, and what stands for one.

0 \\le x < 1 is an interval, 1 \\pm \\sqrt{2} a list of two. Knows brackets and commas; what equals what it does not.
"""

import re
from dataclasses import dataclass

MOST_PIECES = 64
"""How many parts a list or a matrix may have."""


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
_OUTWARD = re.compile(r"(?P<left>[\](\[])(?P<inside>[^\[\]]*[,;][^\[\]]*)(?P<right>[\])\[])")
"""]0,1[ as the French write (0,1)."""
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pbvBV]?matrix|array)\}(?:\{[^{}]*\})?(?P<rows>.*)\\end\{\1\}\s*[)\]]?", re.DOTALL
)
_SYSTEM = re.compile(r"\\begin\{(cases|aligned)\}(?P<rows>.*)\\end\{\1\}", re.DOTALL)
_SET_BUILDER = re.compile(r"\\?\{\s*[A-Za-z]\s*(?:\||:|\\mid)(?P<condition>.*?)\\?\}")
_RELATION = re.compile(r"(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z]))")
_UNKNOWN = re.compile(r"[A-Za-z](?:_\w+)?(?:\s?\([A-Za-z]\))?")
_EITHER = re.compile(r"(?<![A-Za-z\\])or(?![a-z])|(?<=\d)or(?=[A-Za-z(])")
_AND_OR = re.compile(r"(?:,\s*)?(?<![A-Za-z\\])(?:and|or)(?![a-z])|(?:,\s*)?(?<=[\d)])(?:and|or)(?=[A-Za-z(])")


def take_apart(answer: str) -> Pieces | None:
    """None for what is one thing."""
    system = _SYSTEM.fullmatch(answer)
    if system:
        return _limited(",", [row.strip() for row in re.split(r"\\\\", system["rows"]) if row.strip()])
    matrix = _MATRIX.fullmatch(answer)
    if matrix and "\\begin" not in matrix["rows"]:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix["rows"]) if row.strip()]
        return _limited(f"{len(rows)}x{len(rows[0]) if rows else 0}", [cell.strip() for row in rows for cell in row])
    condition = _SET_BUILDER.fullmatch(answer)
    interval = _as_interval(condition["condition"] if condition else answer)
    if interval:
        return interval
    return _union(answer) or _bracketed(answer) or _listed(answer)


def _union(answer: str) -> Pieces | None:
    unknown, but, value = answer.partition("\\ne ")
    if but and _UNKNOWN.fullmatch(unknown.strip()):
        return Pieces("u", [rf"(-\infty,{value.strip()})", rf"({value.strip()},\infty)"])
    parts = split(answer, "\\cup")
    if len(parts) > 1:
        return _limited("u", parts)
    either = split(_EITHER.sub(r"\\cup", answer), "\\cup")
    return _limited("u", either) if len(either) > 1 and all(map(_as_interval, either)) else None  # x < -1 or x > 1


def _bracketed(answer: str) -> Pieces | None:
    outward = _OUTWARD.fullmatch(answer)
    if outward and (outward["left"] == "]" or outward["right"] == "["):
        left, right = outward["left"].replace("]", "("), outward["right"].replace("[", ")")
        answer = left + outward["inside"] + right
    brackets = _BRACKETS.fullmatch(answer)
    if not brackets or not _balanced(brackets["inside"]):
        return None
    left, right = brackets["left"], brackets["right"]
    if left == "{":
        return take_apart(brackets["inside"]) if right == "}" else None  # in TeX they are not seen
    kind = (left + right).replace("\\", "")
    items = split(brackets["inside"], ",")
    if len(items) == 1:
        items = split(brackets["inside"], ";")
    if len(items) > 1 or kind == "{}":
        return _limited(kind, with_both_signs(items) if kind == "{}" else items)
    return take_apart(items[0]) or Pieces("", items)


def _listed(answer: str) -> Pieces | None:
    groups = [group for group in split(answer, ";") if group]
    if len(groups) > 1:
        several = any(len(split(group, ",")) > 1 for group in groups)
        return _limited(",", [f"({group})" if several and not group.startswith("(") else group for group in groups])
    items = [item for item in split(_AND_OR.sub(",", answer), ",") if item]
    both = with_both_signs(items)
    return _limited(",", both) if len(both) > 1 else None


def with_both_signs(items: list[str]) -> list[str]:
    """1 + \\sqrt{2} and 1 - \\sqrt{2} of 1 \\pm \\sqrt{2}."""
    found = []
    for item in items:
        if "\\pm" in item or "\\mp" in item:
            plus, minus = (item.replace("\\pm", one).replace("\\mp", other) for one, other in ("+-", "-+"))
            found += [plus.strip(), minus.strip()]
        else:
            found.append(item)
    return found


def kinds_agree(found: Pieces, right: Pieces) -> bool:
    """A list without brackets may be a set or a point, a column of numbers too; (1, 2) and [1, 2] differ, since they
    may be intervals."""
    kinds = {found.kind, right.kind}
    if len(kinds) == 1:
        return True
    if any("x" in kind for kind in kinds):
        other = next((kind for kind in kinds if "x" not in kind), None)
        return other in (",", "()", "[]") and any(re.search(r"^1x|x1$", kind) for kind in kinds)
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
    if len(parts) == 3 and _UNKNOWN.fullmatch(parts[2]):
        parts, signs = [parts[2], parts[1], parts[0]], ["<" if signs[0] == ">" else ">"]
    if len(parts) == 3 and _UNKNOWN.fullmatch(parts[0]) and not _UNKNOWN.fullmatch(parts[2]):
        end = "]" if closed[0] else ")"
        if signs[0] == "<":
            return Pieces(f"({end}", ["-\\infty", parts[2]])
        return Pieces(f"{'[' if closed[0] else '('})", [parts[2], "\\infty"])
    if len(parts) == 5 and _UNKNOWN.fullmatch(parts[2]) and signs[0] == signs[1]:
        ends, shut = ([parts[0], parts[4]], closed) if signs[0] == "<" else ([parts[4], parts[0]], closed[::-1])
        return Pieces(f"{'[' if shut[0] else '('}{']' if shut[1] else ')'}", ends)
    return None


def split(text: str, by: str) -> list[str]:
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
