"""Loggers that fail, hang, or are killed: a note, and nothing else."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freerun.core import ConfigError
from freerun.core.observer import Observer, Observers
from freerun.observe.loggers import process
from freerun.run.guests import load_guests
from tests.observe.loggers.feeding import a_batch, fed, until
from tests.observe.runs import a_step


def broken(kind: str) -> str:
    return f"tests.observe.loggers.broken:{kind}"


def written(path: Path) -> list[str]:
    file = path / "runs" / "fed" / "written.txt"
    return file.read_text().splitlines() if file.exists() else []


def pid_of(path: Path) -> int:
    return int(written(path)[0].removeprefix("begins "))


async def test_one_that_raises_is_noted_once_and_goes_on(tmp_path: Path) -> None:
    async with fed(tmp_path, broken("Raises")) as (loggers, notes):
        for step in range(1, 6):
            loggers.step(a_step(step))
    (said,) = [note for note in notes.all if "failed" in note]
    assert "the logger Raises failed, and goes on with what comes next: ConnectionError: nobody answered" in said
    assert written(tmp_path)[1:] == ["step 2", "step 4", "finished"]
    assert (tmp_path / "runs/fed/logs/logger-Raises.log").read_text().count("ConnectionError: nobody") == 3


async def test_one_that_cannot_begin_or_crashes_is_noted_once(tmp_path: Path) -> None:
    async with fed(tmp_path, broken("CannotBegin"), broken("Crashes"), broken("Writes")) as (loggers, notes):
        loggers.step(a_step(1))
        await notes.one("CannotBegin cannot begin, and the run goes on without it: PermissionError: no key")
        await notes.one("Crashes was killed by SIGABRT, and the run goes on without it")
        loggers.step(a_step(2))
    assert len([note for note in notes.all if "the logger" in note]) == 2
    assert written(tmp_path)[1:] == ["step 1", "step 2", "finished"]


async def test_one_that_hangs_is_noted_once_and_ended_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_S", 0.05)
    monkeypatch.setattr(process, "_HUNG_FINISH_S", 0.05)
    async with fed(tmp_path, broken("HangsAtTheBeginning")) as (loggers, notes):
        await notes.one("HangsAtTheBeginning has not answered")
        loggers.step(a_step(1))
        await until(lambda: (tmp_path / "runs/fed/hangs").exists())
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 2.0
    assert len(notes.all) == 1


async def test_one_that_hangs_at_the_end_has_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FINISH_S", 1.0)
    async with fed(tmp_path, broken("HangsAtTheEnd")) as (loggers, notes):
        await notes.one("writes")
        loggers.step(a_step(1))
    assert written(tmp_path)[1:] == ["step 1", "finished"]
    assert "did not finish: it was killed by SIGKILL" in notes.all[-1]


async def test_one_that_is_stopped_misses_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is full, then the buffer: nobody waits. Continued, it goes on with what it has."""
    monkeypatch.setattr(process, "SILENT_S", 0.05)
    monkeypatch.setattr(process, "BUFFER", 200_000)
    async with fed(tmp_path, broken("Writes")) as (loggers, notes):
        await notes.one("writes")
        os.kill(pid_of(tmp_path), signal.SIGSTOP)
        (running,) = loggers._running
        slowest_s, step = 0.0, 0
        while running.dropped < 10:
            step += 1
            loggers.learning(a_batch(step - 1, text="x" * 3000), 0)
            began_s = time.monotonic()
            loggers.step(a_step(step))
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        await notes.one("the logger Writes has not answered")
        os.kill(pid_of(tmp_path), signal.SIGCONT)
        await until(lambda: len(written(tmp_path)) > 10)
    assert slowest_s < 0.5, "it never waits"
    done = [int(line.removeprefix("step ")) for line in written(tmp_path) if line.startswith("step")]
    assert done == list(range(1, step - 9)), "those that fit, in order"
    assert written(tmp_path)[-1] == "finished"
    assert "the logger Writes was too slow, and missed 10 messages" in notes.all[-1]
    assert len([note for note in notes.all if "has not answered" in note]) == 1


async def test_one_that_is_killed_is_noted_once(tmp_path: Path) -> None:
    async with fed(tmp_path, broken("Writes")) as (loggers, notes):
        await notes.one("writes")
        os.kill(pid_of(tmp_path), signal.SIGKILL)
        await notes.one("the logger Writes was killed by SIGKILL, and the run goes on without it")
        for step in range(1, 100):
            loggers.step(a_step(step))
    assert len(notes.all) == 2


async def test_loggers_know_how_the_run_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        async with fed(tmp_path / "failed", broken("Writes")):
            raise RuntimeError
    with pytest.raises(asyncio.CancelledError):
        async with fed(tmp_path / "stopped", broken("Writes")):
            raise asyncio.CancelledError
    assert (written(tmp_path / "failed")[-1], written(tmp_path / "stopped")[-1]) == ("failed", "stopped")


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from tests.observe.loggers.feeding import fed
from tests.observe.runs import a_step

async def main():
    async with fed(Path(sys.argv[1]), sys.argv[2]) as (loggers, notes):
        await notes.one("writes")
        loggers.step(a_step(1))
        print("ready", flush=True)
        await asyncio.Future()

asyncio.run(main())
"""


async def test_one_ends_with_the_controller_and_finishes_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path), broken("Writes")]
    controller = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert controller.stdout
    assert await controller.stdout.readline() == b"ready\n"
    controller.kill()
    await controller.wait()
    logger = pid_of(tmp_path)
    await until(lambda: not Path(f"/proc/{logger}").exists())
    assert written(tmp_path)[1:] == ["step 1", "killed"]


def test_what_is_missing_or_wrong_is_one_line_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_such_library").mkdir()  # as wandb leaves a folder of its name behind
    with pytest.raises(
        ConfigError, match="needs no_such_library, which is not installed: pip install 'no_such_library'"
    ):
        load_guests([broken("NeedsSomething")])
    with pytest.raises(ConfigError, match='the logger wandb has no option "projct"; did you mean project'):
        load_guests([{"name": "wandb", "projct": "math"}])
    with pytest.raises(ConfigError, match="the logger prometheus: port: Expected int"):
        load_guests([{"name": "prometheus", "port": "http"}])
    with pytest.raises(ConfigError, match="did you mean wandb"):
        load_guests(["wandbb"])
    assert [choice.called for choice in load_guests(["wandb", "tensorboard", "wandb"]).loggers] == [
        "wandb",
        "tensorboard",
        "wandb-2",
    ]


async def test_a_mistake_of_ours_in_passing_on_costs_a_note_too(tmp_path: Path) -> None:
    class Seen(Observer):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    seen = Seen()
    async with fed(tmp_path, broken("Writes")) as (loggers, _):
        everybody = Observers([seen], guests=[loggers])
        everybody.step(None)  # type: ignore[arg-type]
        everybody.note("still here")
    assert "the observer Loggers failed" in seen.notes[0]
    assert seen.notes[1] == "still here"
