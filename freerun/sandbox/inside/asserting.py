"""Whether tests assert anything, told by their looks: before a run, of all that would be run of them."""

import ast
import re
from collections.abc import Iterator

_CHECKS = re.compile(r"assert|raises|warns|^fail", re.IGNORECASE)
_LEAVES = {"exit", "_exit", "quit", "abort"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Branching = ast.If | ast.Try | ast.Match | ast.While


def asserts_something(source: str) -> bool:
    """Whether some statement that is run when the tests are could fail them."""
    tree = ast.parse(source)
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef)}
    waiting: list[ast.AST] = [node for node in tree.body if not isinstance(node, _Function | ast.ClassDef)]
    waiting += [node for node in tree.body if isinstance(node, _Function | ast.ClassDef) and is_collected(node)]
    waiting += _candidates(tree)
    seen = {id(node) for node in waiting}
    while waiting:
        node = waiting.pop()
        for inner in ast.walk(node):
            if may_fail(inner):
                return True
            name = inner.id if isinstance(inner, ast.Name) else inner.attr if isinstance(inner, ast.Attribute) else ""
            if (used := defined.get(name)) is not None and id(used) not in seen:
                seen.add(id(used))
                waiting.append(used)
    return False


def is_collected(node: ast.stmt) -> bool:
    """A definition that is run for its name: `check`, `test…`, a class `Test…` or a TestCase."""
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        is_case = node.name.startswith("Test") or any(base.endswith("TestCase") for base in bases)
        return is_case and any(isinstance(part, _Function) and part.name.startswith("test") for part in node.body)
    return isinstance(node, _Function) and (node.name == "check" or node.name.startswith("test"))


def _candidates(tree: ast.Module) -> list[ast.stmt]:
    """Where nothing has a telling name: functions that are given the candidate."""
    if any(is_collected(node) for node in tree.body):
        return []
    functions = (node for node in tree.body if isinstance(node, _Function))
    return [node for node in functions if [arg.arg for arg in node.args.args] == ["candidate"]]


def may_fail(node: ast.AST) -> bool:
    """An assertion, or what stands for one."""
    match node:
        case ast.Assert(test=ast.Constant(value=value)):
            return not value
        case ast.Assert() | ast.Raise():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
            return bool(_CHECKS.search(name)) or (name in _LEAVES and any(map(_is_failure, args)))
    return False


def _is_failure(code: ast.expr) -> bool:
    return bool(code.value) if isinstance(code, ast.Constant) else not isinstance(code, ast.Call)


def is_an_assertion(node: ast.stmt) -> bool:
    """Whether coming to this statement is to assert something: one that asserts in a branch counts as a whole."""
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
    """It and what is in it, but for what it only defines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.ClassDef | ast.Lambda):
            yield from _within(child)
