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
from typing import Any

from freerun.rewards.sandbox.inside.asserting import is_an_assertion

FILE = "tests.py"
_NOTHING: tuple[type[ast.stmt], ...] = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass),
    *(ast.Global, ast.Nonlocal),
)


def rewritten(tree: ast.Module) -> CodeType:
    return compile(ast.fix_missing_locations(_Rewriter().visit(tree)), FILE, "exec", dont_inherit=True)


def dotted(tree: ast.Module) -> set[str]:
    """Names with a dot behind, as of a module that somebody forgot to import."""
    nodes = ast.walk(tree)
    return {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}


def imported(tree: ast.Module) -> set[str]:
    """Modules without which it cannot be run: those it imports, but for what it tries to."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Try):
            continue
        waiting += ast.iter_child_nodes(node)
    return found


class _Rewriter(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, list(_announced(statements)))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as how], comparators=[right]) if not (
                isinstance(right, ast.Constant) or isinstance(node.left, ast.Constant)
            ):
                same = ast.copy_location(_call("__is__", node.left, right), node)
                return same if isinstance(how, ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same), node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if "__name__" not in {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}:
            return node
        leave = ast.Expr(_call("__leaving__", ast.Name("leaving", ast.Load())))
        handler = ast.ExceptHandler(ast.Name("SystemExit", ast.Load()), "leaving", [leave])
        node.body = [ast.copy_location(ast.Try(node.body, [handler], [], []), node.body[0])]
        return node


def _announced(statements: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for statement in statements:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, _NOTHING) and not is_text:
            name = "__assertion__" if is_an_assertion(statement) else "__statement__"
            yield ast.copy_location(ast.Expr(_call(name)), statement)
        yield statement


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
