"""Compares answers in words: the letter of a multiple choice, yes and no, names, dates."""

import re

_SYNONYMS = {"true": "yes", "false": "no", "correct": "yes", "incorrect": "no"}
_SHORT = frozenset({"yes", "no", "true", "none", "odd"})
"""Short words. Other short strings of letters, such as abc, may be products."""


def choice(answer: str) -> str | None:
    """The letter of a multiple choice, written C or (C)."""
    match = re.fullmatch(r"\(\s*([A-J])\s*\)|([A-J])", answer)
    return match and (match[1] or match[2])


def chosen(answer: str) -> str | None:
    """The chosen letter, if a letter is expected: also in C) 12 and Option C."""
    match = re.match(r"(?:(?:option|choice)\s+)?\(?\s*(?P<letter>[A-J])\s*(?:\)|[.:](?=\s)|$)", answer, re.IGNORECASE)
    if match is None or re.search(r"\b[A-J]\)|\b(?:or|and|not)\b", answer[match.end() :]):
        return None
    return match["letter"].upper()


def same_words(found: str, expected: str) -> bool | None:
    """Whether two answers in words are the same; None if neither is in words. Yes is yes, but abc is not ABC."""
    one, other = _words(found), _words(expected)
    alike = one == other != "" and (len(one) > 3 or one in _SHORT or found.isupper() == expected.isupper())
    if found.isalpha() and expected.isalpha() and (found.isupper() or expected.isupper()) and len(found + expected) > 2:
        return alike  # names of points, whose order matters
    if not (_is_words(found) or _is_words(expected)):
        return True if alike and found.isalpha() and expected.isalpha() and len(found) > 1 else None
    return alike


def _is_words(answer: str) -> bool:
    """Whether it is made of words; abc may be a product, and 5 apples is a number."""
    if re.search(r"[\d=<>+^_{}\\|/]", answer):
        return re.fullmatch(r"[A-Za-z]{3,}\.? \d{1,2}(?:st|nd|rd|th)?(?:,? \d{4})?", answer) is not None
    runs = re.findall(r"[A-Za-z]+", answer)
    spaced = len(runs) > 1 and re.search(r"[A-Za-z]{2,}[\s,]+[A-Za-z]{2,}", answer) is not None
    return any(len(run) > 4 or run.lower() in _SHORT for run in runs) or spaced


def _words(answer: str) -> str:
    words = re.findall(r"[a-z0-9]+", re.sub(r"\b(?:the|a|an|it is|they are)\s", "", answer.casefold().replace("'", "")))
    return "".join(_SYNONYMS.get(word, word) for word in words)
