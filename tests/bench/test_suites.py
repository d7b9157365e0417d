"""`freerun bench judge --suite` on answers of our own, written from what public suites test; and what it must show."""

import json
from pathlib import Path

import pytest

from freerun.bench.suites import bench_suites, read_suite
from freerun.core import DataError

ANSWERS = Path(__file__).parent.parent / "rewards" / "math" / "math_answers.jsonl"


async def test_no_worse_than_math_verify_in_either_direction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On every fifth answer: math-verify takes its time. Ours are all judged in tests/rewards/test_math.py."""
    file = tmp_path / "fifth.jsonl"
    file.write_text("".join(ANSWERS.read_text().splitlines(keepends=True)[::5]))
    measured = await bench_suites([file], workers=2, json_only=True)
    assert json.loads(capsys.readouterr().out)["suites"] == measured
    ours, theirs = measured["fifth"]["freerun"], measured["fifth"]["math-verify"]
    assert measured["all"]["freerun"]["answers"] == ours["answers"] == theirs["answers"] == 248
    assert (ours["as expected"], ours["wrong accepted"], ours["right rejected"], ours["undecided"]) == (248, 0, 0, 0)
    assert theirs["wrong accepted"] >= 5
    assert theirs["right rejected"] >= 15


def test_rows_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text('{"reference": "5", "answer": "5", "expected": true}\n{"reference": 5, "answer": "5"}\n')
    with pytest.raises(DataError, match=r'suite.jsonl, row 2: a suite\'s row has the texts "reference" and "answer"'):
        read_suite(file)
    file.write_text('{"reference": "5", "answer": "5", "expected": "yes"}\n')
    with pytest.raises(DataError, match="row 1: \"expected\" is true or false, not 'yes'"):
        read_suite(file)
