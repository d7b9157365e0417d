"""Parts of `freerun chaos`, and all of it on a real run that is struck a few times."""

import asyncio
import json
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from freerun.bench import chaos as bench_chaos
from freerun.bench.chaos import asked_for, chaos
from freerun.bench.chaos_parts import Held, Part, parts_of
from freerun.bench.chaos_schedule import PartKind, Strike, What, schedule
from freerun.bench.chaos_strikes import Striker, Struck
from freerun.bench.chaos_verdict import Memory, Pace, Verdict, recoveries, violations
from freerun.bench.run_log import Audited
from freerun.core import ConfigError
from freerun.observe.folder import JsonLines, RunFolder
from freerun.run import training
from tests.observe.runs import a_step
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
KINDS = (PartKind.ENGINE, PartKind.TRAINER, PartKind.JUDGE, PartKind.CONTROLLER)


def test_the_schedule_is_the_seeds_and_spares_no_kind() -> None:
    strikes = schedule(3, 400, 10.0, list(What), KINDS)
    assert strikes == schedule(3, 400, 10.0, list(What), KINDS)
    assert strikes != schedule(4, 400, 10.0, list(What), KINDS)
    assert [strike.number for strike in strikes] == list(range(1, 401))
    assert sum(strike.after_s for strike in strikes) / 400 == pytest.approx(10.0, rel=0.15)
    struck = Counter(strike.kind for strike in strikes if strike.kind)
    assert max(struck.values()) - min(struck.values()) <= 1
    assert all((strike.kind is None) == (strike.what is What.DISK) for strike in strikes)
    for_good = {strike.kind for strike in strikes if strike.for_s is None}
    assert for_good == {PartKind.ENGINE, PartKind.TRAINER, PartKind.JUDGE}
    assert all(strike.for_s == 0 for strike in strikes if strike.what is What.KILL)
    assert {strike.victim_of(3) for strike in strikes} == {0, 1, 2}


def test_nobody_is_struck_in_place_of_a_part_that_is_gone() -> None:
    """Not even a process that has its number by now: it has another parent."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        with pytest.raises(ProcessLookupError):
            Held(Part(PartKind.ENGINE, "engine 0", stranger.pid, parent=1))
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0
    with pytest.raises(ProcessLookupError):
        Held(Part(PartKind.ENGINE, "engine 0", stranger.pid, parent=stranger.pid))


def wait_for(pid: int, states: str) -> None:
    """Until the process is in one of those states, by the letters of /proc."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in states:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def test_a_part_is_stopped_for_its_time_and_no_longer() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (part, *_) = parts_of(child.pid)
        assert part.kind is PartKind.CONTROLLER
        striker = Striker(None)
        strike = Strike(1, 0.0, What.STOP, PartKind.CONTROLLER, 0.5, 0.0)
        assert striker.strike(strike, [], 0) is None, "there is none now"
        assert striker.strike(strike, [part], 7) is not None
        wait_for(child.pid, "T")
        striker.go_on()
        wait_for(child.pid, "RS")
        child.send_signal(signal.SIGKILL)


def a_verdict(**changes: int) -> Verdict:
    struck = [
        Struck(Strike(1, 1.0, What.KILL, PartKind.ENGINE, 0.0, 0.0), "engine 0", 10.0, 4, 2.0),
        Struck(Strike(2, 1.0, What.KILL, PartKind.ENGINE, 0.0, 0.0), "engine 1", 12.0, 5, 6.0),
        Struck(Strike(3, 1.0, What.DISK, None, 0.0, 2.0), "of its folder", 18.0, 9, None),
    ]
    audit = Audited(trained=40, lost=changes.get("lost", 0), twice=changes.get("twice", 0))
    paces = Pace(900, 30.0, 9, 0.5, None), Pace(900, 15.0, 9, 0.5, 0.75)
    return Verdict(struck, audit, changes.get("violations", 0), *paces, Memory(), starts=2)


def test_the_verdict_counts_promises_and_pace() -> None:
    assert a_verdict().last_line == "chaos: 3 kills, 0 lost, 0 twice, 0 violations, goodput 0.50"
    assert a_verdict().is_good
    for broken in ("lost", "twice", "violations"):
        assert not a_verdict(**{broken: 1}).is_good
    assert recoveries(a_verdict().struck) == [
        "disk: 1, 1 after the last step",
        "kill engine: 2, next step after 4.0 s, at worst 6.0 s",
    ]
    memory = Memory()
    for name, mib in (("controller", 300), ("trainer", 0), ("trainer", 200), ("trainer", 500), ("controller", 310)):
        memory.see(name, mib << 20)
    assert str(memory) == "memory, MiB: controller 300→310, trainer 200→500; largest growth trainer ×2.50"


def test_tokens_beyond_the_bound_are_violations(tmp_path: Path) -> None:
    config = prepared(tmp_path, "control.max_staleness=2").config
    folder = RunFolder(tmp_path)
    with JsonLines(folder.metrics) as metrics:
        metrics.append(a_step(1, staleness_histogram={"0": 100, "2": 5}))
        metrics.append(a_step(2, staleness_histogram={"2": 7, "3": 11, "10": 2}))
    assert violations(folder, config) == 13


def test_what_cannot_be_struck_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--what bomb: it is one of kill, stop, starve, disk$"):
        asked_for(tmp_path, [], 1, 1.0, 0, "kill,bomb", "engine", None)
    run = prepared(tmp_path)
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    with pytest.raises(ConfigError, match="nothing of what --what and --parts name"):
        asyncio.run(chaos(asked_for(tmp_path / "run.yaml", [], 1, 1.0, 0, "kill", "agent", None)))
    with pytest.raises(ConfigError, match="is no run that is done: leave --reference out"):
        asyncio.run(chaos(asked_for(tmp_path / "run.yaml", [], 1, 1.0, 0, "kill", "engine", tmp_path)))


async def test_a_real_run_keeps_its_promises_when_its_parts_are_killed_and_starved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_chaos, "no_small_disk", lambda: "needs root to mount a small disk")
    run = prepared(tmp_path, "control.steps=10", "train.save_every=2", "rollout.max_new_tokens=6", "name=whole")
    undisturbed = (await training.train(run)).folder.path
    (tmp_path / "run.yaml").write_text(run.config.model_dump_json())
    what, parts = "kill,starve,disk", "controller,engine,judge"
    asked = asked_for(tmp_path / "run.yaml", ["control.steps=60"], 3, 1.0, 1, what, parts, undisturbed)
    verdict = await chaos(asked)
    assert verdict.last_line.startswith("chaos: 3 kills, 0 lost, 0 twice, 0 violations, goodput ")
    assert verdict.goodput > 0
    assert verdict.pace.steps == 60
    killed = [one for one in verdict.struck if one.strike.what is What.KILL and one.victim == "controller"]
    assert verdict.starts == 1 + len(killed), "nothing else ends the run"
    assert {struck.strike.kind for struck in verdict.struck} == {PartKind(name) for name in parts.split(",")}
    assert not verdict.left
    assert {"controller", "engine 0", "trainer"} <= verdict.memory.begin.keys()
    said = capsys.readouterr().out
    assert "disk: left out, this needs root to mount a small disk" in said
    assert "#3 at " in said
    record = json.loads((tmp_path / "runs" / "whole-chaos" / "chaos.json").read_text())
    assert record["goodput"] == verdict.goodput
