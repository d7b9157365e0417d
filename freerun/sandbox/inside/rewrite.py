"""Rewrites tests before they run, so that they mean what they would if the program were in the same process.

- Before each statement, changes that the program made to the tests' containers are applied (`__before_statement__`);
  not sooner, so that `assert f(values) == sorted(values)` compares with what `values` was.
- Before a statement that asserts something, that is counted (`__before_assertion__`).
- `is` treats a copy of a container as the container itself (`__is__`).
- The body of `if __name__ == "__main__":` runs, and exiting in it (`sys.exit(pytest.main())`) ends only that body
  (`__on_exit__`).
"""

import ast
from collections.abc import Iterable
from types import CodeType
from typing import TypeGuard

from freerun.sandbox.inside.assertions import is_assertion

FILE = "tests.py"
_UNINSTRUMENTED: tuple[type[ast.stmt], ...] = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass),
    *(ast.Global, ast.Nonlocal),
)


def instrument(tree: ast.Module) -> CodeType:
    """Rewrite the tree, in place and in one pass because this happens for every answer, and compile it."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Compare):
            _replace_is(node)
            continue
        if isinstance(node, ast.If) and "__name__" in {name.id for name in ast.walk(node.test) if _is_name(name)}:
            _catch_exit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, list(_with_calls_before(statements)))
    return compile(tree, FILE, "exec", dont_inherit=True)


def dotted_names(tree: ast.Module) -> set[str]:
    """Names with a dot after them, which may be modules that the tests forgot to import."""
    nodes = ast.walk(tree)
    return {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}


def required_modules(tree: ast.AST) -> set[str]:
    """The modules that it cannot run without: those it imports outside a `try`."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.stmt | ast.match_case) and not isinstance(node, ast.Try) and hasattr(node, "body"):
            found |= required_modules(node)
    return found


def _replace_is(node: ast.Compare) -> None:
    """Turn `a is b` into `__is__(a, b) is True`."""
    match node:
        case ast.Compare(left, [ast.Is() | ast.IsNot()], [right]) if not (_is_constant(left) or _is_constant(right)):
            node.left = _call("__is__", node, left, right)
            node.comparators = [ast.Constant(True, lineno=node.lineno, col_offset=node.col_offset)]


def _catch_exit(node: ast.If) -> None:
    """Put the body in `try: … except SystemExit as leaving: __on_exit__(leaving)`."""
    place = {"lineno": node.lineno, "col_offset": node.col_offset}
    on_exit = ast.Expr(_call("__on_exit__", node, ast.Name("leaving", ast.Load(), **place)), **place)
    handler = ast.ExceptHandler(ast.Name("SystemExit", ast.Load(), **place), "leaving", [on_exit], **place)
    node.body = [ast.Try(list(_with_calls_before(node.body)), [handler], [], [], **place)]


def _with_calls_before(statements: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for statement in statements:
        is_text = isinstance(statement, ast.Expr) and _is_constant(statement.value)
        if not isinstance(statement, _UNINSTRUMENTED) and not is_text:
            asserts = is_assertion(statement)
            call = _call("__before_assertion__" if asserts else "__before_statement__", statement)
            yield ast.Expr(call, lineno=statement.lineno, col_offset=statement.col_offset)
        yield statement


def _call(name: str, where: ast.stmt | ast.expr, *arguments: ast.expr) -> ast.Call:
    place = {"lineno": where.lineno, "col_offset": where.col_offset}
    return ast.Call(ast.Name(name, ast.Load(), **place), list(arguments), [], **place)


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)
