"""`freerun bench sessions`: how many agents' sessions a second this machine starts and ends, what agents that hang cost
the others, and how long after its deadline one is gone with all that it started.

The agents wait as one that talks to a policy does, from half to one and a half times `agent_s`, and ask nobody: what is
measured is the processes. One in twenty hangs, in turn in a loop, in a call of C with all signals blocked, and asleep
with a daemon that ignores SIGTERM.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from freerun.bench.figures import Figures, show
from freerun.core import Task
from freerun.machine.scratch import scratch_folder
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import Access, AgentResult, AgentSpec, SessionFailure
from freerun.sandbox.usage import usage_below

HANG_EVERY = 20
"""One session in so many hangs."""
HANGS = ("loop", "blocked", "daemon")
NOBODY = Access("http://127.0.0.1:9/none/v1", "none")
AGENT = """
import asyncio, ctypes, os, signal, subprocess, time

def note(folder, name, *pids):
    with open(f"{folder}/{name}", "w") as file:
        file.write(" ".join(map(str, (time.monotonic(), os.getpid(), *pids))))

async def run(task, session, folder):
    match task.prompt:
        case "loop":
            note(folder, task.id)
            while True:
                pass
        case "blocked":
            note(folder, task.id)
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
            while True:
                ctypes.CDLL(None).sleep(1000)
        case "daemon":
            child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & wait"], start_new_session=True)
            note(folder, task.id, child.pid)
            while True:
                time.sleep(1000)
    await asyncio.sleep(float(task.prompt))
    return 1.0
"""


@dataclass(frozen=True)
class Work:
    sessions: int
    at_once: int
    agent_s: float
    deadline_s: float
    trivial: int


class GoneLate:
    """How long after their deadlines agents were gone, by what they noted when they began to hang."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self._folder = folder
        self._deadline_s = deadline_s
        self.longest_s = 0.0
        self.still_there = 0
        self.killed = 0

    def ended(self, task: Task, result: AgentResult) -> None:
        if result.failure is SessionFailure.DEADLINE:
            began, *pids = (self._folder / task.id).read_text().split()
            self.killed += 1
            self.longest_s = max(self.longest_s, time.monotonic() - float(began) - self._deadline_s)
            self.still_there += sum(Path(f"/proc/{pid}").exists() for pid in pids)


async def bench_sessions(work: Work, json_only: bool) -> dict[str, Figures]:
    """Each measurement with its figures."""
    console = Console(stderr=json_only, highlight=False)
    measured: dict[str, Figures] = {}
    with console.status("running agents"), scratch_folder() as folder:
        (folder / "agent.py").write_text(AGENT)
        spec = AgentSpec(f"{folder}/agent.py:run", "the agent of the benchmark", {"folder": str(folder)})
        began = time.monotonic()
        async with AgentPool(spec, work.at_once) as pool:
            opened_s = time.monotonic() - began
            measured["first sessions"] = await _first(pool, work.at_once) | {"s to open": opened_s}
            measured["5% hang"] = await _hanging(pool, folder, work)
            measured["agents that do nothing"] = await _trivial(pool, work.trivial)
            began = time.monotonic()
        measured["closing"] = {"processes": work.at_once, "s": time.monotonic() - began}
    show(measured, console)
    print(json.dumps({"bench": "sessions", **asdict(work), **measured}))
    return measured


async def _first(pool: AgentPool, count: int) -> Figures:
    """Each in a new process."""
    took_s = await _timed(pool, [Task(str(n), "0", []) for n in range(count)], 60.0)
    return {"sessions": count, "per_s": count / took_s}


async def _hanging(pool: AgentPool, folder: Path, work: Work) -> Figures:
    tasks = [Task(str(n), f"{work.agent_s * (0.5 + n * 7 % 11 / 10)}", []) for n in range(work.sessions)]
    without_s = await _timed(pool, tasks, 60.0 + 2 * work.agent_s)
    mixed = [
        Task(task.id, HANGS[n // HANG_EVERY % len(HANGS)], []) if n % HANG_EVERY == 0 else task
        for n, task in enumerate(tasks)
    ]
    late, others = GoneLate(folder, work.deadline_s), [0.0]
    began = time.monotonic()

    def ended(task: Task, result: AgentResult) -> None:
        late.ended(task, result)
        if result.failure is None:
            others.append(time.monotonic() - began)

    with_s = await _timed(pool, mixed, work.deadline_s, ended)
    return {
        "sessions": work.sessions,
        "rewarded": len(others) - 1,
        "killed": late.killed,
        "s without": without_s,
        "s with": with_s,
        "ratio": with_s / without_s,
        "s until the others ended": max(others),
        "s after the deadline, at most": late.longest_s,
        "processes left": late.still_there,
    }


async def _trivial(pool: AgentPool, count: int) -> Figures:
    cpu_s = _cpu_s()
    took_s = await _timed(pool, [Task(str(n), "0", []) for n in range(count)], 60.0)
    return {"sessions": count, "per_s": count / took_s, "ms of CPU each": 1e3 * (_cpu_s() - cpu_s) / count}


async def _timed(
    pool: AgentPool,
    tasks: list[Task],
    deadline_s: float,
    ended: Callable[[Task, AgentResult], None] = lambda task, result: None,
) -> float:
    async def one(task: Task) -> None:
        ended(task, await pool.run(task, NOBODY, deadline_s))

    began = time.monotonic()
    await asyncio.gather(*map(one, tasks))
    return time.monotonic() - began


def _cpu_s() -> float:
    """Counts this process, and all below it that live."""
    return time.process_time() + usage_below(os.getpid()).cpu_s
