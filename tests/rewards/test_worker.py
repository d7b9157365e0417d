import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from freerun.core import Task
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import Request, frame, read_frame
from tests.rewards.gone import wait_until_gone

JudgeFile = Callable[[str], str]

TASK = Task("t", "what?", [1], "5", {"level": [1, {"a": None}]})


class Worker:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def read(self) -> Verdict:
        assert self.process.stdout is not None
        body = read_frame(self.process.stdout)
        assert body is not None
        return msgspec.msgpack.decode(body, type=Verdict)

    def ask(self, text: str, task: Task = TASK) -> Verdict:
        assert self.process.stdin is not None
        self.process.stdin.write(frame(Request(task, text)))
        self.process.stdin.flush()
        return self.read()


@contextmanager
def worker(judge: str) -> Iterator[Worker]:
    command = [sys.executable, "-m", "freerun.rewards.worker", judge]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def test_it_judges_until_its_input_ends() -> None:
    with worker("exact") as w:
        assert w.read() == Verdict(None, JudgeReason.OK)
        assert w.ask("5") == Verdict(1.0, JudgeReason.OK)
        assert w.ask("6") == Verdict(0.0, JudgeReason.OK)
        assert w.process.stdin is not None
        w.process.stdin.close()
        assert w.process.wait(10) == 0


def test_the_judge_sees_the_whole_task(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        from freerun.core import Task
        def reward(task, text):
            return task == Task("t", "what?", [1], "5", {"level": [1, {"a": None}]}) and text == "é" * 1_000_000
    """)
    with worker(judge) as w:
        w.read()
        assert w.ask("é" * 1_000_000) == Verdict(1.0, JudgeReason.OK)


@pytest.mark.parametrize(
    ("body", "reward"), [("True", 1.0), ("3", 3.0), ("-0.5", -0.5), ("np.float32(2)", 2.0), ("np.int64(2)", 2.0)]
)
def test_what_is_a_number(judge_file: JudgeFile, body: str, reward: float) -> None:
    with worker(judge_file(f"import numpy as np\ndef reward(task, text): return {body}")) as w:
        w.read()
        assert w.ask("") == Verdict(reward, JudgeReason.OK)


def test_failures_are_explained_and_survived(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import sys
        def deep(text):
            return {"a": 1}[text]
        def reward(task, text):
            if text == "exit":
                sys.exit(3)
            if text == "huge":
                return 10**400
            if text in ("nan", "inf"):
                return float(text)
            return None if text == "none" else deep(text)
    """)
    with worker(judge) as w:
        w.read()
        missing = w.ask("b")
        assert (missing.reward, missing.reason) == (None, JudgeReason.ERROR)
        assert missing.detail.startswith("KeyError: 'b'\nTraceback")
        assert "in deep" in missing.detail
        assert "worker.py" not in missing.detail
        assert w.ask("exit").detail.startswith("SystemExit: 3")
        assert w.ask("huge").detail.startswith("OverflowError")
        assert w.ask("nan") == Verdict(None, JudgeReason.ERROR, "a reward must be a finite number, not nan")
        assert w.ask("inf") == Verdict(None, JudgeReason.ERROR, "a reward must be a finite number, not inf")
        assert w.ask("none") == Verdict(None, JudgeReason.ERROR, "a reward must be a number, not None")
        assert w.ask("a") == Verdict(1.0, JudgeReason.OK)


def test_a_judge_cannot_reach_the_pipes(judge_file: JudgeFile) -> None:
    """Prints, a child that prints, and reading standard input, all of it harmless."""
    judge = judge_file("""
        import os, subprocess, sys
        print("while loading")
        def reward(task, text):
            print("to stdout")
            os.write(1, b"to its descriptor\\n")
            subprocess.run(["echo", "from a child"], check=True)
            return len(sys.stdin.read()) + len(subprocess.run(["cat"], stdout=subprocess.PIPE).stdout)
    """)
    with worker(judge) as w:
        w.read()
        assert w.ask("") == Verdict(0.0, JudgeReason.OK)
        assert w.ask("") == Verdict(0.0, JudgeReason.OK)
        w.process.kill()
        assert w.process.stderr is not None
        assert w.process.stderr.read().splitlines() == [
            b"while loading",
            *(b"to stdout", b"to its descriptor", b"from a child") * 2,
        ]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import nothing_of_this_name\ndef reward(task, text): pass", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(2)\ndef reward(task, text): pass", "SystemExit: 2"),
        ("from os import *", "has no function reward"),
        ("def reward(task, text) pass", "not valid Python"),
    ],
)
def test_a_judge_that_cannot_be_loaded(judge_file: JudgeFile, source: str, line: str) -> None:
    with worker(judge_file(source)) as w:
        verdict = w.read()
        assert verdict.reason is JudgeReason.ERROR
        assert line in verdict.detail.splitlines()[0]
        assert w.process.wait(10) == 1


def test_a_file_imports_its_neighbours(tmp_path: Path, judge_file: JudgeFile) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 7")
    with worker(judge_file("from neighbour import VALUE\ndef reward(task, text): return VALUE")) as w:
        w.read()
        assert w.ask("") == Verdict(7.0, JudgeReason.OK)


def test_nothing_heavy_is_imported(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import sys
        def reward(task, text):
            heavy = {"pydantic", "torch", "transformers", "datasets", "numpy", "asyncio", "sympy", "reasoning_gym"}
            raise ValueError(sorted(heavy & set(sys.modules)))
    """)
    with worker(judge) as w:
        w.read()
        assert w.ask("").detail.startswith("ValueError: []\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only an idle worker notices")
def test_a_judging_worker_dies_with_its_parent(judge_file: JudgeFile) -> None:
    """The parent is killed while its worker is in a loop that never reads its input."""
    judge = judge_file("""
        import os
        def reward(task, text):
            os.write(2, f"{os.getpid()}\\n".encode())
            while True: pass
    """)
    parent = f"""
import subprocess, sys
from freerun.core import Task
from freerun.rewards.protocol import Request, frame
worker = subprocess.Popen([sys.executable, "-m", "freerun.rewards.worker", {judge!r}], stdin=subprocess.PIPE)
worker.stdin.write(frame(Request(Task("t", "", []), "")))
worker.stdin.flush()
worker.wait()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.DEVNULL, stderr=pipe) as process:
        assert process.stderr is not None
        pid = int(process.stderr.readline())
        pidfd = os.pidfd_open(pid)
        process.send_signal(signal.SIGKILL)
        wait_until_gone(pidfd)


def test_a_torn_frame_is_the_end() -> None:
    whole = frame(Request(TASK, "text"))
    assert read_frame(io.BytesIO(whole)) == whole[4:]
    assert read_frame(io.BytesIO(whole[:-1])) is None
    assert read_frame(io.BytesIO(whole[:3])) is None
    assert read_frame(io.BytesIO(b"")) is None
