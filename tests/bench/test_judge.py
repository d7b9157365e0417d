"""`freerun bench judge` on a few problems of our own, written as GSM8K and HumanEval are."""

import json
from pathlib import Path
from typing import Any

import pytest

from freerun.bench.judge import bench_judge, gold_answers, solutions, sums
from freerun.core import ConfigError, DataError
from freerun.rewards.code.judge import Code
from freerun.rewards.math import math

GRADES = [
    {"question": "Ann has 3 bags of 4 apples. How many?", "answer": "3 * 4 = <<3*4=12>>12\n#### 12"},
    {"question": "A car costs 1,000 more than 24,500. How much?", "answer": "24500 + 1000 = 25,500\n#### 25,500"},
    {"question": "It is 5 degrees and gets 6 colder. What is it?", "answer": "5 - 6 = -1\n#### -1"},
    {"question": "Of one cake, all is eaten. What is left?", "answer": "#### 0"},
]
FUNCTIONS = [
    ("def twice(n):\n", "    return 2 * n\n", "assert candidate(2) == 4", "twice"),
    ("import math\n\n\ndef area(r: float):\n", "    return math.pi * r * r\n", "assert candidate(1) > 3.1", "area"),
]


def written(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def test_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        Code().check(timeout_s=10)
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    programs = [
        {
            **{"task_id": entry, "prompt": prompt, "canonical_solution": body, "entry_point": entry},
            "test": f"def check(candidate):\n    {test}\n",
        }
        for prompt, body, test, entry in FUNCTIONS
    ]
    figures = await bench_judge(
        written(tmp_path / "gsm8k.jsonl", GRADES),
        written(tmp_path / "humaneval.jsonl", programs),
        answers=40,
        many=20,
        workers=2,
        json_only=True,
    )
    assert json.loads(capsys.readouterr().out) == {"bench": "judge", "workers": 2, **figures}
    assert figures["math, 5% endless"]["accepted"] == 38
    assert figures["math, 5% hang"]["accepted"] == 38
    assert figures["math, 5% hang"]["killed"] == 2
    assert figures["math, 5% hang"]["s with"] > figures["math, 5% hang"]["s without"]
    assert 0 < figures["memory"]["MB at the end"] < 2 * figures["memory"]["MB after a tenth"]
    assert (figures["code"]["right accepted"], figures["code"]["wrong rejected"]) == (4, 4)
    assert (figures["GSM8K"]["right accepted"], figures["GSM8K"]["wrong rejected"]) == (20, 40)
    assert (figures["HumanEval"]["right accepted"], figures["HumanEval"]["wrong rejected"]) == (2, 2)


def test_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not GSM8K: the answer of other:0 does not end with a whole number"):
        gold_answers(written(tmp_path / "other.jsonl", [{"question": "?", "answer": "1/2"}]))
    with pytest.raises(DataError, match="is not HumanEval: a row has no canonical_solution"):
        solutions(written(tmp_path / "other.jsonl", [{"prompt": "?"}]))


def test_its_answers_are_right() -> None:
    for answer in sums(60):
        assert math(answer.task, answer.text).reward == 1, answer
