import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, FreerunError, RewardError, Task
from freerun.machine.forked import ForkServer
from freerun.rewards import pool
from freerun.rewards.base import GroupJudge, JudgeReason, Verdict
from freerun.rewards.config import RewardConfig
from freerun.rewards.process import JudgeWorker
from freerun.rewards.service import JudgeService
from tests.rewards.processes import wait_until_ended

JudgeFile = Callable[[str], str]

TASK = Task("t", "", [], "5")

# The text says what to do, and `task.answer` where to write its process id.
SCRIPTED = """
    import os, subprocess, time
    def write_pid(path, pid):
        with open(path, "w") as file:
            file.write(str(pid) + "\\n")
    def reward(task, text):
        if text == "hang":
            while True: pass
        if text == "pid and hang":
            write_pid(task.answer, os.getpid())
            while True: pass
        if text == "child and hang":
            write_pid(task.answer, subprocess.Popen(["sleep", "1000"]).pid)
            while True: pass
        if text == "child and exit":
            write_pid(task.answer, subprocess.Popen(["sleep", "1000"]).pid)
            os._exit(4)
        if text == "pid":
            write_pid(task.answer, os.getpid())
        if text == "exit":
            print("last words")
            os._exit(3)
        if text == "raise":
            raise ValueError("no good")
        if text == "print":
            print("x" * 1_000_000)
        if text == "nan":
            return float("nan")
        return len(text)
"""


def config(judge: str, **knobs: Any) -> RewardConfig:
    return RewardConfig(judge=judge, **{"workers": 1, "timeout_s": 30.0, **knobs})


@pytest.fixture
def scripted(judge_file: JudgeFile) -> str:
    return judge_file(SCRIPTED)


@pytest.fixture(autouse=True)
async def workers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[JudgeWorker]]:
    """The workers that a test starts, which must all have ended when it does, and so must their forkservers."""
    started: list[JudgeWorker] = []
    pidfds: list[int] = []
    begin, loaded = JudgeWorker.begin, ForkServer._loaded

    async def noted_worker(self: JudgeWorker, forked: asyncio.Future[int]) -> None:
        started.append(self)
        pidfds.append(os.pidfd_open(await forked))
        await begin(self, forked)

    async def noted_forkserver(self: ForkServer) -> None:
        pidfds.append(os.pidfd_open(self._child.process.pid))
        await loaded(self)

    monkeypatch.setattr(JudgeWorker, "begin", noted_worker)
    monkeypatch.setattr(ForkServer, "_loaded", noted_forkserver)
    yield started
    for pidfd in pidfds:
        wait_until_ended(pidfd)
    started.clear()
    gc.collect()  # a transport that was not closed complains here


@pytest.fixture
def pid_pipe(tmp_path: Path) -> tuple[Task, Path]:
    """A task whose judge writes a process id to a pipe, and that pipe."""
    path = tmp_path / "pid"
    os.mkfifo(path)
    return Task("t", "", [], str(path)), path


async def read_pid(path: Path) -> int:
    """Wait for the process id that the judge writes."""
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    loop, written = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe, written.set)
    try:
        async with asyncio.timeout(20):
            await written.wait()
        return int(os.read(pipe, 100))
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


async def test_built_in_judges() -> None:
    async with JudgeService(config("number")) as service:
        judge: GroupJudge = service
        assert await judge.judge_all(TASK, ["it is 5."]) == [Verdict(1.0, JudgeReason.OK)]
        assert await service.judge(TASK, "it is 6.") == Verdict(0.0, JudgeReason.OK)
    assert service.counts == {JudgeReason.OK: 2}


async def test_many_judgements_each_get_their_own_verdict(scripted: str) -> None:
    async with JudgeService(config(scripted, workers=2)) as service:
        verdicts = await asyncio.gather(*(service.judge(TASK, "x" * n) for n in range(200)))
    assert [verdict.reward for verdict in verdicts] == [float(n) for n in range(200)]


async def test_a_hang_costs_only_its_own_verdict(scripted: str) -> None:
    async with JudgeService(config(scripted, workers=2)) as service:
        hung = asyncio.create_task(service.judge(TASK, "hang"))
        verdicts = await asyncio.gather(*(service.judge(TASK, "x") for _ in range(50)))
        assert not hung.done()
    assert {verdict.reward for verdict in verdicts} == {1.0}
    assert service.counts == {JudgeReason.OK: 50}
    with pytest.raises(FreerunError, match="closed"):
        await hung


async def test_a_hang_is_killed_and_the_worker_replaced(scripted: str, workers: list[JudgeWorker]) -> None:
    async with JudgeService(config(scripted, timeout_s=0.5)) as service:
        hung = await service.judge(TASK, "hang")
        assert hung == Verdict(None, JudgeReason.TIMEOUT, "no verdict after 0.5 s: killed")
        assert await service.judge(TASK, "x") == Verdict(1.0, JudgeReason.OK)
        assert len(workers) == 2
    assert service.counts == {JudgeReason.TIMEOUT: 1, JudgeReason.OK: 1}


async def test_the_deadline_counts_neither_start_up_nor_waiting(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import time
        def burn(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end: pass
        burn(0.6)
        def reward(task, text):
            burn(0.15)
            return 1
    """)
    async with JudgeService(config(judge, timeout_s=0.5)) as service:
        verdicts = await asyncio.gather(*(service.judge(TASK, "") for _ in range(4)))
    assert [verdict.reason for verdict in verdicts] == [JudgeReason.OK] * 4


async def test_numbers_of_any_size_reach_a_judge_and_come_back(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        def reward(task, text):
            assert task.extra["number"] == 2**200 and task.extra["half"] == "?", task.extra
            return float(int(text) == task.extra["number"])
    """)
    task = Task("t", "", [], extra={"number": 2**200, "half": "\ud800"})
    async with JudgeService(config(judge)) as service:
        assert (await service.judge(task, str(2**200))).reward == 1.0
        assert (await service.judge(task, "1")).reward == 0.0


async def test_a_crash_is_explained_and_the_worker_replaced(scripted: str) -> None:
    async with JudgeService(config(scripted)) as service:
        assert await service.judge(TASK, "exit") == Verdict(
            None, JudgeReason.CRASH, "the reward worker ended with code 3\nlast words"
        )
        assert (await service.judge(TASK, "x")).reward == 1.0
    assert service.counts == {JudgeReason.CRASH: 1, JudgeReason.OK: 1}


async def test_a_crash_is_tried_again_by_another_worker(judge_file: JudgeFile, tmp_path: Path) -> None:
    """And a time-out is not: the same input would only hang again."""
    judge = judge_file(f"""
        import os
        def reward(task, text):
            with open({str(tmp_path / "tries")!r}, "a+") as tries:
                tries.write(text)
                tries.seek(0)
                tried = tries.read().count(text)
            if text == "c" and tried <= 2:
                os._exit(3)
            if text == "e":
                raise ValueError("the same again would not help")
            while text == "h": pass
            return tried
    """)
    async with JudgeService(config(judge, timeout_s=0.3), retries=2) as service:
        assert (await service.judge(TASK, "c")).reward == 3.0
        assert (await service.judge(TASK, "h")).reason is JudgeReason.TIMEOUT
        assert (await service.judge(TASK, "e")).reason is JudgeReason.ERROR
    assert (tmp_path / "tries").read_text() == "ccche"
    assert service.counts == {JudgeReason.OK: 1, JudgeReason.TIMEOUT: 1, JudgeReason.ERROR: 1}


async def test_workers_are_replaced_before_they_grow(
    scripted: str, monkeypatch: pytest.MonkeyPatch, workers: list[JudgeWorker]
) -> None:
    monkeypatch.setattr(pool, "JUDGEMENTS_PER_WORKER", 10)
    async with JudgeService(config(scripted)) as service:
        verdicts = await asyncio.gather(*(service.judge(TASK, "x" * n) for n in range(45)))
    assert [verdict.reward for verdict in verdicts] == [float(n) for n in range(45)]
    assert [worker.asked for worker in workers] == [10, 10, 10, 10, 5]


async def test_unparseable_answers_are_counted_and_are_no_failure() -> None:
    async with JudgeService(config("number"), give_up_after=1) as service:
        for _ in range(3):
            verdict = await service.judge(TASK, "no idea")
            assert (verdict.reward, verdict.reason) == (0.0, JudgeReason.UNPARSEABLE)
    assert service.counts == {JudgeReason.UNPARSEABLE: 3}


async def test_errors_keep_the_worker(scripted: str, workers: list[JudgeWorker]) -> None:
    async with JudgeService(config(scripted)) as service:
        raised = await service.judge(TASK, "raise")
        nan = await service.judge(TASK, "nan")
        assert (await service.judge(TASK, "x")).reward == 1.0
        assert len(workers) == 1
    assert (raised.reward, raised.reason) == (None, JudgeReason.ERROR)
    assert raised.detail.startswith("ValueError: no good\nTraceback")
    assert nan == Verdict(None, JudgeReason.ERROR, "a reward must be a finite number, not nan")
    assert service.counts == {JudgeReason.ERROR: 2, JudgeReason.OK: 1}


async def test_printing_does_no_harm_and_goes_to_the_log(scripted: str, tmp_path: Path) -> None:
    async with JudgeService(config(scripted), log=tmp_path / "judge.log") as service:
        assert (await service.judge(TASK, "print")).reward == 5.0
        assert (await service.judge(TASK, "print")).reward == 5.0
    assert (tmp_path / "judge.log").read_text() == ("x" * 1_000_000 + "\n") * 2


@pytest.mark.parametrize("order", ["child and hang", "child and exit"])
async def test_a_judges_children_die_with_its_worker(scripted: str, order: str, pid_pipe: tuple[Task, Path]) -> None:
    task, path = pid_pipe
    async with JudgeService(config(scripted, timeout_s=0.5), retries=0) as service:
        judging = asyncio.create_task(service.judge(task, order))
        child = os.pidfd_open(await read_pid(path))
        assert (await judging).reason in (JudgeReason.TIMEOUT, JudgeReason.CRASH)
        wait_until_ended(child)


async def test_a_worker_that_died_idle_fails_no_judgement(
    scripted: str, pid_pipe: tuple[Task, Path], workers: list[JudgeWorker]
) -> None:
    task, path = pid_pipe
    async with JudgeService(config(scripted), retries=0) as service:
        _, pid = await asyncio.gather(service.judge(task, "pid"), read_pid(path))
        os.kill(pid, signal.SIGKILL)
        await workers[0]._connection.reader._wait_for_data("test")  # type: ignore[attr-defined]
        assert (await service.judge(TASK, "x")).reward == 1.0
    assert service.counts == {JudgeReason.OK: 2}


async def test_cancelling_a_running_judgement(scripted: str, pid_pipe: tuple[Task, Path]) -> None:
    """It is left to time out; the worker is replaced and the next caller gets its own verdict."""
    task, path = pid_pipe
    async with JudgeService(config(scripted, timeout_s=0.5)) as service:
        judging = asyncio.create_task(service.judge(task, "pid and hang"))
        await read_pid(path)
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging
        assert await service.judge(TASK, "x") == Verdict(1.0, JudgeReason.OK)
    assert service.counts == {JudgeReason.OK: 1}


async def test_cancelling_waiting_judgements_skips_them(scripted: str, pid_pipe: tuple[Task, Path]) -> None:
    task, path = pid_pipe
    async with JudgeService(config(scripted)) as service:
        running = asyncio.create_task(service.judge(task, "pid"))
        waiting = [asyncio.create_task(service.judge(TASK, "hang")) for _ in range(5)]
        last = asyncio.create_task(service.judge(TASK, "xx"))
        await asyncio.wait({running}, timeout=0)  # let all of them ask
        for judging in waiting:
            judging.cancel()
        await read_pid(path)
        assert (await running).reward == 3.0
        assert (await last).reward == 2.0
    assert service.counts == {JudgeReason.OK: 2}


async def test_cancelled_calls_under_load_leave_verdicts_with_their_callers(scripted: str) -> None:
    async with JudgeService(config(scripted, workers=2)) as service:
        judging = [asyncio.create_task(service.judge(TASK, "x" * n)) for n in range(200)]
        for n, one in enumerate(judging):
            if n % 3 == 0:
                asyncio.get_running_loop().call_later(n * 0.0002, one.cancel)
        ended = await asyncio.gather(*judging, return_exceptions=True)
    for n, verdict in enumerate(ended):
        assert isinstance(verdict, asyncio.CancelledError) or verdict == Verdict(float(n), JudgeReason.OK)
    assert all(isinstance(verdict, Verdict) for n, verdict in enumerate(ended) if n % 3)


async def test_giving_up_after_failures_in_a_row(scripted: str) -> None:
    async with JudgeService(config(scripted), give_up_after=3) as service:
        for text in ("raise", "nan", "x", "raise", "nan"):
            assert isinstance(await service.judge(TASK, text), Verdict)
        waiting = asyncio.gather(*(service.judge(TASK, "raise") for _ in range(3)), return_exceptions=True)
        for error in (*await waiting, *await asyncio.gather(service.judge(TASK, "x"), return_exceptions=True)):
            assert isinstance(error, RewardError)
            assert str(error).startswith("3 judgements in a row failed (3 error), the first with: ")
            assert "mine.py:24: ValueError: no good;" in str(error)
            assert "\n" not in str(error)
            assert "in reward" in error.detail
    assert service.counts == {JudgeReason.ERROR: 5, JudgeReason.OK: 1}


async def test_hangs_and_crashes_count_as_failures(scripted: str) -> None:
    async with JudgeService(config(scripted, timeout_s=0.5), give_up_after=2) as service:
        await service.judge(TASK, "exit")
        with pytest.raises(RewardError, match=r"2 judgements in a row failed \(1 crash, 1 timeout\)"):
            await service.judge(TASK, "hang")


async def test_closing_is_quick_and_answers_everybody(scripted: str, pid_pipe: tuple[Task, Path]) -> None:
    task, path = pid_pipe
    async with JudgeService(config(scripted, workers=2)) as service:
        orders = [service.judge(task, "pid and hang"), *(service.judge(TASK, "hang") for _ in range(3))]
        judging = [asyncio.create_task(order) for order in orders]
        await read_pid(path)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0
    for error in await asyncio.gather(*judging, return_exceptions=True):
        assert isinstance(error, FreerunError)
        assert str(error) == "the judge service is closed"
    with pytest.raises(FreerunError, match="closed"):
        await service.judge(TASK, "x")


async def test_cancelling_while_workers_start(judge_file: JudgeFile, pid_pipe: tuple[Task, Path]) -> None:
    _, path = pid_pipe
    judge = judge_file(f"import os\nopen({str(path)!r}, 'w').write('1')\nwhile True: pass\ndef reward(t, x): pass")

    async def use() -> None:
        async with JudgeService(config(judge)):
            pass

    starting = asyncio.create_task(use())
    await read_pid(path)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_judge_that_cannot_be_loaded(judge_file: JudgeFile) -> None:
    judge = judge_file("import nothing_of_this_name\ndef reward(task, text): pass")
    with pytest.raises(RewardError) as caught:
        await JudgeService(config(judge, workers=2)).__aenter__()
    path = judge.partition(":")[0]
    line = f"{path}:1: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert (str(caught.value), caught.value.detail) == (f"the judge {judge} cannot be loaded: {line}", "")
    with pytest.raises(RewardError, match="cannot be loaded: its process ended with code 7"):
        await JudgeService(config(judge_file("import os\nos._exit(7)\ndef reward(t, x): pass"))).__aenter__()


async def test_workers_judge_by_what_was_loaded_at_the_start(judge_file: JudgeFile, scripted: str) -> None:
    """Editing the file of a running judge changes nothing; only a forkserver started anew reads it again."""
    async with JudgeService(config(scripted)) as service:
        judge_file("raise ValueError('edited meanwhile')\ndef reward(task, text): pass")
        assert (await service.judge(TASK, "exit")).reason is JudgeReason.CRASH
        assert (await service.judge(TASK, "x")).reward == 1.0


async def test_a_forkserver_that_dies_is_replaced(
    scripted: str, monkeypatch: pytest.MonkeyPatch, judge_file: JudgeFile
) -> None:
    forkservers: list[ForkServer] = []
    loaded = ForkServer._loaded

    async def noted(self: ForkServer) -> None:
        forkservers.append(self)
        await loaded(self)

    monkeypatch.setattr(ForkServer, "_loaded", noted)
    async with JudgeService(config(scripted, workers=2), retries=9) as service, asyncio.timeout(30):
        os.kill(forkservers[0]._child.process.pid, signal.SIGKILL)
        while len(forkservers) < 2:  # its workers die a moment after it, and judge until then
            assert (await service.judge(TASK, "x")).reward == 1.0
        judge_file("raise ValueError('edited meanwhile')\ndef reward(task, text): pass")
        os.kill(forkservers[1]._child.process.pid, signal.SIGKILL)
        with contextlib.suppress(RewardError):
            while True:
                assert (await service.judge(TASK, "x")).reward == 1.0
        with pytest.raises(RewardError, match=r"cannot be loaded: .*mine\.py:1: ValueError: edited meanwhile"):
            await service.judge(TASK, "x")


async def test_forkservers_that_keep_dying_are_given_up(scripted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(self: ForkServer, kind: type[JudgeWorker]) -> JudgeWorker:
        await self.end()
        raise ConnectionError

    monkeypatch.setattr(ForkServer, "fork", dies)
    with pytest.raises(RewardError, match="no worker can be forked: the process that loads the judges died 3 times"):
        await JudgeService(config(scripted)).__aenter__()


async def test_an_unknown_judge_starts_nothing(workers: list[JudgeWorker]) -> None:
    with pytest.raises(ConfigError, match="did you mean math"):
        await JudgeService(config("maths")).__aenter__()
    with pytest.raises(FreerunError, match="not open"):
        await JudgeService(config("exact")).judge(TASK, "x")
    assert workers == []


def test_every_knob_has_one_line_of_help() -> None:
    for name, field in RewardConfig.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description, name


@pytest.mark.parametrize(
    ("judge", "judged"), [("number", 2), (["exact", "number"], 2), ({"name": "number", "cache": False}, 5)]
)
async def test_pure_judges_judge_the_same_answer_once(judge: Any, judged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    real = JudgeWorker.judge

    async def counted(self: JudgeWorker, request: bytes, timeout_s: float) -> Verdict | None:
        asked.append(request)
        return await real(self, request, timeout_s)

    monkeypatch.setattr(JudgeWorker, "judge", counted)
    async with JudgeService(RewardConfig(judge=judge, workers=2)) as service:
        first = await service.judge_all(TASK, ["5", "6", "5"])
        again = [await service.judge(TASK, "5"), await service.judge(TASK, "6")]
    right, wrong = first[0].reward, first[1].reward
    assert right != wrong
    assert [verdict.reward for verdict in (*first, *again)] == [right, wrong, right, right, wrong]
    assert len(asked) == judged
    assert service.counts[JudgeReason.OK] == 5


async def test_a_users_function_is_called_every_time(judge_file: JudgeFile) -> None:
    path = judge_file("""
        count = 0
        def reward(task, text):
            global count
            count += 1
            return count
    """)
    async with JudgeService(RewardConfig(judge=path, workers=1)) as service:
        assert [(await service.judge(TASK, "5")).reward for _ in range(3)] == [1, 2, 3]
        assert [verdict.reward for verdict in await service.judge_all(TASK, ["5", "5"])] == [4, 5]


async def test_answers_are_judged_together_and_some_of_them_may_fail(scripted: str) -> None:
    async with JudgeService(RewardConfig(judge=scripted, workers=2, timeout_s=0.5), retries=0) as service:
        verdicts = await service.judge_all(TASK, ["hang", "abc", "exit", "abc"])
    assert [verdict.reason.value for verdict in verdicts] == ["timeout", "ok", "crash", "ok"]
    assert [verdict.reward for verdict in verdicts] == [None, 3.0, None, 3.0]


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_judge_that_forks_answers_for_itself_alone(judge_file: JudgeFile, retries: int) -> None:
    """Its children come back as if they were the judge; or answer later, in the middle of another judgement."""
    judge = judge_file("""
        import ctypes, os
        def reward(task, text):
            if text.startswith("fork"):
                if os.fork() == 0:
                    return 99
            if text.startswith("late"):
                if ctypes.CDLL(None).fork() == 0:  # behind Python's back
                    for number in range(3, 64):
                        try: os.write(number, b"x" * 8 + (1).to_bytes(4, "big") + b"\\x01")
                        except OSError: pass
                    os._exit(0)
                os.wait()
            return len(text)
    """)
    texts = [f"{kind}{'x' * n}" for n in range(12) for kind in ("fork", "late", "a", "b")]
    async with JudgeService(config(judge, workers=2), retries=retries) as service:
        verdicts = await asyncio.gather(*(service.judge(TASK, text) for text in texts))
    for text, verdict in zip(texts, verdicts, strict=True):
        if not text.startswith("late"):
            assert verdict == Verdict(float(len(text)), JudgeReason.OK), text
        assert verdict.reward in (None, len(text))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, what has left its group is not found")
@pytest.mark.parametrize("order", ["hang", "exit", "stay"])
async def test_a_daemon_of_a_judge_ends_with_it(judge_file: JudgeFile, order: str, pid_pipe: tuple[Task, Path]) -> None:
    task, path = pid_pipe
    judge = judge_file("""
        import os, signal
        def reward(task, text):
            written, writes = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    with open(task.answer, "w") as file:
                        file.write(f"{os.getpid()}\\n")
                    os.write(writes, b".")
                    while True: signal.pause()
                os._exit(0)
            os.wait()
            os.read(written, 1)  # else it may be killed before it has said who it is
            if text == "exit": os._exit(3)
            while text == "hang": pass
            return 1
    """)
    async with JudgeService(config(judge, timeout_s=0.5 if order == "hang" else 30), retries=0) as service:
        judging = asyncio.create_task(service.judge(task, order))
        daemon = os.pidfd_open(await read_pid(path))
        await judging
        if order != "stay":
            wait_until_ended(daemon)
    if order == "stay":
        wait_until_ended(daemon)


async def test_a_judge_that_takes_too_much_memory_fails_alone(
    judge_file: JudgeFile, workers: list[JudgeWorker]
) -> None:
    judge = judge_file("""
        kept = []
        def reward(task, text):
            while text == "more": kept.append(bytearray(64 << 20))
            return len(kept)
    """)
    async with JudgeService(config(judge, workers=64), retries=0) as service:  # of the machine, each has little
        verdicts = [await service.judge(TASK, text) for text in ("more", "x", "x")]
    assert verdicts[0] == Verdict(None, JudgeReason.CRASH, "the judge wants more memory than a worker may have")
    assert [verdict.reward for verdict in verdicts[1:]] == [0.0, 0.0]


async def test_async_judges(judge_file: JudgeFile) -> None:
    judge = judge_file("""
        import asyncio
        loops = set()
        async def reward(task, text, more=0):
            await asyncio.sleep(0)
            loops.add(id(asyncio.get_running_loop()))
            if text == "raise": raise ValueError("no good")
            while text == "hang": await asyncio.sleep(1)
            return len(text) + more + 100 * (len(loops) - 1)
    """)
    spec = RewardConfig(judge={"name": judge, "more": 10}, workers=1, timeout_s=0.5)
    async with JudgeService(spec, retries=0) as service:
        assert [(await service.judge(TASK, text)).reward for text in ("a", "bb")] == [11.0, 12.0]
        assert (await service.judge(TASK, "raise")).detail.startswith("ValueError: no good")
        assert (await service.judge(TASK, "hang")).reason is JudgeReason.TIMEOUT


@pytest.fixture
def forkservers(monkeypatch: pytest.MonkeyPatch) -> list[ForkServer]:
    """Those that are started."""
    started: list[ForkServer] = []
    loaded = ForkServer._loaded

    async def noted(self: ForkServer) -> None:
        started.append(self)
        await loaded(self)

    monkeypatch.setattr(ForkServer, "_loaded", noted)
    monkeypatch.setattr("freerun.machine.stopped.STOPPED_S", 0.5)
    return started


@pytest.mark.parametrize("victim", ["worker", "forkserver"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_no_judgement_is_lost_with_a_process(
    judge_file: JudgeFile,
    workers: list[JudgeWorker],
    forkservers: list[ForkServer],
    victim: str,
    how: signal.Signals,
) -> None:
    judge = judge_file("import time\ndef reward(task, text):\n    time.sleep(0.01)\n    return len(text)")
    async with JudgeService(config(judge, workers=2)) as service, asyncio.timeout(30):
        judging = [asyncio.create_task(service.judge(TASK, "x" * n)) for n in range(150)]
        await asyncio.wait(judging[:10])
        if victim == "worker":
            assert workers[0]._pid
            os.kill(workers[0]._pid, how)
        else:
            os.kill(forkservers[0]._child.process.pid, how)
            assert workers[0]._pid
            os.kill(workers[0]._pid, signal.SIGKILL)  # nobody can put another in its place meanwhile
        assert [(await one).reward for one in judging] == [float(n) for n in range(150)]
    assert service.counts[JudgeReason.OK] == 150


async def test_what_is_killed_while_it_loads_is_started_again(
    judge_file: JudgeFile, forkservers: list[ForkServer], pid_pipe: tuple[Task, Path]
) -> None:
    _, path = pid_pipe
    loads = f"import os\nwith open({str(path)!r}, 'w') as pipe: pipe.write(str(os.getpid()))\n"
    judge = judge_file(loads + "import time; time.sleep(0.2)\ndef reward(task, text): return 1.0")
    service = JudgeService(config(judge))
    opening = asyncio.create_task(service.__aenter__())
    first = await read_pid(path)
    os.kill(first, signal.SIGKILL)
    os.kill(await read_pid(path), signal.SIGSTOP)
    assert await read_pid(path) != first
    await opening
    assert (await service.judge(TASK, "x")).reward == 1.0
    await service.__aexit__(None, None, None)
    assert len(forkservers) == 3
