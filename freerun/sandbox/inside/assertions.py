"""Whether tests assert anything, judged from their source before a run."""

import ast
import re
from collections.abc import Iterator

_CHECKS = re.compile(r"assert|raises|warns|^fail", re.IGNORECASE)
_EXITS = {"exit", "_exit", "quit", "abort"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Branching = ast.If | ast.Try | ast.Match | ast.While


def asserts_something(source: str) -> bool:
    """Whether running the tests executes a statement that could fail: at the top level, in a collected test, or in a
    function that one of those uses."""
    tree = ast.parse(source)
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef)}
    queue: list[ast.AST] = [node for node in tree.body if not isinstance(node, _Function | ast.ClassDef)]
    queue += [node for node in tree.body if isinstance(node, _Function | ast.ClassDef) and is_collected(node)]
    queue += _candidate_functions(tree)
    seen = {id(node) for node in queue}
    while queue:
        node = queue.pop()
        for inner in ast.walk(node):
            if may_fail(inner):
                return True
            name = inner.id if isinstance(inner, ast.Name) else inner.attr if isinstance(inner, ast.Attribute) else ""
            if (used := defined.get(name)) is not None and id(used) not in seen:
                seen.add(id(used))
                queue.append(used)
    return False


def is_collected(node: ast.stmt) -> bool:
    """Whether a definition is run because of its name: `check`, `test…`, a class `Test…` or a TestCase."""
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        is_case = node.name.startswith("Test") or any(base.endswith("TestCase") for base in bases)
        return is_case and any(isinstance(item, _Function) and item.name.startswith("test") for item in node.body)
    return isinstance(node, _Function) and (node.name == "check" or node.name.startswith("test"))


def _candidate_functions(tree: ast.Module) -> list[ast.stmt]:
    """If nothing is collected by its name: the functions whose only parameter is `candidate`."""
    if any(is_collected(node) for node in tree.body):
        return []
    functions = (node for node in tree.body if isinstance(node, _Function))
    return [node for node in functions if [arg.arg for arg in node.args.args] == ["candidate"]]


def may_fail(node: ast.AST) -> bool:
    """Whether it is an assertion, or something used as one."""
    match node:
        case ast.Assert(test=ast.Constant(value=value)):
            return not value
        case ast.Assert() | ast.Raise():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
            return bool(_CHECKS.search(name)) or (name in _EXITS and any(map(_is_failure, args)))
    return False


def _is_failure(code: ast.expr) -> bool:
    """Whether an exit code may mean failure."""
    return bool(code.value) if isinstance(code, ast.Constant) else not isinstance(code, ast.Call)


def is_assertion(node: ast.stmt) -> bool:
    """Whether reaching this statement counts as asserting something. One with an assertion in any branch does."""
    if may_fail(node):
        return True
    if isinstance(node, _Branching):
        return any(map(may_fail, _within(node)))
    if isinstance(node, ast.For | ast.AsyncFor):
        return any(map(may_fail, ast.walk(node.iter)))
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(may_fail(inner) for item in node.items for inner in ast.walk(item))
    return any(map(may_fail, _within(node)))


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The node and its descendants, except the bodies of definitions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.ClassDef | ast.Lambda):
            yield from _within(child)
