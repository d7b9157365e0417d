"""Tests mean what they would if the program were in the same process, and are found and run however they are written.

Every program here is right, or wrong, as plain Python has it; by each of the sandboxes that this machine has.
"""

from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from freerun.core import DataError, RewardError, Task
from freerun.rewards.code import judge as judging
from freerun.rewards.code.judge import Code
from freerun.rewards.judges import check_tasks
from freerun.sandbox.base import Backend, FunctionTests, Limits
from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import open_sandbox


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
SHAPES = """
from collections import Counter, defaultdict, namedtuple
from dataclasses import dataclass
class A:
    x = 3
    def __init__(self, v=1): self.v = v
class B(A): pass
Point = namedtuple('Point', 'x y')
@dataclass
class Data:
    a: int
    b: str = 'q'
@dataclass(frozen=True, order=True)
class Frozen:
    a: int
class Stack(list):
    def top(self): return self[-1]
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, by): return Vector(self.x * by, self.y * by)
    __rmul__ = __mul__
    def __eq__(self, other): return isinstance(other, Vector) and (self.x, self.y) == (other.x, other.y)
    def __repr__(self): return f'Vector({self.x}, {self.y})'
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __bool__(self): return bool(self.x or self.y)
    def __getitem__(self, place): return (self.x, self.y)[place]
    def __contains__(self, value): return value in (self.x, self.y)
    def __lt__(self, other): return abs(self) < abs(other)
def make(): return B(5)
def point(): return Point(1, 2)
def count(text): return Counter(text)
def lists():
    found = defaultdict(list)
    found['a'].append(1)
    return found
def numbers(n):
    for i in range(n): yield i
"""
ENUMS = """
from enum import Enum, IntEnum
class Color(Enum):
    RED = 1
    BLUE = 2
    def nice(self): return self.name.lower()
class Rank(IntEnum):
    LOW = 1
    HIGH = 2
class Letter(str, Enum):
    A = 'a'
def favourite(): return Color.RED
def other(color): return Color.BLUE if color is Color.RED else Color.RED
def rank(): return Rank.HIGH
"""
ERRORS = """
class Bad(ValueError):
    def __init__(self, code):
        super().__init__(f'code {code}')
        self.code = code
class Worse(Bad): pass
def f(x):
    if x < 0: raise Bad(x)
    if x == 0: raise Worse(9)
    if x == 5: raise SystemExit(3)
    if x == 6: raise KeyError('k')
    return x
"""
CHANGES = """
def add(values):
    values.append(1)
    return values
def pop(values): return values.pop()
def fill(rows):
    for row in rows: row[0] = 9
    return len(rows)
def put(table):
    table['k'] = 1
    return True
def both(a, b):
    a.append(1)
    return b
def same(values): return values
def fails(values):
    values.clear()
    raise ValueError
"""
ITERATORS = """
def echo():
    said = yield 1
    yield said
class Two:
    def __init__(self): self.n = 0
    def __iter__(self): return self
    def __next__(self):
        self.n += 1
        if self.n > 2: raise StopIteration
        return self.n
def endless():
    n = 0
    while True:
        yield n
        n += 1
"""
ASYNC = """
import asyncio
async def square(x):
    await asyncio.sleep(0.1)
    return x * x
async def count(n):
    for i in range(n): yield i
class Manager:
    async def __aenter__(self): return 5
    async def __aexit__(self, *error): self.left = True
async def apply(function, x): return await function(x)
"""
NUMPY = """
import numpy as np
def twice(values): return np.array(values) * 2
def number(): return np.float64(1.5)
def set_first(values): values[0] = 7
"""

AS_PLAIN_PYTHON: dict[str, tuple[str, list[str]]] = {
    "types as arguments": (
        "def f(values, kind): return [v for v in values if isinstance(v, kind)]\ndef t(x): return type(x)",
        [
            "assert f([1, 'a'], int) == [1] and f([1, 'a', 2.0], (int, float)) == [1, 2.0]",
            "from datetime import date\nassert f([date(2020, 1, 1)], date) == [date(2020, 1, 1)]",
            "from decimal import Decimal\nassert t(3) is int and t('a') == str and t(Decimal(1)) is Decimal",
        ],
    ),
    "functions as arguments": (
        "def call(f, *args): return f(*args)",
        [
            "assert call(len, [1]) == 1 and call(max, [1, 5]) == 5 and call(str.upper, 'a') == 'A'",
            "import math, operator\nassert call(math.sqrt, 4) == 2 and call(operator.add, 1, 2) == 3",
            "assert call(lambda x: x + 1, 2) == 3 and call(sorted, [2, 1]) == [1, 2]",
        ],
    ),
    "dates": (
        "from datetime import *\ndef next_day(d): return d + timedelta(days=1)\n"
        "def now(): return datetime(2020, 1, 2, 3, 4, 5, 6, timezone.utc)",
        [
            "from datetime import *\nassert next_day(date(2020, 1, 31)) == date(2020, 2, 1)",
            "assert now() == datetime(2020, 1, 2, 3, 4, 5, 6, timezone.utc) and now().isoformat().startswith('2020')",
        ],
    ),
    "enums": (
        ENUMS,
        [
            "assert favourite() == Color.RED and favourite() is Color.RED and favourite() != Color.BLUE",
            "assert Color.RED.value == 1 and Color(2) is Color.BLUE and Color['RED'].nice() == 'red'",
            "assert [c.name for c in Color] == ['RED', 'BLUE'] and len(Color) == 2 and Color.RED in Color",
            "from enum import Enum\nassert isinstance(favourite(), Color) and isinstance(favourite(), Enum)",
            "assert other(Color.RED) is Color.BLUE and {Color.RED: 1}[favourite()] == 1",
            "assert rank() == 2 and rank() is Rank.HIGH and rank().name == 'HIGH' and rank() > Rank.LOW",
            "assert Letter.A == 'a' and str(favourite()) == 'Color.RED' and isinstance(rank(), int)",
            "import pytest\nwith pytest.raises(ValueError): Color(7)",
        ],
    ),
    "numpy": (
        NUMPY,
        [
            "import numpy as np\nr = twice([1, 2])\nassert isinstance(r, np.ndarray) and (r == np.array([2, 4])).all()",
            "assert np.array_equal(twice([1]), [2]) and number() == 1.5 and isinstance(number(), np.floating)",
            "np.testing.assert_allclose(twice([1.0, 2]), [2, 4])",
            "values = np.zeros(2)\nset_first(values)\nassert values[0] == 7",
        ],
    ),
    "exceptions of its own": (
        ERRORS,
        [
            "try: f(-1)\nexcept Bad as e: assert e.code == -1 and str(e) == 'code -1' and e.args == ('code -1',)\n"
            "else: assert False",
            "import pytest\nwith pytest.raises(Bad, match='code') as info: f(0)\n"
            "assert info.value.code == 9 and type(info.value) is Worse",
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
            "        with self.assertRaises(Bad) as caught: f(-2)\n"
            "        self.assertEqual(caught.exception.code, -2)\n"
            "        with self.assertRaisesRegex(ValueError, 'code -3'): f(-3)",
            "import pytest\nwith pytest.raises(SystemExit) as e: f(5)\nassert e.value.code == 3",
            "e = Bad(4)\nassert isinstance(e, ValueError) and e.code == 4 and issubclass(Worse, Bad)",
            "try: f(6)\nexcept KeyError as e: assert e.args[0] == 'k'\nelse: assert False",
        ],
    ),
    "classes": (
        SHAPES,
        [
            "o = make()\nassert isinstance(o, A) and type(o) is B and (o.v, B.x) == (5, 3) and B.__name__ == 'B'",
            "p = point()\nassert p == (1, 2) and p.x == 1 and isinstance(p, Point) and p._replace(x=5) == Point(5, 2)",
            "assert count('aab').most_common(1) == [('a', 2)] and count('ab')['z'] == 0",
            "found = lists()\nassert found == {'a': [1]} and found['b'] == []",
            "assert Data(1) == Data(1, 'q') != Data(2) and repr(Data(1)) == \"Data(a=1, b='q')\"",
            "assert {Frozen(1), Frozen(1)} == {Frozen(1)} and sorted([Frozen(2), Frozen(1)])[0].a == 1",
            "s = Stack([1, 2])\nassert s == [1, 2] and s.top() == 2 and isinstance(s, list) and [1, 2] == s and 2 in s",
            "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6) and 3 * Vector(1, 2) == Vector(3, 6)",
            "assert (Vector(1, 1) + Vector(1, 1)) * 2 == Vector(4, 4) and abs(Vector(3, 4)) == 5 and not Vector(0, 0)",
            "assert Vector(1, 2)[1] == 2 and 2 in Vector(1, 2) and str(Vector(1, 2)) == 'Vector(1, 2)'",
            "import copy\na = Data(1)\nb = copy.deepcopy(a)\nb.a = 7\nassert a.a == 1 and b.a == 7",
            "o = make()\no.v = o.new = 8\nassert vars(o) == {'v': 8, 'new': 8} and not hasattr(o, 'old')",
            "import inspect\nassert callable(make) and not callable(make()) and make.__name__ == 'make'",
            "assert inspect.isgenerator(numbers(1)) and list(inspect.signature(numbers).parameters) == ['n']",
        ],
    ),
    "changes in place": (
        CHANGES,
        [
            "x = [0]\nadd(x)\nassert x == [0, 1]",
            "x = [1, 2]\nassert pop(x) == 2\nassert x == [1]",
            "rows = [[1], [2]]\nrow = rows[0]\nfill(rows)\nassert row == [9] and rows[0] is row and rows[1] == [9]",
            "x = {}\nassert put(x)\nassert x == {'k': 1}",
            "x = []\nassert both(x, x) == [1]\nassert x == [1]",
            "x = []\ny = same(x)\nassert same(x) is x and y is x and y is not []",
            "x = [1]\ntry: fails(x)\nexcept ValueError: pass\nassert x == []",
        ],
    ),
    "generators and iterators": (
        ITERATORS,
        [
            "e = echo()\nassert next(e) == 1 and e.send(5) == 5",
            "assert list(Two()) == [1, 2] and sum(Two()) == 3\na, b = Two()\nassert b == 2",
            "import pytest\ni = Two()\nnext(i), next(i)\nwith pytest.raises(StopIteration): next(i)",
            "import itertools\nassert list(itertools.islice(endless(), 3)) == [0, 1, 2]",
            "assert list(zip(endless(), 'ab')) == [(0, 'a'), (1, 'b')]",
        ],
    ),
    "async": (
        ASYNC,
        [
            "import asyncio\nassert asyncio.run(square(3)) == 9",
            "async def test_it(): assert await square(2) == 4",
            "import asyncio, time\nasync def all_at_once():\n    began = time.monotonic()\n"
            "    found = await asyncio.gather(*map(square, range(5)))\n    return found, time.monotonic() - began\n"
            "found, took_s = asyncio.run(all_at_once())\nassert found == [0, 1, 4, 9, 16] and took_s < 0.4",
            "async def test_more():\n    assert [x async for x in count(3)] == [0, 1, 2]\n"
            "    async with Manager() as it: assert it == 5",
            "async def more(x): return x + 1\nasync def test_given(): assert await apply(more, 2) == 3",
            "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n"
            "    async def test_it(self): self.assertEqual(await square(3), 9)",
        ],
    ),
}


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
    # what the tests raise of an answer's making is no fault of theirs
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


FIXTURES = """
import pytest
@pytest.fixture
def nine(): return 9
@pytest.fixture
def told():
    log = []
    yield log
    assert log
@pytest.mark.parametrize("n, squared", [(1, 1), pytest.param(3, 9), (-2, 4)])
@pytest.mark.parametrize("times", [1, 2])
def test_many(n, squared, times): assert times * f(n) == times * squared
def test_fixtures(nine, told):
    told.append(1)
    assert f(3) == nine == pytest.approx(9.0000001)
@pytest.mark.skip
def test_skipped(): assert False
"""
STYLES: dict[str, str] = {
    "a class": "class TestF:\n    def test_a(self): assert f(3) == 9",
    "a class with its setup": (
        "class TestF:\n    def setup_method(self, method): self.n = 3\n    def teardown_method(self): assert self.n\n"
        "    def test_a(self): assert f(self.n) == 9"
    ),
    "unittest": "import unittest\nclass Squares(unittest.TestCase):\n    def setUp(self): self.n = 3\n"
    "    def test_a(self): self.assertEqual(f(self.n), 9)\nif __name__ == '__main__':\n    unittest.main()",
    "a function": "def test(): assert f(3) == 9",
    "an async function": "async def test_f(): assert f(3) == 9",
    "a guard": "def tests():\n    assert f(3) == 9\nif __name__ == '__main__':\n    tests()",
    "a guard alone": "if __name__ == '__main__':\n    assert f(3) == 9",
    "a guard that leaves": "import sys, pytest\ndef test_f(): assert f(3) == 9\n"
    "if __name__ == '__main__':\n    sys.exit(pytest.main([__file__]))",
    "check without an entry point": "def check(candidate):\n    assert candidate(3) == 9",
    "another name for it": "def verify(candidate):\n    assert candidate(3) == 9",
    "pytest": FIXTURES,
    "raising": "if f(3) != 9: raise ValueError('wrong')",
    "leaving": "import sys\nif f(3) != 9: sys.exit(1)",
}


@pytest.mark.parametrize("name", STYLES)
def test_every_style_of_test_is_run(sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_sandbox", lambda: sandbox)
    task = Task("t", "", [], extra={"test": STYLES[name]})
    Code().check_task(task)
    assert Code()(task, "def f(n): return n * n").reward == 1.0
    assert Code()(task, "def f(n): return n * n + 1").reward == 0.0
    assert Code()(task, "def f(n): pass").reward == 0.0


NOTHING = {
    "nothing": "",
    "a comment": "# assert f(3) == 9",
    "only a call": "f(3)",
    "what is always so": "def test_f():\n    f(3)\n    assert True",
    "a function that nobody calls": "def helper():\n    assert f(3) == 9",
    "a class without tests": "class TestF:\n    def helper(self): assert f(3) == 9",
    "printing": "print(f(3) == 9)",
}


@pytest.mark.parametrize("name", NOTHING)
def test_tests_that_assert_nothing_are_refused(name: str) -> None:
    """Before a run, by the task's name; and never a reward."""
    fine = Task("fine", "", [], extra={"test": "assert f(3) == 9"})
    empty = Task("empty", "", [], extra={"test": NOTHING[name]})
    with pytest.raises(DataError) as refusal:
        check_tasks(["code"], [fine, empty, Task("other", "", [], extra={"test_list": ["f(1)"]})])
    assert str(refusal.value) == (
        "task empty: its tests assert nothing, so every answer would pass: fix or remove it (as are 1 more: other)"
    )
    with pytest.raises(RewardError, match="task empty: its tests assert nothing"):
        Code()(empty, "def f(n): return n * n")
    check_tasks(["code"], [fine])
    check_tasks("exact", [empty])


def test_tests_that_cannot_be_read_are_refused() -> None:
    for extra in ({"test": "assert f(1 =="}, {"tests": [{"input": "1", "output": " "}]}, {}):
        with pytest.raises(DataError, match="task t"):
            check_tasks("code", [Task("t", "", [], extra=extra)])
