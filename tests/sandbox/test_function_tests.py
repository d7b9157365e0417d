"""Tests of functions: snippets, calls, setup and header, and what is reported of them."""

import signal
import textwrap
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from freerun.core import RewardError
from freerun.sandbox.base import Ending, FunctionTests, Limits
from freerun.sandbox.inside.testrunner import same
from freerun.sandbox.sandbox import Sandbox


def results(sandbox: Sandbox, program: str, tests: FunctionTests) -> tuple[bool, ...]:
    result = sandbox.run_tests([textwrap.dedent(program)], tests, Limits(cpu_s=4, wall_s=8))
    assert result.finished, result
    return result.results


def test_asserts_of_many_kinds(sandbox: Sandbox) -> None:
    program = """
        import math
        LIMIT = 10
        class Stack:
            def __init__(self): self.items = []
            def push(self, item): self.items.append(item); return self
            def __len__(self): return len(self.items)
            def __eq__(self, other): return self.items == other.items
            def __iter__(self): return iter(self.items)
        def total(*values, start=0): return sum(values, start)
        def reverse(values): values.reverse()
        def count():
            n = 0
            while True: yield (n := n + 1)
        def apply(function, values): return [function(value) for value in values]
        def fail(): raise KeyError('x')
        def mean(values):
            import numpy
            return numpy.array(values).mean(axis=0), numpy.int64(len(values))
        def pair(): return {(1, 2): {3}, 'x': (None, b'y', 2**100, float('inf'), 1j)}
    """
    right = [
        "assert total(1, 2, start=3) == 6 and LIMIT == 10",
        "s = Stack()\nassert len(s.push(1).push(2)) == 2 and s.items == [1, 2] and list(s) == [1, 2] and 2 in s",
        "assert Stack().push(1) == Stack().push(1) and Stack().push(1) != Stack()",
        "v = [1, 2]\nreverse(v)\nassert v == [2, 1]",
        "c = count()\nassert next(c) == 1 and next(c) == 2\nfor n in c:\n    if n == 5: break",
        "assert apply(lambda x: x * 2, (n for n in (1, 2))) == [2, 4]",
        "try: fail()\nexcept KeyError as e: assert e.args == ('x',)\nelse: assert False",
        "r = pair()\nassert r == {(1, 2): {3}, 'x': (None, b'y', 2**100, math.inf, 1j)} and type(r['x']) is tuple",
        "from solution import total as t\nassert t(1) == 1",
        "def test_one(): assert total(1) == 1",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(total(2), 2)",
        "import numpy as np\nassert np.allclose(total(1, 2), 3) and mean(np.eye(2))[1] == 2",
    ]
    assert results(sandbox, program, FunctionTests(tests=right)) == (True,) * len(right)
    wrong = [
        "assert total(1) == 2",
        "assert Stack() == []",
        "def test_two(): assert total(1) == 2",
        "import unittest\nclass U(unittest.TestCase):\n    def test_it(self): self.assertEqual(total(2), 3)",
        "fail()",
        "nothing()",
        "raise SystemExit(0)",
    ]
    assert results(sandbox, program, FunctionTests(tests=wrong)) == (False,) * len(wrong)


def test_setup_and_header(sandbox: Sandbox) -> None:
    header = "import math\ndef twice(x): return 2 * x\ndef f(x):\n    '''Four times x.'''\n"
    tests = FunctionTests("f", header=header, setup="wanted = twice(math.floor(4.5))", tests=["assert f(2) == wanted"])
    assert results(sandbox, "def f(x): return twice(twice(x))", tests) == (True,)
    assert results(sandbox, "def twice(x): return 4\ndef f(x): return 4", tests) == (False,)  # the tests have their own


def test_calls(sandbox: Sandbox) -> None:
    calls: list[tuple[list[Any], list[Any]]]
    calls = [([[3, 1, 2]], [[1, 2, 3]]), ([[0.1 + 0.2]], [[0.3]]), ([[]], [[], None]), ([["b", "a"]], [["b", "a"]])]
    assert results(sandbox, "f = lambda v: tuple(sorted(v))", FunctionTests("f", calls=calls)) == (
        True,
        True,
        True,
        False,
    )
    solution = "class Solution:\n    def f(self, v): return sorted(v)"
    assert results(sandbox, solution, FunctionTests("f", calls=calls)) == (True, True, True, False)


def test_details_say_what_went_wrong(sandbox: Sandbox) -> None:
    result = sandbox.run_tests(["def f(x): return x"], FunctionTests("f", tests=["\nassert f(1) == 2"]))
    assert result.detail == "AssertionError (line 2 of the tests)"
    result = sandbox.run_tests(["def f(x): return x"], FunctionTests("f", calls=[([1], [2])]))
    assert result.detail == "AssertionError: f(1) is 1, not 2"
    result = sandbox.run_tests(["1 / 0"], FunctionTests("f", calls=[([1], [2])]))
    assert (result.detail, result.finished) == ("ZeroDivisionError: division by zero", False)
    result = sandbox.run_tests(["def f(:"], FunctionTests("f", calls=[([1], [2])]))
    assert result.unreadable.startswith("SyntaxError")
    crash = "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSEGV)"
    result = sandbox.run_tests([crash], FunctionTests("f", calls=[([1], [2])]))
    assert (result.ending, result.exit_code) == (Ending.SIGNAL, -signal.SIGSEGV)
    assert result.detail == "the program ended before the tests did"


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("assert f(1 ==", "never closed"),
        ("import a_module_that_is_not_there\nassert f(1) == 1", "a_module_that_is_not_there"),
    ],
)
def test_a_task_that_cannot_be_judged_is_not_the_answers_fault(sandbox: Sandbox, test: str, complaint: str) -> None:
    with pytest.raises(RewardError, match=complaint):
        sandbox.run_tests(["def f(x): return 1"], FunctionTests("f", tests=[test]))


def test_the_answer_cannot_say_that_the_task_is_at_fault(sandbox: Sandbox) -> None:
    for error in ("ImportError", "ModuleNotFoundError", "SyntaxError"):
        tests = FunctionTests(setup="f(1)", tests=["assert f(1) == 1"])
        assert not sandbox.run_tests([f"def f(x): raise {error}('no')"], tests).finished
        assert results(sandbox, f"def f(x): raise {error}('no')", FunctionTests(tests=tests.tests)) == (False,)


def test_same_compares_like_json() -> None:
    assert same((1, [2.0000001]), [1, [2]])
    assert same({1: "a"}, {"1": "a"})
    assert not same(1000000100.0, 1000000007)
    assert same(1000000007.0, 1000000007)
    assert not same(1, True)
    assert not same("1", 1)
    assert not same([1], [1, 1])
    assert not same(10**400, 1.0)
    assert not same(Decimal(1), "1")
    assert not same(Fraction(1, 2), [1, 2])
