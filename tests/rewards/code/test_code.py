import asyncio
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.code import judge as judging
from freerun.rewards.code.judge import Code
from freerun.rewards.config import RewardConfig
from freerun.rewards.service import JudgeService
from freerun.sandbox.sandbox import Sandbox

code = Code()

# Ten small problems: a prompt, the tests, and the body that is right.
PROBLEMS: dict[str, tuple[str, str, str]] = {
    "add": ("def add(a, b):\n", "assert candidate(2, 3) == 5\nassert candidate(-1, 1) == 0", "return a + b"),
    "is_even": (
        "def is_even(n: int) -> bool:\n",
        "assert candidate(4) is True\nassert not candidate(7)",
        "return n % 2 == 0",
    ),
    "unique": (
        'from typing import List\n\n\ndef unique(values: List[int]) -> List[int]:\n    """Each once, in order."""\n',
        "assert candidate([3, 1, 3, 2, 1]) == [3, 1, 2]\nassert candidate([]) == []",
        "seen = set()\nreturn [v for v in values if not (v in seen or seen.add(v))]",
    ),
    "words": (
        "def words(text):\n",
        "assert candidate('a b a') == {'a': 2, 'b': 1}\nassert candidate('') == {}",
        "from collections import Counter\nreturn Counter(text.split())",
    ),
    "divide": (
        "def divide(a, b):\n",
        "assert candidate(6, 3) == 2\n"
        "try:\n    candidate(1, 0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False",
        "return a / b",
    ),
    "root": (
        'import math\n\n\ndef square(x):\n    return x * x\n\n\ndef root(x: float) -> float:\n    """Of a square."""\n',
        "for x in range(20):\n    assert math.isclose(square(candidate(x)), x, abs_tol=1e-9)",
        "return math.sqrt(x)",
    ),
    "fibonacci": (
        "def fibonacci(n):\n",
        "assert [candidate(n) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]\nassert candidate(300) > 10 ** 60",
        "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, a + b\nreturn a",
    ),
    "transpose": (
        "def transpose(rows):\n",
        "assert candidate([[1, 2], [3, 4]]) == [(1, 3), (2, 4)]",
        "return list(zip(*rows))",
    ),
    "caesar": (
        "def caesar(text, by):\n",
        "import random, string\nrng = random.Random(1)\nfor _ in range(50):\n"
        "    text = ''.join(rng.choices(string.ascii_lowercase, k=20))\n"
        "    assert candidate(candidate(text, 3), -3) == text\n"
        "assert candidate('xyz', 3) == 'abc'",
        "return ''.join(chr((ord(c) - 97 + by) % 26 + 97) for c in text)",
    ),
    "longest": (
        "def longest(values):\n",
        "assert candidate(['a', 'bbb', 'cc']) == 'bbb'\nassert candidate([]) is None",
        "return max(values, key=len, default=None)",
    ),
}


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def task(**extra: Any) -> Task:
    return Task("t", "write it", [], extra=extra)


def problem(name: str) -> Task:
    prompt, asserts, _ = PROBLEMS[name]
    return task(prompt=prompt, entry_point=name, test=f"def check(candidate):\n{indented(asserts)}")


@pytest.fixture(scope="module", autouse=True)
def _sandbox() -> Iterator[None]:
    try:
        Code().check(timeout_s=10)
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    yield
    judging._sandbox().close()


ANSWERS: dict[str, Callable[[str, str], str]] = {
    "a body": lambda prompt, body: indented(body),
    "a body that lost its indent": lambda prompt, body: indented(body).lstrip(),
    "a body that runs on": lambda prompt, body: f"{indented(body)}\n\nHere is what it does: 1) it\n",
    "a whole program": lambda prompt, body: f"{prompt}{indented(body)}",
    "a fence": lambda prompt, body: f"Sure!\n```python\n{prompt}{indented(body)}```\nThat is all.",
    "a fence in a list": lambda prompt, body: f"1. So:\n   ```py\n{prompt}{indented(body)}   ```",
    "a fence without a language": lambda prompt, body: f"```\n{prompt}{indented(body)}```",
    "a fence that is never closed": lambda prompt, body: f"```python\n{prompt}{indented(body)}",
    "a body in a fence": lambda prompt, body: f"```python\n{indented(body)}```",
    "an example after it": lambda prompt, body: (
        f"```python\n{prompt}{indented(body)}```\nUse:\n```python\nprint(1)\n```"
    ),
    "output after it": lambda prompt, body: f"```python\n{prompt}{indented(body)}```\nPrints:\n```\n1 2 3\n```",
    "thinking before it": lambda prompt, body: f"<think>```python\nx\n```</think>{prompt}{indented(body)}",
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_right_answers_pass_and_wrong_ones_fail(name: str) -> None:
    body = PROBLEMS[name][2]
    assert code(problem(name), indented(body)) == Judged(1.0)
    wrong = code(problem(name), "    pass\n")
    assert (wrong.reward, wrong.reason) == (0.0, JudgeReason.OK)
    assert wrong.detail


@pytest.mark.parametrize("way", ANSWERS)
@pytest.mark.parametrize("name", ["add", "root"])
def test_programs_are_found_however_they_are_written(name: str, way: str) -> None:
    prompt, _, body = PROBLEMS[name]
    assert code(problem(name), ANSWERS[way](prompt, body)) == Judged(1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", JudgeReason.UNPARSEABLE),
        ("I do not know how to do that.", JudgeReason.UNPARSEABLE),
        ("```python\n```", JudgeReason.UNPARSEABLE),
        ("```python\nI do not know.\n```", JudgeReason.OK),
        ("```python\ndef add(a, b) return\n```", JudgeReason.OK),
        ("nul \0 byte", JudgeReason.UNPARSEABLE),
        ("def add(a, b): return a + b # \ud800", JudgeReason.UNPARSEABLE),
        ("x" * 2_000_000, JudgeReason.OK),
    ],
)
def test_no_program(text: str, reason: JudgeReason) -> None:
    judged = code(problem("add"), text)
    assert (judged.reward, judged.reason) == (0.0, reason)
    assert judged.detail


def test_mbpp() -> None:
    asserts = ["assert twice(2) == 4", "assert twice(math.pi) > 6", "assert twice('a') == 'aa'"]
    one = task(test_list=asserts, test_imports=["import math"], test_setup_code="")
    assert code(one, "def twice(x): return x + x").reward == 1.0
    halfway = code(one, "def twice(x): return 2.0 * x")
    assert halfway == Judged(
        0.0, detail="TypeError: can't multiply sequence by non-int of type 'float' (line 1 of the tests)"
    )
    assert Code(fraction=True)(one, "def twice(x): return 2.0 * x").reward == pytest.approx(2 / 3)
    node = task(
        test_list=["assert root.left.data == 2 and depth(root) == 2"],
        test_setup_code="root = Node(1)\nroot.left = Node(2)",
    )
    program = (
        "class Node:\n    def __init__(self, d): self.data = d; self.left = None\n"
        "def depth(n): return 1 + depth(n.left) if n else 0"
    )
    assert code(node, program).reward == 1.0


@pytest.mark.parametrize("use", ["print(sq(2))", "result = sq(2)\nprint(result)", "assert sq(2) == 4"])
def test_an_example_of_use_after_the_program_is_not_the_program(use: str) -> None:
    text = f"```python\ndef sq(x):\n    return x * x\n```\nFor example:\n```python\n{use}\n```"
    assert code(task(test_list=["assert sq(3) == 9"]), text).reward == 1.0
    assert code(task(test="def check(candidate):\n    assert candidate(3) == 9", entry_point="sq"), text).reward == 1.0


def test_standard_input_and_output() -> None:
    one = task(tests=[{"input": "1 2", "output": "3\n"}, {"input": "5 -5\n", "output": "0"}])
    assert code(one, "```python\nprint(sum(map(int, input().split())))\n```") == Judged(1.0)
    assert code(one, "print(3)") == Judged(0.0, detail="test 2 of 2: it printed '3', not '0'")
    assert Code(fraction=True)(one, "print(3)").reward == 0.5
    raising = code(one, "print(3)\nraise ValueError('no')")
    assert raising.detail == "test 1 of 2: it ended with exit code 1 ValueError: no"
    assert code(one, "print('x' * 1_000_000)").detail == "test 1 of 2: it printed 1,000,001 bytes"
    assert code(one, "Just add them.").reason is JudgeReason.UNPARSEABLE
    assert code(one, "```python\nx =\n```").reason is JudgeReason.OK


def test_calls() -> None:
    one = task(entry_point="f", tests=[{"args": [[2, 1]], "expected": [1, 2]}, {"args": [[]], "expected": []}])
    assert code(one, "f = sorted").reward == 1.0
    assert code(one, "def f(x): return x").detail == "AssertionError: f([2, 1]) is [2, 1], not [1, 2]"
    apps = task(input_output=json.dumps({"fn_name": "f", "inputs": [[1, 2]], "outputs": [[3]]}))
    assert code(apps, "class Solution:\n    def f(self, a, b): return a + b").reward == 1.0
    lines = task(input_output={"inputs": [["1", "2"]], "outputs": [["3"]]})
    assert code(lines, "print(int(input()) + int(input()))").reward == 1.0


def test_a_misbehaving_program_earns_zero() -> None:
    strict = Code(cpu_s=0.3, wall_s=3.0, memory_mb=128)
    details = {
        "    while True: pass": "it used more than 0.3 s of processor time",
        "    import time; time.sleep(100)": "it took longer than 3 s",
        "    return bytearray(1 << 30)": "MemoryError (line 2 of the tests)",
        "    import os; os._exit(3)": "the program ended before the tests did",
        "    import os; os.abort()": "the program ended before the tests did: it was ended by a signal (Aborted)",
    }
    for body, detail in details.items():
        assert strict(problem("add"), body) == Judged(0.0, detail=detail)


def test_all_tests_share_the_time() -> None:
    one = task(tests=[{"input": "", "output": "1"}] * 50)
    judged = Code(cpu_s=0.5, fraction=True)(one, "import time\nwhile time.process_time() < 0.2: pass\nprint(1)")
    assert 0 < judged.reward < 0.2


def test_other_languages() -> None:
    tests = [{"input": "20\n", "output": "21"}]
    assert code(task(tests=tests, language="bash"), "```bash\nread x\necho $((x + 1))\n```").reward == 1.0
    with pytest.raises(RewardError, match="programs in cobol"):
        code(task(tests=tests, language="cobol"), "x")
    with pytest.raises(RewardError, match="programs in bash"):
        code(task(test_list=["assert f()"], language="bash"), "x")


def test_each_process_has_its_own_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_sandboxes", {})
    mine = judging._sandbox()
    assert isinstance(mine, Sandbox)
    assert judging._sandbox() is mine
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert judging._sandbox() is not mine


async def test_in_the_service() -> None:
    """Two workers, every problem right and wrong, and programs that hang in between."""
    config = RewardConfig(judge={"name": "code", "cpu_s": 0.3}, workers=2)
    async with JudgeService(config) as service:
        right = [service.judge(problem(name), indented(PROBLEMS[name][2])) for name in PROBLEMS]
        wrong = [service.judge(problem(name), "    pass") for name in PROBLEMS]
        hung = [service.judge(problem("add"), "    while True: pass") for _ in range(3)]
        verdicts = await asyncio.gather(*right, *hung, *wrong)
    assert [verdict.reward for verdict in verdicts] == [1.0] * len(right) + [0.0] * (len(hung) + len(wrong))
    assert service.counts == {JudgeReason.OK: len(verdicts)}
