"""Every logger, with its real library: what it was told is read back."""

import asyncio
import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from freerun.core.metrics import evaluation_figures, figures
from freerun.observe.loggers.apart import Loggers
from tests.observe.loggers.feeding import a_batch, fed, until
from tests.observe.loggers.readers import Collector, WandbFile, scraped
from tests.observe.runs import a_step, evaluation


def tell(loggers: Loggers, steps: range, text: str = " 4") -> None:
    for step in steps:
        loggers.learning(a_batch(step - 1, text=text), masked_tokens=0)
        loggers.step(record(step))
    loggers.evaluated(steps[-1], evaluation(0.1 * steps[-1]))
    loggers.note(f"after step {steps[-1]}")


def record(step: int) -> Any:
    return a_step(step, reward_mean=0.1 * step, dropped={"too_stale": step}, first_token_s=math.nan)


async def test_wandb_offline_goes_on_in_the_same_run(tmp_path: Path) -> None:
    setting = {"name": "wandb", "mode": "offline", "project": "math", "tags": ["a"], "samples_every": 2}
    async with fed(tmp_path, setting) as (loggers, notes):
        tell(loggers, range(1, 4))
        assert "wandb sync" in await notes.one("wandb: logs offline")
    folder = tmp_path / "runs" / "fed"
    first = WandbFile(folder)
    assert (first.run.project, first.run.display_name, list(first.run.tags)) == ("math", "fed", ["a"])
    assert first.config["train"] == {"lr": 5e-3}
    assert "observers" not in first.config, "its options may hold secrets"
    for name, value in figures(record(2)).items():
        assert first.steps(name)[2] == pytest.approx(value), name
    assert "first_token_s" not in first.history[0]
    assert first.steps("eval/pass_at_1") == {3: pytest.approx(0.3)}
    assert first.table("evaluations")["data"] == [list(evaluation_figures(3, evaluation(0.1 * 3)).values())]
    answers = first.table("answers")
    assert answers["columns"] == ["step", "task", "prompt", "answer", "text", "reward", "staleness", "finish"]
    assert answers["data"][0] == [2, "task-0", "2 + 2 =", "4", " 4", 1, 1, "stop"]
    assert [row[0] for row in answers["data"]] == [2] * 4 + [3] * 4, "of all steps since the table before"
    assert "step 3: after step 3" in first.printed

    async with fed(tmp_path, setting, step=2) as (loggers, _):
        tell(loggers, range(3, 5))
    second = WandbFile(folder)
    assert second.run.run_id == first.run.run_id
    assert set(second.steps("reward_mean")) == {4}, "step 3 is logged already"
    assert [row[0] for row in second.table("evaluations")["data"]] == [3, 4]


async def test_tensorboard_forgets_steps_that_are_done_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    async with fed(tmp_path, "tensorboard") as (loggers, notes):
        tell(loggers, range(1, 4), text="<b>`|\nold`")
        await notes.one("tensorboard --logdir")
    async with fed(tmp_path, "tensorboard", step=2) as (loggers, _):
        tell(loggers, range(3, 5), text="new")
    events = EventAccumulator(str(tmp_path / "runs" / "fed" / "tensorboard"))
    events.Reload()
    for name, value in figures(record(4)).items():
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3, 4], name
        assert events.Scalars(name)[-1].value == pytest.approx(value), name
    described = events.SummaryMetadata("trainer/loss").summary_description
    assert described.startswith("**Loss**. The objective that is minimised.")
    assert [event.step for event in events.Scalars("eval/pass_at_1")] == [4]
    texts = {tag: [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)] for tag in TEXTS}
    assert "| `train.lr` | `0.005` |" in texts["config"][0]
    assert "| 2 | `task-0` | `2 + 2 =` | `4` | `<b>ˋ¦⏎oldˋ` | 1 | 1 | `stop` |" in texts["answers"][1]
    assert "`new`" in texts["answers"][-1]
    assert "| 4 | 100 | 4 | 0.4 | 0.35 | 0.45 |" in texts["evaluations"][-1], "with its interval"
    assert "after step 4" in texts["notes"][-1]
    assert "_hparams_/session_start_info" in events.summary_metadata


TEXTS = ("config", "answers", "evaluations", "notes")


async def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # artifacts of a local store are beside it
    setting = {"name": "mlflow", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "experiment": "math"}
    async with fed(tmp_path, setting) as (loggers, notes):
        tell(loggers, range(1, 4))
        await notes.one("of the experiment math")
    async with fed(tmp_path, setting, step=2) as (loggers, _):
        tell(loggers, range(3, 5))
    client = MlflowClient(tracking_uri=setting["tracking_uri"], registry_uri=setting["tracking_uri"])
    experiment = client.get_experiment_by_name("math")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("fed", "FINISHED")
    assert run.data.params["train.lr"] == "0.005"
    assert figures(record(4)) | evaluation_figures(4, evaluation(0.4)) == pytest.approx(run.data.metrics)
    history = client.get_metric_history(run.info.run_id, "reward_mean")
    assert [(point.step, point.value) for point in history] == [(s, pytest.approx(0.1 * s)) for s in (1, 2, 3, 4)]
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept == {"config.yaml", "evaluations.json", "notes.txt", "answers"}

    def read(file: str) -> Any:
        return json.loads(Path(client.download_artifacts(run.info.run_id, file)).read_text())

    assert [row[0] for row in read("evaluations.json")["data"]] == [3, 4]
    assert {row[0] for row in read("answers/step_000003.json")["data"]} == {2, 3}
    notes_file = Path(client.download_artifacts(run.info.run_id, "notes.txt")).read_text().splitlines()
    assert [line for line in notes_file if "after" in line] == ["step 3: after step 3", "step 4: after step 4"]


async def test_prometheus_is_scraped(tmp_path: Path) -> None:
    setting = {"name": "prometheus", "port": 0, "labels": {"cluster": "a"}}
    async with fed(tmp_path, setting) as (loggers, notes):
        address = (await notes.one("serves http")).removeprefix("prometheus: serves ")
        tell(loggers, range(1, 3))
        await until(lambda: ("freerun_eval_pass_at_1", "") in scraped(address))
        found = await asyncio.to_thread(scraped, address)
        taken = {"name": "prometheus", "port": int(address.split(":")[2].removesuffix("/metrics"))}
        async with fed(tmp_path / "other", taken) as (_, refused):
            said = await refused.one("cannot begin")
            assert "cannot be listened on (Address already in use): set its port, or 0 for a free one" in said
    labels = {"run": "fed", "cluster": "a"}
    assert found["freerun_trainer_loss", ""] == (labels, 0.1, "Loss: The objective that is minimised.")
    assert found["freerun_dropped", "too_stale"][:2] == (labels | {"reason": "too_stale"}, 2)
    assert found["freerun_staleness_histogram", "1"][:2] == (labels | {"staleness": "1"}, 750)
    assert found["freerun_eval_low", ""][1] == pytest.approx(0.15)
    assert found["freerun_tokens_per_s", ""][2].endswith("(tokens/s)")
    info = found["freerun_run_info", ""][0]
    assert (info["run"], info["model"], info["max_staleness"]) == ("fed", "models/tiny", "2")
    assert len(found) == len(figures(record(2)) | evaluation_figures(2, evaluation())) + 1


async def test_opentelemetry_sends_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", collector.endpoint)
        async with fed(tmp_path, {"name": "opentelemetry", "attributes": {"cluster": "a"}}) as (loggers, notes):
            tell(loggers, range(1, 3))
            assert await notes.one("opentelemetry") == f"opentelemetry: sends metrics to {collector.endpoint}"
        points = collector.points
        assert collector.resource.items() >= {"service.name": "freerun", "service.instance.id": "fed"}.items()
    labels = {"run": "fed", "cluster": "a"}
    assert points["freerun_tokens_per_s", ""] == (labels, 500.0, "tokens/s")
    assert points["freerun_dropped", "too_stale"] == (labels | {"reason": "too_stale"}, 2.0, "groups")
    assert points["freerun_eval_pass_at_1", ""][1] == pytest.approx(0.2)
    assert points["freerun_run_info", ""][0]["model"] == "models/tiny"
    assert len(points) == len(figures(record(2)) | evaluation_figures(2, evaluation())) + 1


@pytest.mark.skipif(find_spec("trackio") is None, reason="needs trackio: pip install 'freerun[trackio]'")
async def test_trackio_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    async with fed(tmp_path, {"name": "trackio", "project": "math"}) as (loggers, notes):
        tell(loggers, range(1, 4))
        await notes.one("trackio show --project math")
    async with fed(tmp_path, {"name": "trackio", "project": "math"}, step=2) as (loggers, _):
        tell(loggers, range(3, 5))
    with sqlite3.connect(tmp_path / "trackio" / "math.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = database.execute("SELECT config FROM configs").fetchall()
        alerts = [text for (text,) in database.execute("SELECT text FROM alerts").fetchall()]
    assert len({name for name, _, _ in rows}) == 1
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    rewards = [(step, metrics["reward_mean"]) for step, metrics in logged if "reward_mean" in metrics]
    assert rewards == [(step, pytest.approx(0.1 * step)) for step in (1, 2, 3, 4)]
    assert [metrics["eval/low"] for _, metrics in logged if "eval/low" in metrics] == pytest.approx([0.25, 0.35])
    assert any("answers" in metrics for _, metrics in logged)
    assert any("evaluations" in metrics for _, metrics in logged)
    assert json.loads(configs[0][0])["train"] == {"lr": 5e-3}
    assert {"after step 3", "after step 4"} <= set(alerts)
