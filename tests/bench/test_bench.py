"""The benchmarks of the whole loop, of packing and of sharing, run as a user runs them, on work of seconds."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from freerun.bench.apart import Job, train
from freerun.bench.loop import Loop, Way
from freerun.bench.one_gpu import Measured, _under_mps
from freerun.bench.work import LARGE, SMALL, Work
from freerun.cli.main import main
from freerun.machine.mps import Mps
from freerun.models.tiny import make_model
from tests.typed import freerun

ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
SMALLER = ("--groups", "2", "--slots", "12", "--longest", "24", "--steps", "1", "resources.threads=1")


def bench(*arguments: str) -> tuple[str, dict[str, Any]]:
    """What it printed, and the JSON line."""
    with mock.patch.dict(os.environ, ENVIRONMENT):
        done = freerun("bench", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_async_compares_bounds_of_staleness() -> None:
    printed, record = bench("async", "--etas", "1,0", *SMALLER)
    assert "as many tokens a second as at η = 0" in printed
    assert "swapped to first tokens" in printed
    assert [run["max_staleness"] for run in record["runs"]] == [0, 1]
    assert [run["steps"] for run in record["runs"]] == [1, 4]
    assert record["ratios"].keys() == {"1"}
    for run in record["runs"]:
        assert run["staleness_max"] <= run["max_staleness"]
        assert run["tokens_per_s"] == min(run["trained_per_s"], run["generated_per_s"]) > 0
        assert 0 <= run["engine_idle_share"] < 1
        assert run["update_s"] >= run["pause_s"] > 0


def test_stopped_on_the_way_it_says_what_it_has_seen() -> None:
    """Two steps into the measured ones, which come after two to warm up."""
    command = [sys.executable, "-m", "freerun.cli.main", "bench", "async", "--etas", "1", *SMALLER, "--steps", "10000"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as going:
        assert going.stderr
        steps = (re.match(r"step +(\d+)/", line) for line in going.stderr)
        assert any(step and int(step[1]) > 3 for step in steps)
        going.send_signal(signal.SIGINT)
        last_words = going.stderr.read()
    assert re.search(r"η = 1, recompute: [\d,]+ tokens a second in \d+ of 10000 steps to be measured", last_words)
    assert going.returncode == 130


def test_interrupt_compares_what_an_update_does_to_answers() -> None:
    """With a model whose vocabulary no tokenizer of ours has."""
    printed, record = bench("interrupt", "--model", "4m", "--max-staleness", "1", *SMALLER)
    assert "answers that an update interrupts" in printed
    interrupted, finished = record["runs"]
    assert (interrupted["on_update"], finished["on_update"]) == ("recompute", "finish")
    assert finished["recomputed_tokens"] == 0
    assert record["ratio"] == pytest.approx(interrupted["tokens_per_s"] / finished["tokens_per_s"])


def test_update_compares_what_becomes_of_caches() -> None:
    """Effective tokens are tokens times effective samples; only the engine's choice has a share of kept caches."""
    printed, record = bench("update", "--max-staleness", "1", *SMALLER, "train.lr=1e-3")
    assert "auto has" in printed
    assert [run["on_update"] for run in record["runs"]] == ["keep", "recompute", "auto", "auto", "recompute", "keep"]
    for run in record["runs"]:
        assert 0 < run["effective_samples"] <= 1
        assert run["on_update"] == "auto" or run["kept_caches"] == 0
        assert run["on_update"] != "keep" or run["recomputed_tokens"] == 0
    assert record["effective_per_s"].keys() == {"keep", "recompute", "auto"}


def test_packing_compares_micro_batches() -> None:
    printed, record = bench("packing", "--tokens", "700", "--longest", "100", "--steps", "1")
    assert "times 32 micro-batches, padded" in printed
    assert record["bench"] == "packing"
    assert record["ratios"].keys() == {"32 micro-batches", "32 micro-batches, padded"}
    assert "conversations: tokens of a pass" in printed
    for ratios in record["conversations"].values():
        assert 1 <= ratios["computed"] <= 1.1
        assert ratios["by_turn"] > 3


def test_mps_compares_sharing_with_turns() -> None:
    printed, record = bench("mps", "--rows", "2", "--cores", "1", "--seconds", "0.5", "--json")
    assert len(printed.splitlines()) == 1
    alone, together = record["runs"]
    shares = [together[key] / alone[key] for key in ("decoded_per_s", "trained_per_s")]
    assert record["ratio"] == together["shares"] == pytest.approx(sum(shares))


async def test_without_mps_there_is_one_row_less_and_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Mps, "missing", staticmethod(lambda: "it is not installed"))
    rows: list[Measured] = await _under_mps(Job("4m", 1, 1, 1, 1, 2), 0.1, tmp_path, {"engine": 1.0, "trainer": 1.0})
    assert rows == []
    assert "no MPS: it is not installed" in capsys.readouterr().err


def test_a_trainer_apart_counts_every_token_of_its_steps() -> None:
    job = Job("4m", rows=1, prompt=1, answer=1, sequences=2, length=16)
    counts = train(job)
    assert [next(counts) for _ in range(2)] == [64, 96], "the first step is warm-up"


def test_the_same_work_has_the_same_tasks_and_lengths_however_it_is_run(tmp_path: Path) -> None:
    """Long-tailed lengths, clipped at both ends, and rewards that differ within a group."""
    work = replace(LARGE, model="4m", longest=2_000)
    with work.model_folder() as model:
        prepared = work.prepared(model, threads=1)
    again = replace(work, groups=4).rollout(prepared)
    lengths = [work.rollout(prepared).lengths(task) for task in prepared.tasks[:100]]
    assert lengths == [again.lengths(task) for task in prepared.tasks[:100]]
    flat = [length for group in lengths for length in group]
    assert (min(flat), max(flat)) == (32, 2_000)
    assert all(len(task.prompt_tokens) == 128 for task in prepared.tasks)
    assert prepared.shape.max_positions >= 128 + 2_000
    texts = [prepared.tokenizer.decode(random.Random(i).choices(range(4_096), k=9)) for i in range(100)]
    assert 30 < texts.count(prepared.tasks[0].answer) < 70
    assert not model.exists(), "the model goes with the benchmark"


@pytest.mark.parametrize(("groups", "slots"), [(32, 256), (64, 256), (32, 100), (4, 8)])
def test_no_more_answers_run_than_the_benchmark_says(groups: int, slots: int, tmp_path: Path) -> None:
    """The engine would run as many as a synchronous step has."""
    work = Work.here("tiny", groups, slots)
    make_model(tmp_path / "model", "ab>", seed=0)
    prepared = work.prepared(tmp_path / "model", 1)
    loop = Loop(work, prepared, None)  # type: ignore[arg-type]
    for eta, most in ((4, slots), (0, 8 * groups)):
        way = loop._as(Way(eta), 1).config
        on_their_way = max(way.engine.max_running * 9 // 8, way.rollout.group_size)
        assert most * 0.98 - 1 <= min(on_their_way, prepared.config.engine.max_running) <= most


def test_what_is_right_for_this_machine_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freerun.bench.work.visible_gpus", lambda: [object()])
    assert Work.here() == LARGE
    monkeypatch.setattr("freerun.bench.work.visible_gpus", lambda: [])
    assert Work.here() == SMALL
    assert Work.here(groups=3, overrides=["engine.cache_tokens=2000"]).settings[-1] == "engine.cache_tokens=2000"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("async", "--model", "9b"), "it is tiny, 4m, 135m, 0.6b, 1.5b, 7b, 8b, 32b"),
        (("async", "--model", "32b"), "--model 32b is too large for a CPU"),
        (("async", "--etas", "0;4"), "whole numbers"),
        (("async", "engine.max_runing=3"), "did you mean engine.max_running?"),
        (("interrupt", "--model", "9b"), "it is tiny, 4m, 135m, 0.6b, 1.5b, 7b, 8b, 32b"),
        (("packing", "--model", "9b"), "neither a folder nor one of 4m"),
        (("mps", "--model", "tiny"), "it is 4m, 135m, 0.6b, 1.5b, 7b, 8b, 32b"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["freerun", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert says in error
