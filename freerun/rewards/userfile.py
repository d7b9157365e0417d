"""A judge of the user's own: `path/to/file.py:function`.

`check_function` reads the file and runs none of it, so that the controller can refuse a mistake at once without
importing whatever the user's file imports. `load_function` does import it, in a worker.
"""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from freerun.core import ConfigError
from freerun.core.text import did_you_mean


def check_function(judge: str, options: Iterable[str] = ()) -> None:
    """`options` are the names of what it will be given besides the task and the text."""
    path, name = split_judge(judge)
    if not path.is_file():
        near = did_you_mean(path.name, (entry.name for entry in path.parent.glob("*.py")))
        raise ConfigError(f"there is no file {path} (from {Path.cwd()}) for the judge {judge}{near}")
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{path}{line}: not valid Python: {error.args[0]}") from None
    bound = dict(_bound_names(tree))
    if name not in bound and "*" not in bound:
        raise ConfigError(f"{path} has no function {name}{did_you_mean(name, bound)}")
    _check_shape(path, name, bound.get(name), set(options))


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


def _check_shape(path: Path, name: str, node: ast.AST | None, options: set[str]) -> None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return
    named = [argument.arg for argument in node.args.args[2:] + node.args.kwonlyargs]
    for option in sorted(options - set(named)):
        if node.args.kwarg is None:
            near = did_you_mean(option, named)
            raise ConfigError(f'{path}:{node.lineno}: {name} has no argument "{option}"{near}')
    if not _takes_two(node.args, options):
        raise ConfigError(
            f"{path}:{node.lineno}: {name} must take two arguments: `def {name}(task, text) -> float`; others need a "
            "default, or a value beside the judge's name"
        )


def _takes_two(args: ast.arguments, options: set[str]) -> bool:
    """Whether it can be called with a task, a text, and these options by name."""
    places = args.posonlyargs + args.args
    required = {argument.arg for argument in places[2 : len(places) - len(args.defaults)]}
    required |= {
        argument.arg for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None
    }
    return required <= options and (len(places) >= 2 or args.vararg is not None)
