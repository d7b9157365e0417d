"""Finds the program in an answer. It is only extracted here, never compiled: that happens in the sandbox."""

import ast
from functools import lru_cache
from typing import NamedTuple

LABELS = {"python": {"python", "py", "python3"}, "javascript": {"javascript", "js", "node"}, "cpp": {"cpp", "c++"}}
"""The labels of a language's code fences, for languages that have more than their own name."""
MAX_BLOCKS = 4
"""How many blocks, counted from the end of an answer, are tried to find one that defines the entry."""


class AnswerProgram(NamedTuple):
    sources: list[str]
    """Possible sources, the most likely first; the first valid one is run. Empty if the answer has no program."""
    fenced: bool
    """Whether the answer marks it as code. If it is not valid, it is then a bad program and not just other text."""


def find_program(text: str, language: str = "python", entry: str | None = None, prompt: str = "") -> AnswerProgram:
    """The last fenced block with the language's label, else without a label, else with any; else the whole text.

    With `entry` (the name of the required function) earlier blocks are possible sources too, in case the last does not
    define it. With `prompt` (a program that the answer continues) each block is also tried as its continuation.
    """
    text = text.rpartition("</think>")[2]
    blocks = _blocks(text)
    labels = LABELS.get(language, {language})
    bodies = [body for label, body in blocks if label in labels]
    bodies = bodies or [body for label, body in blocks if not label] or [body for _, body in blocks]
    bodies = [body for body in reversed(bodies) if body.strip()]
    if not blocks and text.strip():
        return AnswerProgram([text, *_continuations(prompt, text)], fenced=False)
    if entry is None:
        return AnswerProgram(bodies[:1], fenced=True)
    bodies = bodies[:MAX_BLOCKS]
    continued = [source for body in bodies for source in _continuations(prompt, body)]
    return AnswerProgram([*bodies, *continued], fenced=True)


def _blocks(text: str) -> list[tuple[str, str]]:
    """The label and the body of each fenced block, without the indent of its fence. A block that is never closed ends
    with the text."""
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


def _continuations(prompt: str, text: str) -> list[str]:
    """The prompt's program followed by the text: by all of it, by its first indented lines, or by the text with the
    first line's indent restored."""
    if not prompt:
        return []
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    bodies = [text, "\n".join(lines[:end]), f"    {text.lstrip()}"]
    return [f"{prompt.rstrip()}\n{body.lstrip(chr(10))}\n" for body in dict.fromkeys(bodies) if body.strip()]


@lru_cache(maxsize=256)
def unfinished_functions(prompt: str) -> frozenset[str]:
    """The functions that a prompt's program declares without a body: the answer must define them."""
    functions = [node for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if all(map(_is_placeholder, node.body)))


def _is_placeholder(statement: ast.stmt) -> bool:
    """Whether it is a docstring, `pass`, `...`, or `raise NotImplementedError`."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, ast.Pass | ast.Raise)


@lru_cache(maxsize=256)
def prompt_program(prompt: str) -> str:
    """The prompt, if it is a program that an answer can continue (imports, helpers, a function's head); else ""."""
    for program in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        try:
            if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(program).body):
                return program
        except (SyntaxError, ValueError):
            continue
    return ""
