"""Every style of tests is run, and tests that assert nothing are refused."""

from collections.abc import Iterator

import pytest

from freerun.core import DataError, RewardError, Task
from freerun.rewards.code import judge as judging
from freerun.rewards.code.judge import Code
from freerun.rewards.judges import check_tasks
from freerun.sandbox.base import Backend
from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import open_sandbox


@pytest.fixture(scope="module", params=list(Backend))
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with open_sandbox(request.param) as sandbox:
        yield sandbox


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
