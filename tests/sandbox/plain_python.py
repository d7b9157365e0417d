"""Programs and tests that pass in plain Python: name -> (program, tests)."""

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

ANIMALS = """
from abc import ABC, abstractmethod
class Animal:
    legs = 4
    def __init__(self, name): self.name = name
    def speak(self): return '...'
    def introduce(self): return f'I am {self.name}: {self.speak()}'
class Shape(ABC):
    @property
    @abstractmethod
    def area(self): ...
    def describe(self): return f'area {self.area}'
class Failure(Exception): pass
def introduce_all(animals): return [animal.introduce() for animal in animals]
def fail(kind): raise kind('no')
"""
CONSOLE = """
import sys
def greet(name): print(f'Hello, {name}!')
def warn(): print('careful', file=sys.stderr)
def add_two(): return int(input('first: ')) + int(input())
def twice(call):
    print('before')
    call()
    print('between')
    call()
def raw(): sys.stdout.buffer.write(b'bytes')
"""
FILES = """
import os, random
LIMIT = 3
def count_words(path):
    with open(path) as file: return len(file.read().split())
def write(path):
    with open(path, 'w') as file: file.write('written')
def mode(): return os.environ.get('MODE', 'slow')
def dice(): return random.randint(1, 6)
def ask(): return input()
def helper(): return 1
def use_helper(): return 2 * helper()
def limit(): return LIMIT
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
    "subclasses in tests": (
        ANIMALS,
        [
            "class Dog(Animal):\n    def speak(self): return f'{self.name} barks'\n"
            "d = Dog('Rex')\nassert d.speak() == 'Rex barks' and d.introduce() == 'I am Rex: Rex barks'\n"
            "assert isinstance(d, Dog) and isinstance(d, Animal) and issubclass(Dog, Animal) and Dog.__name__ == 'Dog'",
            "class Cat(Animal):\n    legs = 3\n    def __init__(self, name, age):\n        super().__init__(name)\n"
            "        self.age = age\n    def speak(self): return super().speak() + '!'\n"
            "c = Cat('Tom', 4)\nassert (c.name, c.age, c.legs, Cat.legs, Animal.legs) == ('Tom', 4, 3, 3, 4)\n"
            "assert c.speak() == '...!' and introduce_all([c]) == ['I am Tom: ...!']",
            "class Square(Shape):\n    def __init__(self, side): self.side = side\n"
            "    @property\n    def area(self): return self.side ** 2\n    @classmethod\n"
            "    def unit(cls): return cls(1)\n    @staticmethod\n    def corners(): return 4\n"
            "assert Square(3).describe() == 'area 9' and Square.unit().area == 1 and Square(2).corners() == 4\n"
            "assert sorted([Square(2), Square(1)], key=lambda s: s.area)[0].side == 1",
            "import pytest\nwith pytest.raises(TypeError): Shape()\n"
            "class Incomplete(Shape): pass\nwith pytest.raises(TypeError): Incomplete()",
            "class Equal(Animal):\n    def __eq__(self, other): return self.name == other.name\n"
            "assert Equal('a') == Equal('a') and Equal('a') != Equal('b')",
            "class MyError(Failure):\n    def text(self): return 'mine: ' + str(self)\n"
            "try: fail(MyError)\nexcept Failure as e: assert type(e) is MyError and e.text() == 'mine: no'\n"
            "else: assert False",
        ],
    ),
    "what the program prints and reads": (
        CONSOLE,
        [
            "def test_print(capsys):\n    greet('Ada')\n    print('tests')\n    warn()\n"
            "    found = capsys.readouterr()\n    assert found.out == 'Hello, Ada!\\ntests\\n'\n"
            "    assert found.err == 'careful\\n'\n"
            "    greet('Bob')\n    out, err = capsys.readouterr()\n    assert (out, err) == ('Hello, Bob!\\n', '')",
            "import io\nfrom contextlib import redirect_stdout\n"
            "with redirect_stdout(io.StringIO()) as out: greet('Ada')\n"
            "greet('nobody')\nassert out.getvalue() == 'Hello, Ada!\\n'",
            "import io, unittest\nfrom unittest.mock import patch\nclass T(unittest.TestCase):\n"
            "    @patch('sys.stdout', new_callable=io.StringIO)\n    def test_it(self, out):\n"
            "        greet('Eve')\n        self.assertEqual(out.getvalue(), 'Hello, Eve!\\n')\n"
            "    @patch('builtins.input', side_effect=['2', '3'])\n    def test_input(self, read):\n"
            "        self.assertEqual(add_two(), 5)\n        self.assertEqual(read.call_count, 2)",
            "def test_order(capsys):\n    twice(lambda: print('callback'))\n"
            "    assert capsys.readouterr().out == 'before\\ncallback\\nbetween\\ncallback\\n'",
            "def test_bytes(capsys):\n    raw()\n    assert capsys.readouterr().out == 'bytes'",
        ],
    ),
    "files and patches": (
        FILES,
        [
            "def test_file(tmp_path):\n    (tmp_path / 'a.txt').write_text('one two')\n"
            "    assert count_words(tmp_path / 'a.txt') == 2 and count_words(str(tmp_path / 'a.txt')) == 2\n"
            "    write(tmp_path / 'b.txt')\n    assert (tmp_path / 'b.txt').read_text() == 'written'",
            "def test_patch(monkeypatch):\n    monkeypatch.setenv('MODE', 'fast')\n    assert mode() == 'fast'\n"
            "    monkeypatch.setattr('random.randint', lambda a, b: b)\n    assert dice() == 6\n"
            "    import random\n    monkeypatch.setattr(random, 'randint', lambda a, b: a)\n    assert dice() == 1\n"
            "    monkeypatch.setattr('builtins.input', lambda prompt='': 'typed')\n    assert ask() == 'typed'",
            "import random\ndef test_undone():\n    assert mode() == 'slow' and random.randint.__name__ == 'randint'",
            "import solution\ndef test_own(monkeypatch):\n    monkeypatch.setattr(solution, 'helper', lambda: 5)\n"
            "    assert use_helper() == 10\n    monkeypatch.setattr('solution.LIMIT', 7)\n    assert limit() == 7",
            "def test_own_undone(): assert use_helper() == 2 and limit() == 3",
            "from unittest.mock import patch\nwith patch('solution.helper', return_value=4): assert use_helper() == 8\n"
            "assert use_helper() == 2",
            "def test_folder(monkeypatch, tmp_path):\n    monkeypatch.chdir(tmp_path)\n    write('here.txt')\n"
            "    assert (tmp_path / 'here.txt').exists()",
            "class Box: size = 1\ndef test_local(monkeypatch):\n    monkeypatch.setattr(Box, 'size', 2)\n"
            "    monkeypatch.setitem(table := {'a': 1}, 'a', 2)\n    assert Box.size == table['a'] == 2",
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
