"""The watching process, asked over HTTP as a browser does: runs, curves, samples, events; and who may ask."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from freerun.core.metrics import metric_of
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.records import NoteRecord
from freerun.observe.status import write_starting
from freerun.observe.timeline import Timeline
from tests.observe.runs import a_sample, a_step, an_eval, keep_samples
from tests.observe.watching import base, watching


def write_run(root: Path, name: str, steps: int = 20, lr: float = 1e-5, samples: bool = True) -> RunFolder:
    folder = RunFolder.create(root, name)
    folder.config.write_text(f"name: {name}\ncontrol: {{max_staleness: 4, steps: 40}}\ntrain: {{lr: {lr:f}}}\n")
    with JsonLines(folder.metrics) as lines:
        for step in range(1, steps + 1):
            drift = {"drift": 0.01, "drift_staleness": 0.009, "drift_numerics": 0.001, "loss": step / 10}
            lines.append(a_step(step, reward_mean_all=step / 100, trainer=drift))
    with JsonLines(folder.evals) as lines:
        lines.append(an_eval(10, 0.4))
    with JsonLines(folder.notes) as lines:
        lines.append(NoteRecord(3, 6.0, "a note of step 3"))
    with Timeline(folder.timeline, start_s=0.0) as timeline:
        for step in range(steps):
            timeline.span("engine 0", "generate", "generate", 2.0 * step, 2.0 * step + 1.5, tokens=100)
            timeline.span("trainer", "step", f"step {step + 1}", 2.0 * step + 1, 2.0 * step + 2)
    if samples:
        records = [a_sample(step, text=f"the answer of step {step}", reward=step % 2) for step in range(1, steps + 1)]
        keep_samples(folder.samples, *records)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root, "first")
    write_run(root, "second", lr=3e-5)
    (root / "no run at all").mkdir()
    return root


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[httpx.Client]:
    with watching(runs) as address, httpx.Client(base_url=base(address)) as client:
        yield client


def got(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_runs_are_listed_with_what_they_came_to(client: httpx.Client) -> None:
    listed = got(client, "/api/runs")
    assert {run["name"] for run in listed["runs"]} == {"first", "second"}
    (first,) = (run for run in listed["runs"] if run["name"] == "first")
    assert (first["step"], first["steps_planned"], first["bound"], first["eval"]["pass_at_1"]) == (20, 40, 4, 0.4)
    assert first["spark"][-1] == 0.2


def test_a_run_has_headline_curves_timeline_and_notes(client: httpx.Client) -> None:
    overview = got(client, "/api/runs/first")
    assert overview["outcome"].startswith("Reward rose from")
    assert [note["text"] for note in overview["notes"]] == ["a note of step 3"]
    curves = got(client, "/api/runs/first/curves", names="reward_mean_all", first=11, last=15)
    assert curves["columns"]["step"] == [11, 12, 13, 14, 15]
    assert curves["columns"]["reward_mean_all"] == [0.11, 0.12, 0.13, 0.14, 0.15]
    window = got(client, "/api/runs/first/timeline", **{"from": 2, "to": 4})
    engine = window["rows"][0]
    assert (engine["process"], engine["bars"][0][:4]) == ("engine 0", [2.0, 3.5, "generate", {"tokens": 100}])
    assert window["wall"] == [0.0, 40.0]


def test_every_figure_that_a_run_reports_is_described(client: httpx.Client) -> None:
    names = got(client, "/api/runs/first/curves")["columns"]
    assert [name for name in names if metric_of(name) is None and name != "tokens"] == []


def test_samples_are_searched_and_shown_one_by_one(client: httpx.Client) -> None:
    page = got(client, "/api/runs/first/samples", text="of step 1", reward_min=1, limit=2)
    assert (page["total"], page["more"]) == (6, True)
    assert [row["step"] for row in page["rows"]] == [19, 17]
    older = got(client, "/api/runs/first/samples", text="of step 1", reward_min=1, limit=50, before=page["next_before"])
    assert [row["step"] for row in older["rows"]] == [15, 13, 11, 1]
    record = got(client, f"/api/runs/first/samples/{page['rows'][0]['id']}")
    assert (record["text"], record["tokens"], record["prompt"]) == ("the answer of step 19", [" ", "4"], "2 + 2 =")
    assert [row["step"] for row in got(client, "/api/runs/first/task", task="task-7")["rows"]] == [7]
    assert got(client, "/api/runs/first/samples", prompt="2 + 2")["total"] == 20
    assert got(client, "/api/runs/first/samples", prompt="apples")["total"] == 0


def test_settings_that_differ_are_found(client: httpx.Client) -> None:
    compared = got(client, "/api/compare", runs="first,second")
    assert compared["differences"] == [{"key": "train.lr", "values": {"first": "0.00001", "second": "0.00003"}}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/runs/none", "there is no run 'none'"),
        ("/api/runs/..", "Not Found"),
        ("/api/runs/..%2F..%2Fetc", "Not Found"),
        ("/api/runs/no run at all", "there is no run"),
        ("/api/runs/first/samples/999999", "has no sample 999999"),
        ("/api/runs/first/samples?reward_min=high", "that is no filter"),
        ("/api/runs/first/curves?first=x", "first must be a number"),
        ("/api/compare?runs=first,third", "there is no run 'third'"),
        ("/api/nothing", "Not Found"),
    ],
)
def test_what_cannot_be_had_is_a_message(client: httpx.Client, path: str, said: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert said in answer.text


def test_a_run_that_is_written_to_is_told_and_one_that_is_deleted_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "live", steps=3)
    write_starting(folder)
    with watching(tmp_path) as address, httpx.Client(base_url=base(address), timeout=10) as client:
        with client.stream("GET", "/api/events?run=live") as events:
            told = (json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))
            assert next(told)["live"]["step"] == 3
            with JsonLines(folder.metrics) as lines:
                lines.append(a_step(4))
            assert next(told)["live"]["step"] == 4
            assert got(client, "/api/runs/live/curves", first=4)["columns"]["step"] == [4]
            shutil.rmtree(folder.path)
            seen = next(told)["live"]
        overview = got(client, "/api/runs/live")
        assert "is gone" in overview["problems"][0]
        assert seen["state"] in ("gone", "unknown")
        assert got(client, "/api/runs")["runs"] == []


def test_a_run_without_samples_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "bare", samples=False)
    with watching(tmp_path / "bare") as address, httpx.Client(base_url=base(address)) as client:
        assert [run["name"] for run in got(client, "/api/runs")["runs"]] == ["bare"]
        answer = client.get("/api/runs/bare/samples")
        assert "run.db is missing: this run keeps no samples, or has none yet" in answer.json()["error"]


def test_beyond_this_machine_a_token_is_asked_for(runs: Path) -> None:
    with watching(runs, "--host", "0.0.0.0") as address:
        token = address.partition("?token=")[2]
        assert len(token) > 20
        local = f"http://127.0.0.1:{base(address).rpartition(':')[2]}"
        with httpx.Client(base_url=local) as client:
            assert client.get("/api/runs").status_code == 403
            assert client.get("/?token=wrong").status_code == 403
            entered = client.get(f"/?token={token}")
            assert entered.status_code == 303
            assert "HttpOnly" in entered.headers["set-cookie"]
            assert client.get("/api/runs").status_code == 200, "by the cookie"
        assert httpx.get(f"{local}/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_without_a_token_a_name_that_points_here_is_not_answered(client: httpx.Client) -> None:
    """A page elsewhere may have its own name resolved to this machine: it would then read what models wrote."""
    assert client.get("/api/runs", headers={"host": "evil.example:80"}).status_code == 403
    assert client.get("/api/runs", headers={"host": "localhost:1"}).status_code == 200
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["watch", "no/such/folder"], "is not a folder"),
        (["watch", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:7420"),
        (["report", "."], "is not a run's folder"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-m", "freerun.cli.main", *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
