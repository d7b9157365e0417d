"""ForkServer and worker as processes, spoken to over their own sockets."""

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from freerun.core import Task
from freerun.machine.forked import ONE_THREAD
from freerun.machine.forkserver import FORK, ORDER, WAS_ALIVE, Loaded
from freerun.machine.frames import frame, read_frame
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.protocol import Request
from freerun.rewards.spec import JudgeSetting, parse_judge
from tests.rewards.processes import wait_until_ended

JudgeFile = Callable[[str], str]

MEMORY = 1 << 30
MARK = b"12345678"
TASK = Task("t", "what?", [1], "5", {"level": [1, {"a": None}]})


T = TypeVar("T")


def read(stream: io.BufferedReader, kind: type[T]) -> T:
    body = read_frame(stream)
    assert body is not None
    return msgspec.msgpack.decode(body, type=kind)


class ForkServer:
    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
        self.process = process
        self.control = control
        self.ready = read(control.makefile("rb", buffering=0), Loaded)  # type: ignore[arg-type]

    def fork(self) -> "JudgeWorker":
        ours, theirs = socket.socketpair()
        printed, prints = os.pipe()
        with theirs:
            socket.send_fds(self.control, [ORDER.pack(FORK)], [theirs.fileno(), prints])
        os.close(prints)
        return JudgeWorker(self, ours, self.reply(), open(printed, "rb"))

    def end(self, pid: int) -> int:
        self.control.sendall(ORDER.pack(pid))
        return self.reply()

    def reply(self) -> int:
        (value,) = ORDER.unpack(self.control.recv(ORDER.size))
        return int(value)


class JudgeWorker:
    def __init__(self, forkserver: ForkServer, connection: socket.socket, pid: int, printed: io.BufferedReader) -> None:
        self.forkserver = forkserver
        self.connection = connection
        self.replies = connection.makefile("rb")
        self.pid = pid
        self.printed = printed

    def loaded(self) -> Loaded:
        return read(self.replies, Loaded)

    def ask(self, text: str, task: Task = TASK) -> Verdict:
        self.connection.sendall(MARK + frame(Request(task, text)))
        assert self.replies.read(len(MARK)) == MARK
        return read(self.replies, Verdict)

    def close(self) -> None:
        for stream in (self.replies, self.connection, self.printed):
            stream.close()


def command(control: socket.socket, judge: JudgeSetting) -> list[str]:
    parts = msgspec.json.encode(parse_judge(judge)).decode()
    return [sys.executable, "-m", "freerun.rewards.forkserver", str(control.fileno()), parts, str(MEMORY)]


@contextmanager
def forkserver(judge: JudgeSetting) -> Iterator[ForkServer]:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            command(theirs, judge),
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ONE_THREAD},
        ) as process,
    ):
        theirs.close()
        try:
            yield ForkServer(process, ours)
        finally:
            process.kill()


@contextmanager
def worker(judge: JudgeSetting) -> Iterator[JudgeWorker]:
    with forkserver(judge) as z:
        assert z.ready == Loaded()
        w = z.fork()
        try:
            assert w.loaded() == Loaded()
            yield w
        finally:
            w.close()


def test_it_judges_until_its_input_ends() -> None:
    with worker("exact") as w:
        assert w.ask("5") == Verdict(1.0, JudgeReason.OK)
        assert w.ask("6") == Verdict(0.0, JudgeReason.OK)
        w.connection.shutdown(socket.SHUT_WR)
        assert w.replies.read() == b""
        assert w.printed.read() == b""


def test_the_forkserver_forks_and_ends_workers(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import os
        def reward(task, text):
            if text == "exit":
                os._exit(3)
            return os.getpid()
    """)
    with forkserver(judge) as z:
        first, second = z.fork(), z.fork()
        for w in (first, second):
            w.loaded()
            assert w.ask("").reward == w.pid
        first.connection.sendall(MARK + frame(Request(TASK, "exit")))
        assert first.replies.read() == b""
        assert z.end(-first.pid) == 3, "it has closed its socket, so its end is waited for"
        assert z.end(second.pid) == WAS_ALIVE
        assert z.end(second.pid) == WAS_ALIVE, "harmless, though somebody else may have the number by now"
        assert second.replies.read() == b""
        third = z.fork()
        third.loaded()
        assert third.ask("").reward == third.pid
        pidfd = os.pidfd_open(third.pid)
        z.control.close()
        assert z.process.wait(10) == 0
        wait_until_ended(pidfd)
        for w in (first, second, third):
            w.close()


def test_a_judge_that_starts_threads_is_loaded_by_each_worker(judge_file: JudgeFile, tmp_path: Path) -> None:
    """Forking it would leave locks locked. It is loaded once to find out, and then by each worker for itself."""
    judge = judge_file(f"""
        import os, threading
        with open({str(tmp_path / "loads")!r}, "a") as file:
            file.write("x")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        def reward(task, text):
            return threading.active_count()
    """)
    with forkserver(judge) as z:
        assert z.ready == Loaded()
        assert (tmp_path / "loads").read_text() == "x"
        w = z.fork()
        assert w.loaded() == Loaded()
        assert w.ask("") == Verdict(2.0, JudgeReason.OK)
        assert (tmp_path / "loads").read_text() == "xx"
        w.close()


@pytest.mark.parametrize("library", ["numpy", "torch", "reasoning_gym"])
def test_heavy_libraries_do_not_keep_it_from_forking(judge_file: JudgeFile, library: str, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    judge = judge_file(f"import {library}\nopen({str(loads)!r}, 'a').write('x')\ndef reward(task, text): return 1")
    with worker(judge) as w:
        assert w.ask("") == Verdict(1.0, JudgeReason.OK)
        assert loads.read_text() == "x"


def test_judges_are_added_up_by_weight(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        from freerun.rewards.base import Judged, JudgeReason
        def reward(task, text, bonus=0):
            if text == "raise":
                raise ValueError("no good")
            if text == "nothing":
                return Judged(0, JudgeReason.UNPARSEABLE, "nothing there")
            return len(text) + bonus
    """)
    length = {"name": "length", "unit": "characters", "weight": -0.5}
    with worker(["exact", {"name": judge, "weight": 2, "bonus": 10}, length]) as w:
        assert w.ask("5") == Verdict(1.0 + 2 * 11 - 0.5, JudgeReason.OK)
        assert w.ask("ab") == Verdict(0.0 + 2 * 12 - 1, JudgeReason.OK)
        assert w.ask("nothing") == Verdict(-3.5, JudgeReason.UNPARSEABLE, "nothing there")
        raised = w.ask("raise")
        assert (raised.reward, raised.reason) == (None, JudgeReason.ERROR)
        assert raised.detail.startswith(f"{judge}: ValueError: no good\nTraceback")


def test_the_judge_sees_the_whole_task(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        from freerun.core import Task
        def reward(task, text):
            return task == Task("t", "what?", [1], "5", {"level": [1, {"a": None}]}) and text == "é" * 1_000_000
    """)
    with worker(judge) as w:
        assert w.ask("é" * 1_000_000) == Verdict(1.0, JudgeReason.OK)


@pytest.mark.parametrize(
    ("body", "reward"), [("True", 1.0), ("3", 3.0), ("-0.5", -0.5), ("np.float32(2)", 2.0), ("np.int64(2)", 2.0)]
)
def test_which_values_are_numbers(judge_file: JudgeFile, body: str, reward: float) -> None:
    with worker(judge_file(f"import numpy as np\ndef reward(task, text): return {body}")) as w:
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
            if text in ("nan", "inf", "1e300"):
                return float(text)
            return None if text == "none" else deep(text)
    """)
    with worker(judge) as w:
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
        assert w.ask("1e300").detail == "a reward must be a number of at most 3.4e+38, not 1e+300"
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
        assert w.ask("") == Verdict(0.0, JudgeReason.OK)
        assert w.ask("") == Verdict(0.0, JudgeReason.OK)
        w.connection.shutdown(socket.SHUT_WR)
        assert w.printed.read().splitlines() == [b"to stdout", b"to its descriptor", b"from a child"] * 2
        w.forkserver.process.kill()
        assert w.forkserver.process.stderr is not None
        assert w.forkserver.process.stderr.read().splitlines() == [b"while loading"]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import nothing_of_this_name\ndef reward(task, text): pass", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(2)\ndef reward(task, text): pass", "SystemExit: 2"),
        ("from os import *", "has no function reward"),
        ("def reward(task, text) pass", "SyntaxError: expected ':'"),
    ],
)
def test_a_judge_that_cannot_be_loaded(judge_file: JudgeFile, source: str, line: str) -> None:
    with forkserver(judge_file(source)) as z:
        assert line in z.ready.error.splitlines()[0]
        assert z.process.wait(10) == 1


def test_a_file_imports_its_neighbors(tmp_path: Path, judge_file: JudgeFile) -> None:
    (tmp_path / "neighbor.py").write_text("VALUE = 7")
    with worker(judge_file("from neighbor import VALUE\ndef reward(task, text): return VALUE")) as w:
        assert w.ask("") == Verdict(7.0, JudgeReason.OK)


def test_nothing_heavy_is_imported(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import sys
        def reward(task, text):
            heavy = {"pydantic", "torch", "transformers", "datasets", "numpy", "asyncio", "sympy", "reasoning_gym"}
            raise ValueError(sorted(heavy & set(sys.modules)))
    """)
    with worker(judge) as w:
        assert w.ask("").detail.startswith("ValueError: []\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only an idle worker notices")
def test_a_judging_worker_dies_with_the_service(judge_file: JudgeFile, tmp_path: Path) -> None:
    """The service's process is killed while its worker is in a loop that never reads its input."""
    os.mkfifo(tmp_path / "word")
    judge = judge_file(f"""
        import os
        def reward(task, text):
            with open({str(tmp_path / "word")!r}, "w") as word:
                word.write(f"{{os.getpid()}} {{os.getppid()}}")
            while True: pass
    """)
    service = f"""
import asyncio
from freerun.core import Task
from freerun.rewards.config import RewardConfig
from freerun.rewards.service import JudgeService
async def main():
    async with JudgeService(RewardConfig(judge={judge!r})) as service:
        await service.judge(Task("t", "", []), "")
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", service]) as process:
        pidfds = [os.pidfd_open(int(pid)) for pid in (tmp_path / "word").read_text().split()]
        process.send_signal(signal.SIGKILL)
        for pidfd in pidfds:
            wait_until_ended(pidfd)


def test_a_torn_frame_is_the_end() -> None:
    whole = frame(Request(TASK, "text"))
    assert read_frame(io.BytesIO(whole)) == whole[4:]
    assert read_frame(io.BytesIO(whole[:-1])) is None
    assert read_frame(io.BytesIO(whole[:3])) is None
    assert read_frame(io.BytesIO(b"")) is None
