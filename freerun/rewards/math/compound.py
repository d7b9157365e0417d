"""Parses compound answers into their items: lists, points, intervals, unions, sets and matrices.

0 \\le x < 1 is an interval, 1 \\pm \\sqrt{2} a list of two. Knows brackets and commas, not what equals what.
"""

import re
from dataclasses import dataclass

MAX_ITEMS = 64
"""How many items a list or a matrix may have."""


class TooManyItems(Exception):
    """A list or a matrix has more than `MAX_ITEMS`."""


@dataclass(frozen=True)
class Compound:
    """`kind` is its brackets; "," for a list without brackets, "u" for a union, "" for a single item, 2x3 for a
    matrix."""

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


def parse_compound(answer: str) -> Compound | None:
    """None for an answer that is a single item."""
    system = _SYSTEM.fullmatch(answer)
    if system:
        return _checked_length(",", [row.strip() for row in re.split(r"\\\\", system["rows"]) if row.strip()])
    matrix = _MATRIX.fullmatch(answer)
    if matrix and "\\begin" not in matrix["rows"]:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix["rows"]) if row.strip()]
        return _checked_length(
            f"{len(rows)}x{len(rows[0]) if rows else 0}", [cell.strip() for row in rows for cell in row]
        )
    condition = _SET_BUILDER.fullmatch(answer)
    interval = _as_interval(condition["condition"] if condition else answer)
    if interval:
        return interval
    return _union(answer) or _bracketed(answer) or _list(answer)


def _union(answer: str) -> Compound | None:
    unknown, but, value = answer.partition("\\ne ")
    if but and _UNKNOWN.fullmatch(unknown.strip()):
        return Compound("u", [rf"(-\infty,{value.strip()})", rf"({value.strip()},\infty)"])
    parts = split(answer, "\\cup")
    if len(parts) > 1:
        return _checked_length("u", parts)
    either = split(_EITHER.sub(r"\\cup", answer), "\\cup")
    is_union = len(either) > 1 and all(map(_as_interval, either))  # x < -1 or x > 1
    return _checked_length("u", either) if is_union else None


def _bracketed(answer: str) -> Compound | None:
    outward = _OUTWARD.fullmatch(answer)
    if outward and (outward["left"] == "]" or outward["right"] == "["):
        left, right = outward["left"].replace("]", "("), outward["right"].replace("[", ")")
        answer = left + outward["inside"] + right
    brackets = _BRACKETS.fullmatch(answer)
    if not brackets or not _balanced(brackets["inside"]):
        return None
    left, right = brackets["left"], brackets["right"]
    if left == "{":
        return parse_compound(brackets["inside"]) if right == "}" else None  # TeX does not print plain braces
    kind = (left + right).replace("\\", "")
    items = split(brackets["inside"], ",")
    if len(items) == 1:
        items = split(brackets["inside"], ";")
    if len(items) > 1 or kind == "{}":
        return _checked_length(kind, expand_plus_minus(items) if kind == "{}" else items)
    return parse_compound(items[0]) or Compound("", items)


def _list(answer: str) -> Compound | None:
    groups = [group for group in split(answer, ";") if group]
    if len(groups) > 1:
        several = any(len(split(group, ",")) > 1 for group in groups)
        return _checked_length(
            ",", [f"({group})" if several and not group.startswith("(") else group for group in groups]
        )
    items = [item for item in split(_AND_OR.sub(",", answer), ",") if item]
    both = expand_plus_minus(items)
    return _checked_length(",", both) if len(both) > 1 else None


def expand_plus_minus(items: list[str]) -> list[str]:
    """Replace 1 \\pm \\sqrt{2} by 1 + \\sqrt{2} and 1 - \\sqrt{2}."""
    found = []
    for item in items:
        if "\\pm" in item or "\\mp" in item:
            plus, minus = (item.replace("\\pm", one).replace("\\mp", other) for one, other in ("+-", "-+"))
            found += [plus.strip(), minus.strip()]
        else:
            found.append(item)
    return found


def kinds_match(found: Compound, expected: Compound) -> bool:
    """Whether two kinds may mean the same. A list without brackets may be a set, a point or a column; (1, 2) and [1, 2]
    differ, because they may be intervals."""
    kinds = {found.kind, expected.kind}
    if len(kinds) == 1:
        return True
    if any("x" in kind for kind in kinds):
        other = next((kind for kind in kinds if "x" not in kind), None)
        return other in (",", "()", "[]") and any(re.search(r"^1x|x1$", kind) for kind in kinds)
    if "," in kinds:
        return not kinds & {"[)", "(]", "u"}
    if "" in kinds:
        return True  # one item each: {5} and 5
    return kinds == {"()", "[]"} and len(found.items) > 2


def _checked_length(kind: str, items: list[str]) -> Compound:
    if len(items) > MAX_ITEMS:
        raise TooManyItems(f"a list of more than {MAX_ITEMS}")
    return Compound(kind, items)


def _as_interval(answer: str) -> Compound | None:
    """The interval that an inequality means, such as 0 \\le x < 1, x > 3 or 3 < x."""
    parts = [part.strip() for part in _RELATION.split(answer)]
    signs = ["<" if sign in ("<", "\\le") else ">" for sign in parts[1::2]]
    closed = [sign in ("\\le", "\\ge") for sign in parts[1::2]]
    if len(parts) == 3 and _UNKNOWN.fullmatch(parts[2]):
        parts, signs = [parts[2], parts[1], parts[0]], ["<" if signs[0] == ">" else ">"]
    if len(parts) == 3 and _UNKNOWN.fullmatch(parts[0]) and not _UNKNOWN.fullmatch(parts[2]):
        end = "]" if closed[0] else ")"
        if signs[0] == "<":
            return Compound(f"({end}", ["-\\infty", parts[2]])
        return Compound(f"{'[' if closed[0] else '('})", [parts[2], "\\infty"])
    if len(parts) == 5 and _UNKNOWN.fullmatch(parts[2]) and signs[0] == signs[1]:
        if signs[0] == ">":
            parts, closed = parts[::-1], closed[::-1]
        return Compound(f"{'[' if closed[0] else '('}{']' if closed[1] else ')'}", [parts[0], parts[4]])
    return None


def split(text: str, by: str) -> list[str]:
    """Split outside brackets only: (1,2),(3,4) has two items."""
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
    """Whether every closing bracket has an opening one before it. In 1,2)+(3,4 it has not."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return True
