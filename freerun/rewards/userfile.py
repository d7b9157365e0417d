"""A judge of the user's own: `path/to/file.py:function`.

`check_function` reads the file and runs none of it, so that the controller can refuse a mistake at once without
importing whatever the user's file imports. `load_function` does import it, in a worker.
"""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from freerun.core import ConfigError


def check_function(judge: str) -> None:
    path, name = split_judge(judge)
    if not path.is_file():
        near = get_close_matches(path.name, _neighbours(path), n=1)
        raise ConfigError(f"there is no file {path} (from {Path.cwd()}) for the judge {judge}{_hint(near)}")
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{path}{line}: not valid Python: {error.args[0]}") from None
    bound = dict(_bound_names(tree))
    if name not in bound and "*" not in bound:
        raise ConfigError(f"{path} has no function {name}{_hint(get_close_matches(name, bound, n=1))}")
    _check_shape(path, name, bound.get(name))


def load_function(judge: str) -> Callable[..., Any]:
    """Import the file, as a program in its own folder would be, and take the function."""
    path, name = split_judge(judge)
    path = path.resolve()
    module_name = f"freerun_judge_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file: the judge must be FILE.py:FUNCTION")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    function = vars(module).get(name)
    if not callable(function):
        raise ConfigError(f"{path} has no function {name}")
    loaded: Callable[..., Any] = function
    return loaded


def split_judge(judge: str) -> tuple[Path, str]:
    file, _, name = judge.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(f'the judge "{judge}" must be FILE.py:FUNCTION')
    return Path(file).expanduser(), name


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every name that the module binds at its top level, under an `if` or `try` too, and what binds it."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
                continue
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield (alias.asname or alias.name).partition(".")[0], node
            case ast.Name(ctx=ast.Store()):
                yield node.id, node
        waiting.extend(ast.iter_child_nodes(node))


def _check_shape(path: Path, name: str, node: ast.AST | None) -> None:
    if isinstance(node, ast.AsyncFunctionDef):
        raise ConfigError(f"{path}:{node.lineno}: {name} is async: a judge is a plain `def {name}(task, text)`")
    if isinstance(node, ast.FunctionDef) and not node.decorator_list and not _takes_two(node.args):
        raise ConfigError(f"{path}:{node.lineno}: {name} must take two arguments: `def {name}(task, text) -> float`")


def _takes_two(args: ast.arguments) -> bool:
    places = len(args.posonlyargs) + len(args.args)
    required = places - len(args.defaults)
    required_by_name = [default for default in args.kw_defaults if default is None]
    return required <= 2 and (places >= 2 or args.vararg is not None) and not required_by_name


def _neighbours(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.glob("*.py")]


def _hint(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""
