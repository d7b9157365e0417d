"""`freerun why` on real runs whose bottleneck is known, and what its advice is worth."""

import re
from pathlib import Path

from freerun.commands.why import explain_run
from freerun.observe.records import read_notes, read_steps
from freerun.observe.status import read_status
from freerun.run import training
from tests.run.test_train import prepared

SLEEPS = """
import time
def judge(task, text):
    time.sleep(0.02)
    return float(text == task.answer)
"""
ONCE = """
import pathlib, time
asked = 0
def judge(task, text):
    global asked
    asked += 1
    try:
        if asked > 300:
            (pathlib.Path(__file__).parent / "slept").touch(exist_ok=False)
            time.sleep(8)
    except FileExistsError:
        pass
    return float(text == task.answer)
"""
WAITS = """
import asyncio
async def rollout(task, client):
    await asyncio.sleep(0.4)
    return await client.each_member(task, talk)
async def talk(chat):
    await chat.reply()
"""
FAST = "control.steps=12"


async def explained(folder: Path, *overrides: str) -> tuple[Path, str]:
    """The run's folder, and what is said of it."""
    outcome = await training.train(prepared(folder, *overrides))
    return outcome.folder.path, "\n".join(explain_run(outcome.folder.path, None))


async def test_a_slow_judge_is_named_and_the_advice_makes_the_run_faster(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPS)
    judge = f"reward.judge={tmp_path / 'slow.py'}:judge"
    run, said = await explained(tmp_path, judge, "reward.workers=1", FAST, "name=slow")
    assert "bottleneck: judging" in said
    advised = re.search(r"-> (reward\.workers=(\d+)): an answer takes \d+(\.\d)? ms, mostly waiting", said)
    assert advised, said
    assert int(advised[2]) > 2
    assert "1 worker, busy 9" in said or "1 worker, busy 100%" in said
    assert any("the run's bottleneck was judging" in note.text for note in read_notes(run / "notes.jsonl"))
    report = (run / "report.html").read_text()
    assert '"bottleneck":"judging, ' in report
    better, _ = await explained(tmp_path, judge, advised[1], "control.steps=8", "name=better")
    slow_s, better_s = (sum(step.step_s for step in read_steps(one / "metrics.jsonl")[2:]) for one in (run, better))
    assert better_s < slow_s / 2


async def test_a_judge_that_waits_gets_workers_unasked_and_keeps_no_answers_waiting(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPS)
    run, _ = await explained(tmp_path, f"reward.judge={tmp_path / 'slow.py'}:judge", "control.steps=20")
    steps = read_steps(run / "metrics.jsonl")
    assert steps[-1].judge_workers > 4
    assert steps[-1].step_s < 64 * 0.02 / 2, "a worker alone needs 1.28 s for a batch"


async def test_turns_that_the_staleness_bound_asks_for_are_named(tmp_path: Path) -> None:
    run, said = await explained(tmp_path, "control.max_staleness=0", "rollout.max_new_tokens=24", FAST)
    assert "bottleneck: the staleness bound" in said, said
    assert "-> control.max_staleness=2" in said
    status = read_status(run)
    assert status
    assert status.state == "done"


async def test_a_slow_engine_is_named(tmp_path: Path) -> None:
    _, said = await explained(tmp_path, "engine.max_running=1", "rollout.max_new_tokens=24", FAST)
    assert "bottleneck: generation" in said, said
    assert "-> engine.max_running=2" in said


async def test_a_slow_trainer_is_named(tmp_path: Path) -> None:
    _, said = await explained(tmp_path, "train.minibatches=16", "rollout.group_size=16", FAST)
    assert "bottleneck: the trainer" in said, said
    assert "-> train.minibatches=8" in said


async def test_agents_that_wait_for_somebody_else_are_named(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    kind = f"rollout.kind={tmp_path / 'waits.py'}:rollout"
    _, said = await explained(tmp_path, kind, "control.max_staleness=1", FAST)
    assert "bottleneck: agents" in said, said
    assert "-> control.max_staleness=2" in said


async def test_a_wait_that_is_longer_than_usual_is_explained_in_the_notes(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    judge = f"reward.judge={tmp_path / 'once.py'}:judge"
    run, _ = await explained(tmp_path, judge, "control.steps=20", "reward.workers=2", "control.max_staleness=1")
    said = [note.text for note in read_notes(run / "notes.jsonl") if "waits for" in note.text]
    assert len(said) == 1, said
    assert re.match(r"the trainer waits for judging: 1 group of version \d+, being judged for [5-8](\.\d)? s", said[0])


async def test_a_healthy_run_has_no_note_about_waits(tmp_path: Path) -> None:
    run, _ = await explained(tmp_path, "control.steps=20")
    told = [note.text for note in read_notes(run / "notes.jsonl")]
    assert not [text for text in told if "waits" in text or "bottleneck" in text]
