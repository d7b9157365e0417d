"""The program in an answer. Only cut out here, never compiled: what a policy wrote is read in the sandbox alone."""

import ast
from functools import lru_cache
from typing import NamedTuple

NAMES = {"python": {"python", "py", "python3"}, "javascript": {"javascript", "js", "node"}, "cpp": {"cpp", "c++"}}
"""What a language is called on a fence, where it is called more than its name."""
MAX_BLOCKS = 4
"""How many blocks of an answer are looked at, from its end, for the one that defines what is asked for."""


class Reading(NamedTuple):
    sources: list[str]
    """Ways to read the answer, the best first. None: there is no program in it."""
    fenced: bool
    """It was marked as a program, so that if it is none, it is a bad one."""


def read(text: str, language: str = "python", entry: str | None = None, prompt: str = "") -> Reading:
    """The last fenced block of the language, else of none, else of any, else all the text.

    With `entry` (the function asked for) the blocks before are ways to read it too, should the last not define it. With
    `prompt` (a program that ends where the answer begins) every way is tried as its continuation as well.
    """
    text = text.rpartition("</think>")[2]
    blocks = _blocks(text)
    wanted = NAMES.get(language, {language})
    chosen = [body for label, body in blocks if label in wanted]
    chosen = chosen or [body for label, body in blocks if not label] or [body for _, body in blocks]
    chosen = [body for body in reversed(chosen) if body.strip()]
    if not blocks and text.strip():
        return Reading([text, *_continued(prompt, text)], fenced=False)
    if entry is None:
        return Reading(chosen[:1], fenced=True)
    chosen = chosen[:MAX_BLOCKS]
    return Reading([*chosen, *(way for body in chosen for way in _continued(prompt, body))], fenced=True)


def _blocks(text: str) -> list[tuple[str, str]]:
    """Label and body of each fenced block, as far to the left as its fence. One that is never closed goes to the end of
    the text."""
    blocks: list[tuple[str, str]] = []
    fence, label, indent, body = "", "", 0, list[str]()
    for line in text.split("\n"):
        stripped = line.strip()
        if fence and stripped.startswith(fence) and not stripped.strip(fence[0]):
            blocks.append((label, "\n".join(body)))
            fence = ""
        elif fence:
            body.append(line[min(indent, len(line) - len(line.lstrip())) :])
        elif stripped.startswith(("```", "~~~")):
            rest = stripped.lstrip(stripped[0])
            fence = stripped[: len(stripped) - len(rest)]
            label, body = rest.strip().partition(" ")[0].lower(), []
            indent = len(line) - len(line.lstrip())
    if fence:
        blocks.append((label, "\n".join(body)))
    return blocks


def _continued(prompt: str, text: str) -> list[str]:
    """The prompt's program and what goes on with it: all of it, as far as it is indented, or with a lost indent."""
    if not prompt:
        return []
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    ways = [text, "\n".join(lines[:end]), f"    {text.lstrip()}"]
    return [f"{prompt.rstrip()}\n{way.lstrip(chr(10))}\n" for way in dict.fromkeys(ways) if way.strip()]


@lru_cache(maxsize=256)
def left_open(header: str) -> frozenset[str]:
    """The functions of a prompt that it only heads: what the answer is to define."""
    functions = [node for node in ast.parse(header).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if all(map(_is_nothing, node.body)))


def _is_nothing(statement: ast.stmt) -> bool:
    """A docstring, `pass`, `...`, or that it is not implemented."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, ast.Pass | ast.Raise)


@lru_cache(maxsize=256)
def header(prompt: str) -> str:
    """The prompt, if it is a program that an answer may go on with: imports, helpers, and the head of a function."""
    for program in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        try:
            if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(program).body):
                return program
        except (SyntaxError, ValueError):
            continue
    return ""
