"""Normalizes how an answer is written: removes what only changes its looks, such as spacing commands and fonts."""

import re
from collections.abc import Callable

_UNICODE = {
    **dict(zip("−–—‐×·⋅÷′’“”", ("-", "-", "-", "-", *(r" \cdot ",) * 3, "/", "'", "'", '"', '"'), strict=True)),
    **{"∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap "},
    **{"∅": r"\emptyset ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "∈": r"\in ", "ℝ": r"\mathbb{R}"},
    **{"⟨": "(", "⟩": ")"},
    **{"√": r"\sqrt", "∛": r"\sqrt[3]", "…": r"\ldots ", "₂": "_2", "₁": "_1", "₃": "_3", "₀": "_0"},
    **{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{
        sign: rf"\frac{{{above}}}{{{below}}}"
        for sign, above, below in zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "112131234151357", "233445555668888", strict=True)
    },
    **{
        sign: rf"\{name} "
        for sign, name in zip(
            "αβγδεθλμπρστφωΔΩ",
            re.findall(r"\w+", "alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega Delta Omega"),
            strict=True,
        )
    },
}  # fmt: skip
_UNICODE_SIGNS = re.compile("|".join(map(re.escape, _UNICODE)))
_UNIT_NAMES = {"m": "metre", "s": "second", "g": "gram", "h": "hour", "l": "litre", "L": "litre"}
_END = r"(?![A-Za-z])"
_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (rf"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|hline){_END}", ""),
    (r"\s*\{\s*,\s*\}|(?<=\d),?\s*\\!\s*(?=\d)", ","),  # thousands separators: 1,\!000 and 1{,}000
    (r"\\!", ""),
    (r"(?<=\d)(?:\\[, ]|~|[\u00a0\u2009\u202f'])(?=\d{3}(?!\d))", ","),
    (r"(?<!\\)\\[,;: ]|~|[\u00a0\u2009\u202f]|\\q?quad|\\hspace\{[^{}]*\}", " "),
    *(
        (rf"\\(?:text\w*|mathrm|mbox)\s*\{{\s*{letter}\s*\}}", f" {unit} ")  # upright letters are units
        for letter, unit in _UNIT_NAMES.items()
    ),
    (r"\\(?:text\w*|math(?:rm|bf|it|sf|tt|normal)|mbox|operatorname\*?|boldsymbol|bm)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\(?:c?dots|dotsc)(?![A-Za-z])|\.\.\.", r"\\ldots "),
    (r"(?<=\d\.)(\d*?)(\d{1,6}?)\2+\s*\\ldots", r"\1\\overline{\2}"),  # 0.333...
    (r"(?<=\d\.)(\d*)\((\d+)\)", r"\1\\overline{\2}"),  # 0.(3)
    (r"\{([^{}]*)\\choose([^{}]*)\}", r"\\binom{\1}{\2}"),
    (rf"\\[dtc]frac{_END}", r"\\frac"),
    (r"\\(?:leq|leqslant|leqq)(?![A-Za-z])|<=|=<", r"\\le "),
    (r"\\(?:geq|geqslant|geqq)(?![A-Za-z])|>=|=>", r"\\ge "),
    (r"\\(?:neq|not\s*=)(?![A-Za-z])|!=|=/=|\\not=", r"\\ne "),
    (rf"\\lt{_END}", "<"),
    (rf"\\gt{_END}", ">"),
    (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
    (r"\\langle(?![A-Za-z])", "("),
    (r"\\rangle(?![A-Za-z])", ")"),
    (r"\\lbrace(?![A-Za-z])", r"\\{"),
    (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"\\[lr]?vert(?![A-Za-z])", "|"),
    (r"\\sqrt\s*(\d+)", r"\\sqrt{\1}"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
    (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
    (r"(?<!\\)\\([$%#&])", r"\1"),
    (r"\\(?:lor|vee)(?![A-Za-z])", " or "),
    (r"(?<![\d.,])(\d{1,3}(?: \d{3})+)(?![\d ]*\d)", lambda match: match[1].replace(" ", ",")),
    (r"(?<![\d.,])(\d{1,2}(?:,\d{2})+,\d{3})(?![\d,])", lambda match: match[1].replace(",", "")),
    (r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+),(\d+)(?![\d,.])", lambda match: f"{match[1].replace('.', '')}.{match[2]}"),
    (r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d,.])", lambda match: match[0].replace(".", "")),
    (r"_\{(\w)\}", r"_\1"),
    (r"\s+", " "),
]
_REWRITES = [(re.compile(pattern), by) for pattern, by in _RULES]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MATRIX_ROW = re.compile(r"\\\\(?=[A-Za-z])")
_DOLLARS = re.compile(r"^\$+(?P<inside>(?:\\\$|[^$])*[^\\$])\$+(?P<after>.*)$", re.DOTALL)


def normalize(answer: str) -> str:
    if _NUMBER.fullmatch(answer):
        return answer
    answer = re.sub(r"^\\+(?:boxed|fbox)\s*\{", "", answer.strip())
    answer = answer.replace("**", "^") if re.search(r"[\w)]\*\*[\w(]", answer) else answer.replace("**", "")
    enclosed = _DOLLARS.fullmatch(answer)
    if enclosed:
        answer = f"{enclosed['inside']} {enclosed['after']}".strip()
    answer = _UNICODE_SIGNS.sub(lambda match: _UNICODE[match[0]], answer)
    if "\\begin" not in answer:
        answer = _MATRIX_ROW.sub(r"\\", answer)  # escaped once too often
    for pattern, by in _REWRITES:
        answer = pattern.sub(by, answer)
    return answer.strip().rstrip(".,;:\\").strip()


def without_spaces(answer: str) -> str:
    """The answer without white space, except between digits: 1 2 is not 12."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", answer)
