"""What the documentation's pages hold: their fenced blocks, and the commands in these.

A block of `bash` holds commands only. One of `console` holds commands behind `$ ` and what they print. A block with the
class `theirs` shows another project's files and is nobody's to run.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^(?P<indent> *)```+ *(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```+ *$", re.MULTILINE | re.DOTALL
)
_RUNS = ("bash", "sh", "console")
_PROGRAMS = re.compile(r"(?:freerun|make|python3?|pip) ")


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str


def pages() -> list[Path]:
    """Every page that a person reads to use Freerun; notes on decisions tell of what was typed long ago."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if "decisions" not in page.parts)]


def blocks(*languages: str) -> Iterator[Block]:
    """The blocks of these languages, or all; those of other projects are left out."""
    for page in pages():
        for found in _BLOCK.finditer(page.read_text()):
            words = found["kind"].replace("{", " ").replace("}", " ").split()
            language = words[0].lstrip(".") if words else ""
            if ".theirs" not in words and (not languages or language in languages):
                yield Block(str(page.relative_to(ROOT)), language, textwrap.dedent(found["text"]))


def commands() -> dict[str, str]:
    """Every command, without its comment, and the page that has it first."""
    found: dict[str, str] = {}
    for block in blocks(*_RUNS):
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "console" and not line.startswith("$ "):
                continue
            if command := plain(line.removeprefix("$ ")):
                found.setdefault(command, block.page)
    return found


def plain(line: str) -> str:
    """A command as it is typed: without a comment behind it, with one blank between words."""
    reader = shlex.shlex(line, posix=False, punctuation_chars=False)
    reader.whitespace_split, reader.commenters = True, "#"
    return " ".join(reader)


def commands_elsewhere() -> list[str]:
    """Lines that look like commands, in blocks that no test runs."""
    others = (block for block in blocks() if block.language in ("", "text"))
    return [line for block in others for line in block.text.splitlines() if _PROGRAMS.match(line)]
