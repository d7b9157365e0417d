"""status.json: what a run is doing, from its folder's creation to its end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from freerun.core import FreerunError
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.observe import status as module
from freerun.observe.folder import RunFolder, encode
from freerun.observe.status import RunStatus, StatusFile, ended, read_status, write_starting
from tests.observe.runs import a_step


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.01)


def status_of(folder: RunFolder) -> RunStatus:
    found = read_status(folder.path)
    assert found
    return found


def until(folder: RunFolder, state: str, **wanted: object) -> RunStatus:
    while True:
        status = status_of(folder)
        if status.state == state and all(getattr(status, name) == value for name, value in wanted.items()):
            return status


def test_a_run_from_its_folder_to_its_end(folder: RunFolder) -> None:
    assert read_status(folder.path) is None
    write_starting(folder)
    assert (status_of(folder).state, status_of(folder).pid) == ("starting", os.getpid())
    with StatusFile(folder).kept() as file:
        file.doing("controller", "waits for 2 machine(s) to join")
        while "controller" not in status_of(folder).doing:
            pass
        assert status_of(folder).state == "starting"
        file.group(GroupEvent(Stage.ADMITTED, 0, "t", Position(), 0))
        file.doing("controller", "waits for batch 0 \ud83d")
        file.step(a_step(3))
        running = until(folder, "running", step=3)
        assert running.doing["controller"].what == "waits for batch 0 \ufffd"
        assert abs(running.doing["controller"].since - time.time()) < 60
        beat = running.heartbeat
        file.doing("controller", "waits for batch 0 \ud83d")
        file.doing("trainer", "idle")
        while status_of(folder).heartbeat == beat:
            pass
    assert (status_of(folder).state, status_of(folder).ended, status_of(folder).step) == ("done", "done", 3)


@pytest.mark.parametrize(
    ("error", "ended", "state"),
    [
        (asyncio.CancelledError(), "stopped", "stopped"),
        (KeyboardInterrupt(), "stopped", "stopped"),
        (FreerunError("no judge\nmore"), "failed: no judge", "failed"),
        (ValueError(), "failed: ValueError", "failed"),
    ],
)
def test_how_it_ended_is_said(folder: RunFolder, error: BaseException, ended: str, state: str) -> None:
    with pytest.raises(type(error)), StatusFile(folder).kept():
        raise error
    assert (status_of(folder).ended, status_of(folder).state) == (ended, state)


def test_a_run_that_fails_before_it_begins_has_an_end_and_another_s_is_left_alone(folder: RunFolder) -> None:
    write_starting(folder)
    with pytest.raises(FreerunError), ended(folder):
        raise FreerunError("the port is taken")
    assert status_of(folder).ended == "failed: the port is taken"
    others = replace(status_of(folder), pid=1, ended=None)
    folder.status.write_bytes(encode(others))
    with pytest.raises(FreerunError), ended(folder):
        raise FreerunError("the folder is in use")
    assert status_of(folder).ended is None


def test_a_sign_of_life_comes_without_news(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.0)
    with StatusFile(folder).kept():
        while read_status(folder.path) is None:
            pass
        beat = status_of(folder).heartbeat
        while status_of(folder).heartbeat == beat:
            pass


def test_a_killed_run_is_lost(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom freerun.observe.folder import RunFolder\n"
        "from freerun.observe.status import StatusFile\n"
        "with StatusFile(RunFolder(Path(sys.argv[1]))).kept():\n    time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(folder.path)])
    while read_status(folder.path) is None:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (status_of(folder).state, status_of(folder).pid) == ("starting", process.pid)
    later = time.time() + module.LOST_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert status_of(folder).state == "lost"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"ended": "odd"}'])
def test_what_is_no_status_is_none(folder: RunFolder, content: str) -> None:
    folder.status.write_text(content)
    assert read_status(folder.path) is None
    complete = {"pid": 1, "host": "h", "started": 0.0, "heartbeat": 0.0, "ended": "odd"}
    folder.status.write_text(json.dumps(complete))
    assert read_status(folder.path) is None


def test_a_disk_that_fails_stops_nobody(folder: RunFolder) -> None:
    with StatusFile(RunFolder(folder.path / "gone")).kept() as file:
        file.doing("trainer", "idle")
    assert read_status(folder.path / "gone") is None
