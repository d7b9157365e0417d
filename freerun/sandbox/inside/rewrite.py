"""Tests, rewritten before they are run, so that they mean what they would if the program were in the same process.

- Before each statement, what the program did to lists and dictionaries of the tests' is done to them
  (`__statement__`); not sooner, so that `assert f(values) == sorted(values)` compares with what `values` was.
- Before a statement that asserts something, that is counted (`__assertion__`).
- `is` looks through copies (`__is__`).
- `if __name__ == "__main__":` is run, and leaving it (`sys.exit(pytest.main())`) leaves only it (`__leaving__`).
"""

import ast
from collections.abc import Iterable
from types import CodeType
from typing import TypeGuard

from freerun.sandbox.inside.asserting import is_an_assertion

FILE = "tests.py"
_NOTHING: tuple[type[ast.stmt], ...] = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass),
    *(ast.Global, ast.Nonlocal),
)


def rewritten(tree: ast.Module) -> CodeType:
    """Changes the tree, in one pass: this is done for every answer."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Compare):
            _look_through_copies(node)
            continue
        if isinstance(node, ast.If) and "__name__" in {name.id for name in ast.walk(node.test) if _is_name(name)}:
            _leave_only_it(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, list(_announced(statements)))
    return compile(tree, FILE, "exec", dont_inherit=True)


def dotted(tree: ast.Module) -> set[str]:
    """Names with a dot behind, as of a module that somebody forgot to import."""
    nodes = ast.walk(tree)
    return {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}


def imported(tree: ast.AST) -> set[str]:
    """Modules without which it cannot be run: those it imports, but for what it tries to."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.stmt | ast.match_case) and not isinstance(node, ast.Try) and hasattr(node, "body"):
            found |= imported(node)
    return found


def _look_through_copies(node: ast.Compare) -> None:
    """`a is b` becomes `__is__(a, b) is True`."""
    match node:
        case ast.Compare(left, [ast.Is() | ast.IsNot()], [right]) if not (_is_constant(left) or _is_constant(right)):
            node.left = _call("__is__", node, left, right)
            node.comparators = [ast.Constant(True, lineno=node.lineno, col_offset=node.col_offset)]


def _leave_only_it(node: ast.If) -> None:
    place = {"lineno": node.lineno, "col_offset": node.col_offset}
    leave = ast.Expr(_call("__leaving__", node, ast.Name("leaving", ast.Load(), **place)), **place)
    handler = ast.ExceptHandler(ast.Name("SystemExit", ast.Load(), **place), "leaving", [leave], **place)
    node.body = [ast.Try(list(_announced(node.body)), [handler], [], [], **place)]


def _announced(statements: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for statement in statements:
        is_text = isinstance(statement, ast.Expr) and _is_constant(statement.value)
        if not isinstance(statement, _NOTHING) and not is_text:
            call = _call("__assertion__" if is_an_assertion(statement) else "__statement__", statement)
            yield ast.Expr(call, lineno=statement.lineno, col_offset=statement.col_offset)
        yield statement


def _call(name: str, where: ast.stmt | ast.expr, *arguments: ast.expr) -> ast.Call:
    place = {"lineno": where.lineno, "col_offset": where.col_offset}
    return ast.Call(ast.Name(name, ast.Load(), **place), list(arguments), [], **place)


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)
