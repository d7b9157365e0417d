"""Tests mean what they would if the program were in the same process, and are found and run however they are written.

Every program here is right, or wrong, as plain Python has it; by each of the sandboxes that this machine has.
"""

from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from freerun.core import Task
from freerun.rewards.code import judge as judging
from freerun.rewards.code.judge import Code
from freerun.sandbox.base import Backend, FunctionTests, Limits
from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import open_sandbox
from tests.sandbox.plain_python import AS_PLAIN_PYTHON


@pytest.fixture(scope="module", params=list(Backend))
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with open_sandbox(request.param) as sandbox:
        yield sandbox


LIST_NODE = """
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
"""
LISTS = """
def build(values):
    head = None
    for value in reversed(values): head = ListNode(value, head)
    return head
def to_list(node):
    values = []
    while node:
        values.append(node.val)
        node = node.next
    return values
"""
REVERSE = """
def turn(head):
    before = None
    while head: head.next, before, head = before, head, head.next
    return before
"""
REVERSE_INTO_NEW_NODES = """
def turn(head):
    first = ListNode(0)
    while head:
        first.next = ListNode(head.val, first.next)
        head = head.next
    return first.next
"""


def passes(sandbox: Sandbox, program: str, *tests: str, **spec: Any) -> bool:
    function_tests = FunctionTests(**spec, tests=[dedent(test) for test in tests])
    result = sandbox.run_tests([dedent(program)], function_tests, Limits(cpu_s=4, wall_s=8))
    passed = result.finished and result.results == (True,) * len(tests)
    return passed or bool(print(result))  # pytest shows it if the test fails


@pytest.mark.parametrize("name", AS_PLAIN_PYTHON)
def test_tests_behave_as_in_plain_python(sandbox: Sandbox, name: str) -> None:
    program, tests = AS_PLAIN_PYTHON[name]
    assert passes(sandbox, program, *tests)


@pytest.mark.parametrize("turn", [REVERSE, REVERSE_INTO_NEW_NODES])
def test_helpers_may_be_defined_anywhere(sandbox: Sandbox, turn: str) -> None:
    """In the prompt, in the setup, in the tests, in the answer, or in two of them."""
    helpers, check = LIST_NODE + LISTS, "assert to_list(turn(build([1, 2, 3]))) == [3, 2, 1]"
    assert passes(sandbox, turn, check, header=helpers)
    assert passes(sandbox, turn, check, setup=helpers)
    assert passes(sandbox, turn, f"{helpers}\n{check}")
    assert passes(sandbox, LIST_NODE + turn, check, header=helpers)
    assert passes(sandbox, LIST_NODE + turn, f"{LISTS}\n{check}")
    assert passes(sandbox, LIST_NODE + turn, f"{helpers}\n{check}")
    method = "".join(f"    {line}\n" for line in turn.replace("(head)", "(self, head)").splitlines())
    check = "def check(candidate):\n    assert to_list(candidate(head=build([1, 2]))) == [2, 1]"
    assert passes(sandbox, f"class Solution:\n{method}", check, header=helpers, entry="Solution().turn")


def test_functions_named_like_builtins(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    monkeypatch.setattr(judging, "_sandbox", lambda: sandbox)
    product = "def sum(a, b): return a * b"
    for extra in (
        {"test_list": ["assert sum(2, 3) == 6", "assert abs(sum(1, 1) - 1) < 1e-9"]},
        {"test": "def check(candidate):\n    assert candidate(2, 3) == 6", "entry_point": "sum"},
        {"test": "assert sum(2, 3) == 6", "prompt": "def sum(a, b):\n"},
        {"test": "from solution import sum\ndef test(): assert sum(2, 3) == 6"},
    ):
        task = Task("t", "", [], extra=extra)
        assert Code()(task, product).reward == 1.0
        assert Code()(task, "def sum(a, b): return 7\ndef abs(x): return 0").reward == 0.0


LOOPHOLES: dict[str, tuple[str, str]] = {
    "stopping a map": ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
    "stopping a map from within": ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == x, [1, 2]))"),
    "stopping a map by an iterator": ("def f(x): return iter([])", "assert all(map(lambda x: next(f(x)) == x, [1]))"),
    "an endless iterator": (
        "import itertools\ndef f(): return itertools.count(1)",
        "import operator\nassert all(map(operator.eq, f(), [1, 2, 3]))",
    ),
    "an iterator of nothing": (
        "def f(): return iter([])",
        "import operator\nassert all(map(operator.eq, f(), [1, 2, 3]))",
    ),
    "the tests' own list": ("def f(x):\n    x.clear()\n    return x", "v = [3, 1]\nassert f(v) == sorted(v)"),
    "a result that says what it equals": (
        "class Solution:\n    def f(self, n): return Solution()\n    def __eq__(self, other): return True",
        "assert Solution().f(3) == 9",
    ),
    "a result that is near": (
        "class Solution:\n    def f(self, n): return Solution()\n    def __sub__(self, other): return 0.0",
        "assert abs(Solution().f(3) - 9) < 1e-6",
    ),
    "no loop at all": ("def f(): return []", "for value in f(): assert value > 0"),
    "the way from a callback to all": (
        "def f(call):\n    for name in ('__globals__', '__code__', '__self__', 'gi_frame'):\n"
        "        try: getattr(call, name)\n        except AttributeError: continue\n        return 9\n    return 0",
        "def call(): pass\nassert f(call) == 9",
    ),
    "printing something else": (
        "def f(): print('x')",
        "def test_f(capsys):\n    f()\n    assert capsys.readouterr().out == 'y\\n'",
    ),
    "a base class that does nothing": (
        "class Base:\n    def __init__(self, n): pass",
        "class Derived(Base):\n    def twice(self): return 2 * self.n\nassert Derived(2).twice() == 4",
    ),
    "a patch that the program ignores": (
        "def f(): return 3",
        "import random\ndef test_f(monkeypatch):\n    monkeypatch.setattr(random, 'randint', lambda a, b: 6)\n"
        "    assert f() == 6",
    ),
    # exceptions that the answer causes in the tests are not the tests' fault
    "text that is no Python": ("def f(x): return ')('", "assert eval(f(1)) == 1"),
    "a module that is not there": (
        "def f(x): return 'no_such'",
        "assert __import__(f(1))",
    ),
    "an import error": ("def f(x): raise ImportError('no')", "assert f(1) == 1"),
    "an object as an argument": ("def f(x): raise SyntaxError", "class Own: pass\nassert f(Own()) == 1"),
}


@pytest.mark.parametrize("name", LOOPHOLES)
def test_loopholes_are_closed(sandbox: Sandbox, name: str) -> None:
    program, test = LOOPHOLES[name]
    assert not passes(sandbox, program, test)


def test_map_accepts_iterators_of_the_right_length(sandbox: Sandbox) -> None:
    assert passes(sandbox, "def f(): return iter([1, 2])", "from operator import *\nassert all(map(eq, f(), [1, 2]))")
