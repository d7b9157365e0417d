"""Whole runs with real loggers: what metrics.jsonl has is logged by the same names; one that hangs costs nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from freerun.core import FreerunError
from freerun.core.metrics import figures, metric_of
from freerun.observe.loggers import process
from freerun.observe.records import read_notes, read_steps
from freerun.run import training
from freerun.run.prepare import prepare_sft
from freerun.run.resume import resume
from freerun.run.supervised import sft
from tests.observe.loggers.readers import Collector, WandbFile
from tests.run.test_train import prepared


def tensorboard_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


JUDGE = """
import glob, time

def judge(task, text):
    '''The run is over in a second: it begins when those have that take as long to be imported.'''
    while not all(map(glob.glob, {files})):
        time.sleep(0.02)
    return float(text == task.answer)
"""


async def test_a_run_with_many_loggers_one_of_which_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_S", 1.0)
    monkeypatch.setattr(process, "_HUNG_FINISH_S", 3.0)  # for wandb, which has begun by then
    begun = [f"{tmp_path}/runs/test/{file}" for file in ("wandb/offline-run-*/*.wandb", "tensorboard/*")]
    (tmp_path / "judge.py").write_text(JUDGE.replace("{files}", str(begun)))
    with Collector() as collector:
        loggers: list[Any] = [
            {"name": "wandb", "mode": "offline"},
            *("tensorboard", "tests.observe.loggers.broken:HangsAtTheBeginning"),
            {"name": "prometheus", "port": 0},
            {"name": "opentelemetry", "endpoint": collector.endpoint},
        ]
        settings = ("control.max_staleness=2", "evaluate.every=4", f"reward.judge={tmp_path / 'judge.py'}:judge")
        run = prepared(tmp_path, "control.steps=6", "train.save_every=4", *settings, f"observers={json.dumps(loggers)}")
        folder = (await training.train(run)).folder
        steps = read_steps(folder.metrics)
        assert [record.step for record in steps] == list(range(1, 7))
        last, points = figures(steps[-1]), collector.points
        assert points["freerun_reward_mean", ""][1] == pytest.approx(last["reward_mean"])
        assert points["freerun_judgements", "ok"][1] == last["judgements/ok"]
        logged, events = WandbFile(folder.path), tensorboard_of(folder.path)
        for record in steps:
            for name, value in figures(record).items():
                assert metric_of(name), name
                assert logged.steps(name)[record.step] == pytest.approx(value), name
        assert {event.step for event in events.Scalars("eval/pass_at_1")} == {0, 4, 6}
        assert logged.config["rollout"]["group_size"] == 8
        assert len(logged.table("answers")["data"]) == 5 * 4
        notes = [note.text for note in read_notes(folder.notes)]
        assert len([note for note in notes if "HangsAtTheBeginning" in note]) == 1
        assert len([note for note in notes if ": serves http://127.0.0.1:" in note]) == 1

        monkeypatch.setattr(process, "SILENT_S", 30.0)
        loggers.pop(2)
        await training.train(*resume(folder.path, ["control.steps=8", f"observers={json.dumps(loggers)}"]))
        again, events = WandbFile(folder.path), tensorboard_of(folder.path)
    assert again.run.run_id == logged.run.run_id
    assert set(again.steps("reward_mean")) == {7, 8}
    assert [event.step for event in events.Scalars("reward_mean")] == list(range(1, 9))


async def test_supervised_training_is_logged_too(tmp_path: Path) -> None:
    settings = ("sft.until=1.0", "evaluate.every=2", "control.steps=3", "observers=[tensorboard]")
    run = prepared(tmp_path, *settings, how=prepare_sft)
    with pytest.raises(FreerunError, match=r"below sft\.until"):
        await sft(run)
    events = tensorboard_of(tmp_path / "runs" / "test")
    assert [event.step for event in events.Scalars("trainer/loss")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("eval/pass_at_1")] == [2, 3]
    assert "reward_mean" not in events.Tags()["scalars"]
    assert "answers" not in events.Tags()["tensors"], "nothing was sampled"
