"""A program's source: how it arrives, which of several sources is chosen, and the environment it finds."""

import ast
import builtins
import json
import os
import re
import sys
from _sitebuiltins import Quitter
from collections.abc import Iterator
from types import CodeType
from typing import Any

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
_NOT_A_NAME = re.compile(r"\W")
"""What ends the name at the start of `Solution().method`."""


class Unreadable(Exception):
    """None of the sources is valid Python."""


def read_json(descriptor: int) -> dict[str, Any]:
    with open(descriptor, "rb") as file:
        file.seek(0)
        value: dict[str, Any] = json.loads(file.read())
    return value


def prepare_interpreter() -> None:
    """Give the program what it would find under `python main.py`."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, "/tmp")
    for name in ("exit", "quit"):
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))


def set_variable(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def choose(program: dict[str, Any]) -> CodeType:
    """The first source that compiles and defines the entry; if none defines it, the first that compiles."""
    compiled, first_error = None, ""
    for source in program["sources"]:
        try:
            tree = ast.parse(source, "main.py")
            code = compile(tree, "main.py", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            first_error = first_error or f"{type(error).__name__}: {error}"
            continue
        compiled = compiled or code
        if program["entry"] is None or _NOT_A_NAME.split(program["entry"])[0] in _defined_names(tree):
            compiled = code
            break
    if compiled is None:
        raise Unreadable(first_error)
    return compiled


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name) for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
