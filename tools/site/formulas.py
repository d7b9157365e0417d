"""Formulas of the site, from LaTeX to MathML when it is built: browsers draw them, without JavaScript or fonts of ours.

In a page a formula is `$…$` within a line, or `$$…$$` in lines of its own.
"""

import html
import re

from latex2mathml.converter import convert

_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)  # what pymdownx.arithmatex makes of them


def with_formulas(page: str) -> str:
    """The page's HTML, with MathML in place of each formula."""
    return _MARKED.sub(_drawn, page)


def _drawn(found: re.Match[str]) -> str:
    display = "block" if found["tag"] == "div" else "inline"
    drawn = convert(html.unescape(found["latex"]).strip(), display=display)
    return f'<div class="formula">{drawn}</div>' if display == "block" else drawn
