"""Agents in real processes: what they do wrong costs their own session, and nothing of them is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from freerun.core import ConfigError, FreerunError, Task
from freerun.machine.descendants import descendants
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import Access, AgentResult, SessionFailure
from tests.rewards.processes import wait_until_ended
from tests.rollouts.agents.conftest import AgentFile

ACCESS = Access("http://127.0.0.1:9/KEY/v1", "KEY")
SCRIPTED = """
import asyncio, ctypes, os, signal, subprocess, sys, threading, time
print("imported", flush=True)
PIDS = os.environ.get("PIDS")

def note(pid):
    with open(PIDS, "a") as file:
        file.write(f"{pid}\\n")

def daemon():
    "A grandchild in a session of its own, whose parent has ended: it belongs to nobody."
    if (child := os.fork()) == 0:
        os.setsid()
        if (grandchild := os.fork()) == 0:
            note(os.getpid())
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(end, b"x")
            while True:
                time.sleep(100)
        os._exit(0)
    os.waitpid(child, 0)

async def forever():
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass

async def politely(path):
    try:
        await asyncio.sleep(100)
    finally:
        open(path, "w").close()

class Odd:
    def __repr__(self):
        raise RuntimeError

async def run(task, session):
    global end
    match task.prompt:
        case "pid":
            return os.getpid()
        case "none":
            return None
        case "value":
            return eval(task.answer)
        case "raise":
            exec(compile("raise " + task.answer, __file__, "exec"))
        case "exit":
            print("goodbye", flush=True)
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill the forkserver":
            os.kill(os.getppid(), signal.SIGKILL)
            await asyncio.sleep(100)
        case "hang":
            note(os.getpid())
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
            while True:
                ctypes.CDLL(None).sleep(100)
        case "loop":
            note(os.getpid())
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        case "wait":
            note(os.getpid())
            open(task.answer, "w").close()
            await asyncio.sleep(100)
        case "daemons" | "daemons and hang":
            begin, end = os.pipe()
            note(os.getpid())
            note(subprocess.Popen(["sleep", "100"], start_new_session=True).pid)
            daemon()
            os.read(begin, 1)
            while task.prompt != "daemons":
                pass
            return 1.0
        case "thread":
            threading.Thread(target=time.sleep, args=(100,), daemon=True, name="poller").start()
            return os.getpid()
        case "executor":
            return await asyncio.to_thread(os.getpid)
        case "busy executor":
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 100)
            return os.getpid()
        case "task":
            session.kept = asyncio.create_task(politely(task.answer))
            await asyncio.sleep(0)
            return os.getpid()
        case "stubborn task":
            session.kept = asyncio.create_task(forever())
            await asyncio.sleep(0)
            return os.getpid()
        case "task that exits":
            async def leave():
                sys.exit(4)
            asyncio.create_task(leave())
            await asyncio.sleep(100)
        case "surroundings":
            seen = [os.getcwd(), os.environ.get("MINE")]
            os.chdir("/")
            os.environ["MINE"] = "left"
            del os.environ["PATH"]
            return float(seen == [task.answer, None])
        case "closed loop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(100)
        case "connection":
            os.closerange(3, 100)
            time.sleep(100)
        case "files":
            session.__class__.leaked = [open(os.devnull) for _ in range(400)]
            return os.getpid()
        case "streams and alarm":
            sys.stdout.close()
            sys.stdout = None
            signal.alarm(1)
            return os.getpid()
        case "generator":
            async def numbers():
                try:
                    yield 1
                finally:
                    await asyncio.sleep(0)
                    open(task.answer, "w").close()
            async for _ in numbers():
                break
            return os.getpid()
        case "noise":
            for _ in range(200):
                print("x" * 99_999)
            return 1.0
"""


def task(prompt: str, answer: str | None = None) -> Task:
    return Task("t", prompt, [1], answer)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where agents note the processes that they are and start."""
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


@pytest.fixture
async def pool(agent_file: AgentFile, pids: Path, tmp_path: Path) -> AsyncIterator[AgentPool]:
    async with AgentPool(agent_file(SCRIPTED), 4, tmp_path / "agents.log") as pool:
        yield pool


async def run(pool: AgentPool, prompt: str, answer: str | None = None, deadline_s: float = 30.0) -> AgentResult:
    return await pool.run(task(prompt, answer), ACCESS, deadline_s)


async def pid(pool: AgentPool, prompt: str = "pid", answer: str | None = None) -> int:
    """Belongs to the worker that ran it."""
    reward = (await run(pool, prompt, answer)).reward
    assert reward is not None
    return int(reward)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def noted(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().split()]


async def test_a_clean_worker_is_used_again(pool: AgentPool) -> None:
    first = await pid(pool)
    assert first != os.getpid()
    assert [await pid(pool, prompt) for prompt in ("pid", "executor", "pid")] == [first] * 3
    assert (await run(pool, "raise", "ValueError('x')")).failure is SessionFailure.ERROR
    assert await pid(pool) == first


@pytest.mark.parametrize("left", ["thread", "busy executor", "stubborn task", "files"])
async def test_a_worker_with_something_left_in_it_is_not(pool: AgentPool, left: str) -> None:
    first = await pid(pool, left)
    assert not alive(first)
    assert await pid(pool) != first


@pytest.mark.parametrize("left", ["task", "generator"])
async def test_tasks_and_generators_that_a_session_leaves_are_ended_with_it(
    pool: AgentPool, tmp_path: Path, left: str
) -> None:
    first = await pid(pool, left, str(tmp_path / "ended"))
    assert (tmp_path / "ended").exists()
    assert await pid(pool) == first


async def test_folder_environment_and_streams_are_restored(pool: AgentPool) -> None:
    results = [await run(pool, "surroundings", os.getcwd()) for _ in range(2)]
    assert [result.reward for result in results] == [1.0, 1.0]
    first = await pid(pool, "streams and alarm")
    assert [await pid(pool) for _ in range(2)] == [first] * 2


async def test_a_worker_is_replaced_after_so_many_sessions(agent_file: AgentFile) -> None:
    async with AgentPool(agent_file(SCRIPTED), 1, sessions_per_worker=2) as pool:
        seen = [await pid(pool) for _ in range(4)]
    assert seen[0] == seen[1] != seen[2] == seen[3]


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("1", 1.0),
        ("True", 1.0),
        ("0.5", 0.5),
        ("__import__('numpy').float32(0.5)", 0.5),
        ("__import__('numpy').bool_(1)", 1.0),
        ("None", None),
    ],
)
async def test_numbers_are_rewards(pool: AgentPool, value: str, reward: float | None) -> None:
    assert await run(pool, "value", value) == AgentResult(reward)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'hello'", "returned 'hello', which is no number"),
        ("float('nan')", "returned nan, which is no finite number of 32 bits"),
        ("1e39", "returned 1e+39, which is no finite"),
        ("10 ** 400", "which is no finite"),
        ("[1.0]", "returned [1.0], which is no number"),
        ("Odd()", "returned <Odd whose repr raises RuntimeError>"),
        ("'x' * 10000", f"returned '{'x' * 76}..., which is no number"),
    ],
)
async def test_anything_else_is_a_bad_result(pool: AgentPool, value: str, said: str) -> None:
    result = await run(pool, "value", value)
    assert (result.reward, result.failure) == (None, SessionFailure.BAD_RESULT)
    assert said in result.detail
    assert result.detail.endswith("an agent returns a number or None")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("KeyError('answer')", "KeyError: 'answer'"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("asyncio.CancelledError", "asyncio.exceptions.CancelledError"),
        ("BaseException('odd\\nlines')", "BaseException: odd lines"),
    ],
)
async def test_what_an_agent_raises_is_an_error(pool: AgentPool, tmp_path: Path, error: str, said: str) -> None:
    result = await run(pool, "raise", error)
    assert (result.reward, result.failure) == (None, SessionFailure.ERROR)
    assert result.detail == f"{tmp_path}/mine.py:1: {said}"


async def test_a_task_of_the_agents_that_exits_ends_the_session_alone(pool: AgentPool) -> None:
    result = await run(pool, "task that exits")
    assert (result.failure, "SystemExit: 4" in result.detail) == (SessionFailure.ERROR, True)
    assert await pid(pool)


async def test_a_loop_that_the_agent_stops_ends_the_session_alone(pool: AgentPool) -> None:
    assert "Event loop stopped" in (await run(pool, "closed loop")).detail
    assert await pid(pool)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("connection", "its process closed its connection to us, and was killed"),
        ("exit", "its process ended with code 3: goodbye"),
        ("kill", "its process was killed by SIGKILL"),
        ("segfault", "its process was killed by SIGSEGV: Fatal Python error: Segmentation fault, File "),
    ],
)
async def test_a_crash_says_how_it_died(pool: AgentPool, prompt: str, said: str) -> None:
    result = await run(pool, prompt)
    assert result.failure is SessionFailure.CRASH
    assert result.detail.startswith(said)
    assert await pid(pool)


async def test_a_forkserver_that_an_agent_kills_is_started_again(pool: AgentPool) -> None:
    assert (await run(pool, "kill the forkserver")).failure is SessionFailure.CRASH
    assert await pid(pool)


@pytest.mark.parametrize("prompt", ["hang", "loop", "daemons and hang"])
async def test_an_agent_is_gone_at_its_deadline_with_all_it_started(pool: AgentPool, pids: Path, prompt: str) -> None:
    began = time.monotonic()
    result = await run(pool, prompt, deadline_s=0.5)
    assert 0.5 <= time.monotonic() - began < 2.5
    assert (result.failure, result.detail) == (SessionFailure.DEADLINE, "not done after 0.5 s: killed")
    assert len(noted(pids)) == (3 if prompt == "daemons and hang" else 1)
    assert not any(map(alive, noted(pids)))


async def test_processes_that_an_agent_leaves_are_gone_with_its_result(pool: AgentPool, pids: Path) -> None:
    assert await run(pool, "daemons") == AgentResult(1.0)
    assert len(noted(pids)) == 3
    assert not any(map(alive, noted(pids)))


async def test_cancelling_a_call_ends_its_session(pool: AgentPool, pids: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    call = asyncio.create_task(run(pool, "wait", str(tmp_path / "begun")))
    await asyncio.to_thread((tmp_path / "begun").open)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not any(map(alive, noted(pids)))
    assert pool.running == 0


async def test_closing_ends_everything_and_refuses_calls(agent_file: AgentFile, pids: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    before = set(descendants(os.getpid()))
    async with AgentPool(agent_file(SCRIPTED), 1) as pool:
        running = asyncio.create_task(run(pool, "wait", str(tmp_path / "begun")))
        await asyncio.to_thread((tmp_path / "begun").open)
        waiting = asyncio.create_task(run(pool, "pid"))
        await asyncio.sleep(0)
        assert (pool.running, pool.waiting) == (1, 1)
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    for call in (running, waiting):
        with pytest.raises(FreerunError, match="the pool is closed"):
            await call
    assert set(descendants(os.getpid())) <= before


async def test_places_are_given_in_order(agent_file: AgentFile) -> None:
    ended: list[int] = []

    async def call(pool: AgentPool, number: int) -> None:
        await run(pool, "none")
        ended.append(number)

    async with AgentPool(agent_file(SCRIPTED), 1) as pool:
        await asyncio.gather(*(call(pool, number) for number in range(20)))
    assert ended == list(range(20))


async def test_what_agents_print_is_logged_and_bounded(pool: AgentPool, tmp_path: Path) -> None:
    assert await run(pool, "noise") == AgentResult(1.0)
    assert await pid(pool)
    log = (tmp_path / "agents.log").read_bytes()
    assert log.startswith(b"imported\n")
    assert 1 << 17 < len(log) < 10 << 20


def test_agents_die_with_a_controller_that_is_killed(agent_file: AgentFile, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    source = f"""
        import os
        async def run(task, session):
            with open({str(tmp_path / "pid")!r}, "w") as file:
                file.write(f"{{os.getpid()}} {{os.getppid()}}")
            while True:
                pass
    """
    spec = agent_file(source)
    controller = f"""
import asyncio
from freerun.core import Task
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import Access, AgentSpec
async def main():
    async with AgentPool(AgentSpec({spec.reference!r}, "the agent"), 1) as pool:
        await pool.run(Task("t", "", []), Access("", ""), 60.0)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", controller]) as process:
        started = [os.pidfd_open(int(pid)) for pid in (tmp_path / "pid").read_text().split()]
        process.send_signal(signal.SIGKILL)
    for pidfd in started:
        wait_until_ended(pidfd)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_here\nasync def run(task, session): pass", "mine.py:1: ModuleNotFoundError: No module named "
         "'nothing_here': install nothing_here"),
        ("async def run(task, session) pass", "mine.py:1: SyntaxError: expected ':'"),
        ("1 / 0", "mine.py:1: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "mine.py:1: SystemExit: 3"),
        ("from os import *", "mine.py has no function run"),
        ("def run(task, session): pass", "mine.py:1: run is not async, and an agent is an async function"),
        ("import os\nos._exit(5)", "its process ended with code 5"),
    ],
)  # fmt: skip
async def test_code_that_cannot_be_loaded_is_refused_in_one_line(agent_file: AgentFile, source: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await AgentPool(agent_file(source), 1).__aenter__()
    assert str(caught.value).startswith("the agent mine.py:run cannot be loaded: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_code_that_starts_threads_when_imported_is_imported_by_each_worker(agent_file: AgentFile) -> None:
    spec = agent_file("""
        import os, threading
        stop = threading.Event()
        threading.Thread(target=stop.wait, daemon=True).start()
        async def run(task, session):
            return os.getpid()
    """)
    async with AgentPool(spec, 1) as pool:
        assert await pid(pool) == await pid(pool)


async def test_a_worker_imports_nothing_heavy(agent_file: AgentFile) -> None:
    spec = agent_file("""
        import sys
        async def run(task, session):
            raise ValueError(sorted({"torch", "numpy", "pydantic", "transformers", "aiohttp"} & set(sys.modules)))
    """)
    async with AgentPool(spec, 1) as pool:
        assert (await run(pool, "")).detail.endswith("ValueError: []")


@pytest.mark.parametrize("victim", ["agent", "forkserver"])
async def test_what_is_stopped_costs_a_session_at_most(
    pool: AgentPool, pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    monkeypatch.setattr("freerun.machine.stopped.STOPPED_S", 0.5)
    os.mkfifo(tmp_path / "begun")
    going = asyncio.create_task(run(pool, "wait", str(tmp_path / "begun")))
    await asyncio.to_thread((tmp_path / "begun").read_text)
    [session] = noted(pids)
    forkserver = pool._forks._forkserver
    assert forkserver
    if victim == "agent":
        os.kill(session, signal.SIGSTOP)
    else:
        forkserver._child.process.send_signal(signal.SIGSTOP)
        await asyncio.wait_for(forkserver._child.wait(), 20)
    result = await asyncio.wait_for(going, 20)
    assert result.failure is SessionFailure.CRASH
    assert result.detail.startswith("its process was killed by SIGKILL" if victim == "agent" else "its process ended")
    assert await pid(pool)
