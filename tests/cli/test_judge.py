"""`freerun judge`, as the command it is."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from freerun.commands.judge import Answer, judge_all
from freerun.core import Task
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict

ROWS: list[dict[str, Any]] = [
    {"prompt": "2 + 3?", "answer": "5", "text": "It is 5."},
    {"prompt": "2 + 4?", "answer": "6", "text": "It is 5."},
    {"prompt": "2 + 5?", "answer": "7", "text": "no idea"},
    {"prompt": [{"role": "user", "content": "3?"}], "answer": 3, "completion": [{"role": "assistant", "content": "3"}]},
]
MINE = """
import os, time
def reward(task, text, bonus=0):
    if text == "hang":
        while True: pass
    if text == "exit":
        os._exit(3)
    if text == "raise":
        raise ValueError("no\\\\ngood")
    return len(text) + bonus + len(task.prompt) + task.extra.get("more", 0)
"""


def freerun(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "freerun.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=60)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(text: str) -> dict[str, list[str]]:
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := re.split(r"\s{2,}", line.strip()))}


def test_it_judges_a_file_and_shows_how(tmp_path: Path) -> None:
    file, out = written(tmp_path / "rows.jsonl", ROWS), tmp_path / "verdicts.jsonl"
    done = freerun("judge", "--reward", "number", file, "--out", out)
    assert (done.returncode, "4/4" in done.stderr) == (0, True), done.stderr
    shown = table(done.stdout)
    assert shown["ok"][:2] == ["3", "75.0%"]
    assert shown["unparseable"][:2] == ["1", "25.0%"]
    assert shown["unparseable"][2].startswith("rows:2: the answer has no number")
    assert shown["0"][:2] == ["2", "50.0%"]
    assert shown["1"][:2] == ["2", "50.0%"]
    assert "mean reward 0.5 of 4 judged" in done.stdout
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"rows:{index}" for index in range(4)]
    assert [line["reward"] for line in lines] == [1.0, 0.0, 0.0, 1.0]
    assert [line["reason"] for line in lines] == ["ok", "ok", "unparseable", "ok"]


def test_hangs_crashes_and_errors_are_rows_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    texts = ["hang", "exit", "raise", "a", "bb"]
    file = written(tmp_path / "rows.jsonl", [{"p": "ab", "t": text, "more": 1} for text in texts])
    keys = ["--prompt-key", "p", "--text-key", "t", "--timeout-s", 0.4, "--workers", 2]
    spec = f"{{name: {tmp_path}/mine.py:reward, bonus: 10}}"
    done = freerun("judge", "--reward", spec, file, *keys)
    assert done.returncode == 0, done.stderr
    shown = table(done.stdout)
    assert shown["timeout"] == ["1", "20.0%", "rows:0: no verdict after 0.4 s: killed"]
    assert shown["crash"] == ["1", "20.0%", "rows:1: the reward worker ended with code 3"]
    assert shown["error"][2].startswith("rows:2: ValueError: no")
    assert shown["14"][0] == shown["15"][0] == "1"
    assert "mean reward 14.5 of 2 judged" in done.stdout


async def test_nobody_waits_for_one_that_hangs() -> None:
    """Two at a time: all others are judged while the first hangs, and still come after it."""
    others_judged = asyncio.Event()

    async def slow(task: Task, text: str | JudgedSample) -> Verdict:
        assert isinstance(text, str)
        if text == "0":
            await others_judged.wait()
        if text == "9":
            others_judged.set()
        return Verdict(float(text), JudgeReason.OK)

    answers = [Answer(Task(str(n), "", []), str(n)) for n in range(10)]
    told: list[float | None] = []
    verdicts = await judge_all(slow, answers, at_once=2, next_is=lambda _, verdict: told.append(verdict.reward))
    assert [verdict.reward for verdict in verdicts] == told == list(range(10))


def test_the_reward_of_a_runs_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("reward: {judge: [number, {name: length, weight: 0.5}], timeout_s: 5}\n")
    done = freerun("judge", "--reward", tmp_path / "run.yaml", written(tmp_path / "rows.jsonl", ROWS))
    assert done.returncode == 0, done.stderr
    assert {"1", "1.5", "2.5"} <= set(table(done.stdout))


def test_many_different_rewards_are_binned(tmp_path: Path) -> None:
    rows = [{"text": "x " * n} for n in range(101)]
    done = freerun("judge", "--reward", "length", written(tmp_path / "rows.jsonl", rows))
    assert table(done.stdout)["0 to 10"][:2] == ["10", "9.9%"]
    assert table(done.stdout)["90 to 100"][:2] == ["11", "10.9%"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reward", "mth", "rows.jsonl"], 'there is no judge "mth"'),
        (["--reward", "math", "row.jsonl"], "there is no row.jsonl (from {tmp}); did you mean rows.jsonl?"),
        (["--reward", "[math", "rows.jsonl"], "--reward '[math' is not YAML"),
        (["--reward", "none.yaml", "rows.jsonl"], "there is no file none.yaml"),
        (["--reward", "bad.yaml", "rows.jsonl"], "unknown key reward.worker; did you mean reward.workers?"),
        (["--reward", "worse.yaml", "rows.jsonl"], "worse.yaml: reward.workers: Input should be greater than"),
        (["--reward", "{name: math, wieght: 2}", "rows.jsonl"], "did you mean weight?"),
        (["--reward", "math", "rows.jsonl", "--text-key", "txt"], 'row rows:0 has no "txt"; its keys are'),
        (["--reward", "math", "rows.jsonl", "--answer-key", "gold"], 'has no "gold"'),
        (["--reward", "math", "empty.jsonl"], "empty.jsonl holds no rows"),
        (["--reward", "math", "torn.jsonl"], "torn.jsonl:1: not valid JSON"),
        (["--reward", "math", "rows.jsonl", "--out", "no/out.jsonl"], "--out no/out.jsonl cannot be written: No such"),
        (
            ["--reward", "number", "rows.jsonl", "--out", "/dev/full"],
            "/dev/full cannot be written: No space left",
        ),
        (["--reward", "math", "rows.jsonl", "--out", "rows.jsonl"], "--out rows.jsonl would overwrite rows.jsonl"),
        (["--reward", "math", "rows.jsonl", "--out", "link.jsonl"], "--out link.jsonl would overwrite rows.jsonl"),
        (["--reward", "mine.py:reward", "rows.jsonl", "--out", "mine.py"], "--out mine.py would overwrite mine.py"),
        (["--reward", "mine.py:reward", "rows.jsonl"], "mine.py:2: ZeroDivisionError: division by zero"),
        (["--reward", "math", "huge.jsonl"], "huge.jsonl:1: a number of more than 4300 digits: write it as text"),
        (["--reward", "math", "deep.jsonl"], "deep.jsonl:1: lists or objects nested too deeply"),
        (["--reward", "code", "code.jsonl"], "task code:0: its tests assert nothing, so every answer would pass"),
    ],
)
def test_bad_input_gets_one_line(
    tmp_path: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from freerun.cli.main import main

    written(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "torn.jsonl").write_text('{"text": ')
    (tmp_path / "link.jsonl").symlink_to("rows.jsonl")
    (tmp_path / "mine.py").write_text("def reward(task, text): return 1\n1 / 0\n")
    (tmp_path / "huge.jsonl").write_text(f'{{"text": "1", "answer": {"9" * 5000}}}')
    (tmp_path / "deep.jsonl").write_text(f'{{"text": "1", "answer": {"[" * 9000}{"]" * 9000}}}')
    (tmp_path / "code.jsonl").write_text(json.dumps({"text": "x = 1", "test": "def test(): f(1)"}))
    (tmp_path / "bad.yaml").write_text("reward: {worker: 2}")
    (tmp_path / "worse.yaml").write_text("reward: {workers: 0}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["freerun", "judge", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.strip() and not line.startswith("judging")]
    assert ended.value.code == 2
    assert len(errors) == 1
    assert errors[0].startswith("freerun: ")
    assert says.format(tmp=tmp_path) in errors[0]


def test_ctrl_c_keeps_what_was_judged(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    os.mkfifo(tmp_path / "out")
    file = written(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "hang"}])
    command = ["judge", "--reward", f"{tmp_path}/mine.py:reward", file, "--timeout-s", 600, "--out", tmp_path / "out"]
    arguments = [sys.executable, "-m", "freerun.cli.main", *map(str, command)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        with (tmp_path / "out").open() as out:
            first = out.readline()
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert json.loads(first)["reward"] == 1.0


def test_a_judge_that_asks_for_the_whole_sample_sees_what_the_row_tells(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def reward(task, sample):\n"
        "    roles = ' '.join(message['role'] for message in sample.messages)\n"
        "    assert sample.group == [sample] and sample.finish == task.answer, (sample, task.answer)\n"
        "    return {'user assistant': 1, 'user assistant tool assistant': 2}[roles]\n"
    )
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "tool", "assistant")]
    rows: list[dict[str, Any]] = [
        {"prompt": "?", "text": "x", "answer": "stop"},
        {"text": "x", "messages": said, "finish_reason": "length", "answer": "length"},
        {"prompt": said[:1], "completion": said[1:], "answer": "stop"},
    ]
    out = tmp_path / "verdicts.jsonl"
    done = freerun("judge", "--reward", tmp_path / "mine.py:reward", written(tmp_path / "r.jsonl", rows), "--out", out)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [1, 2, 2], out.read_text()
