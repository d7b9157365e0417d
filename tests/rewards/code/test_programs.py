"""What the judge of code reads before any program runs: the answer, the task's tests, the output. No sandbox needed."""

from typing import Any

import pytest

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.code.judge import same_output
from freerun.rewards.code.programs import find_program, prompt_program
from freerun.rewards.code.testcases import AssertTests, CallTests, InputOutputTests, find_tests
from freerun.rewards.config import RewardConfig


def task(**extra: Any) -> Task:
    return Task("t", "write it", [], extra=extra)


def test_programs_are_found_and_not_compiled() -> None:
    assert find_program("```python\na\n```\n~~~py\nb\n~~~").sources == ["b"]
    assert find_program("```bash\na\n```\n```js\nb\n```", "javascript").sources == ["b"]
    assert find_program("````python\n```\na\n```\n````").sources == ["```\na\n```"]
    assert find_program("```python\na\n```\n```text\nb\n```").sources == ["a"]
    assert find_program("1. Here:\n   ```python\n   if a:\n       b\n\n  c\n   ```").sources == ["if a:\n    b\n\nc"]
    assert find_program("a", prompt="def f():").sources == ["a", "def f():\na\n", "def f():\n    a\n"]
    assert prompt_program("def f(x):") == "def f(x):\n    pass\n"
    assert prompt_program("Write a function.") == prompt_program("x = 1") == ""


def test_the_function_under_test_is_found() -> None:
    asserts = ["assert set(f((3, 4))) == set((4,))", "g = 1\nassert g(2)"]
    assert AssertTests(None, asserts).defines == "f"
    assert AssertTests(None, asserts, "def f(x): ...").defines is None
    assert AssertTests(None, ["assert math.isclose(area(2), 4)"], "import math").defines == "area"
    assert AssertTests(None, ["assert [h(x) for h in hs]", "assert k(1)"]).defines == "k"
    assert AssertTests(None, ["assert ("]).defines is None


def test_output_is_compared_by_words() -> None:
    assert same_output("1  2\n\n3", "1 2 3\n")
    assert same_output("0.33333334", "0.3333333")
    assert not same_output("1000001", "1000000")
    assert not same_output("1000000100.0", "1000000007")
    assert not same_output("1000000100.0", "1000000007.0")
    assert same_output("1234567.125000001", "1234567.125")
    assert not same_output("yes", "no")
    assert not same_output("nan", "1.0")


def test_where_tests_are_found() -> None:
    assert find_tests(task(test_list='["assert f()"]')) == AssertTests(None, ["assert f()"], "")
    assert find_tests(Task("t", "", [], '["assert f()"]')) == AssertTests(None, ["assert f()"])
    assert find_tests(Task("t", "", [], "assert f()")) == AssertTests(None, ["assert f()"])
    assert find_tests(Task("t", "", [], '[{"input": "1", "output": 2}]')) == InputOutputTests([("1", "2")])
    assert find_tests(task(tests=[{"args": [1], "expected": 2}], fn_name="f")) == CallTests("f", [([1], [2])])
    for wrong in (task(), task(tests=[]), task(tests=[{"args": [1], "expected": 2}]), task(test_list=[1])):
        with pytest.raises(RewardError, match="task t"):
            find_tests(wrong)


def test_programs_must_not_outlast_their_judge() -> None:
    """Otherwise a program that hangs would get its judge killed: a failed judgement instead of a 0."""
    for judge, timeout_s in (
        ("code", 8.0),
        ({"name": "code", "wall_s": 30}, 20),
        ({"name": "code", "timeout_s": 4}, 60),
    ):
        with pytest.raises(ConfigError) as caught:
            RewardConfig(judge=judge, timeout_s=timeout_s).check()
    assert str(caught.value) == (
        "the judge code gives programs 8 s, but is itself killed after 4 s: raise timeout_s above 8, or lower the "
        "judge's wall_s, as in {name: code, wall_s: 3.2}"
    )
