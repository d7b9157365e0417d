"""What the controller tells, in the run folder."""

import gc
import io
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.core.observer import Observers
from freerun.core.records import StepRecord
from freerun.core.reports import PUBLISH, StepResult, UpdateReport, WeightsHandle
from freerun.observe.files import RunFiles
from freerun.observe.folder import RunFolder
from freerun.observe.live import view
from freerun.observe.meter import BatchFigures, StepMeter
from freerun.observe.sample_reader import SampleReader
from freerun.observe.samples import KeptSamples
from freerun.observe.search import SampleFilter
from freerun.observe.timeline import read_timeline
from tests.control.test_promises import Letters


def batch(version: int) -> Batch:
    """A batch of one group, whose number and text say which."""
    sample = Sample([0, version], [False, True], [0.0, -1.0], [-1, version], FinishReason.STOP, f"of {version}", 1.0)
    return Batch(version, [Group(version, Task(f"t{version}", "?", [0]), [sample], version)])


def result(version: int) -> StepResult:
    start_s = time.monotonic() + 100.0 * version
    phases = [("learn", start_s, start_s + 10), (PUBLISH, start_s + 10, start_s + 12)]
    return StepResult(version, {"loss": 0.5}, phases, weights=WeightsHandle("none", version, ""))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


@contextmanager
def observing(folder: RunFolder, engine_idle_s: float = 0.0) -> Iterator[Observers]:
    files, everybody = RunFiles(folder), Observers()
    samples = KeptSamples(folder.samples, Letters(), everybody, gib=1.0)
    meter = StepMeter(everybody, files.begun_s)
    meter.begin({"engine 0": engine_idle_s})
    for observer in (meter, samples, files, view("run", 3, 4, Console(file=io.StringIO()))):
        everybody.add(observer)
    with closing(everybody):
        yield everybody


def test_what_is_left_out_of_training_is_not_counted_as_trained(folder: RunFolder) -> None:
    given = batch(0)
    long = Sample([0, 1, 1], [False, True, True], [0.0, -1.0, -1.0], [-1, 0, 0], FinishReason.LENGTH, "", 0.0)
    given.groups[0].samples.append(long)
    for skip, samples, tokens in ((False, 2, 3), (True, 1, 1)):
        trained = BatchFigures.of(given, 0, skip)
        assert (trained.samples, trained.tokens, trained.staleness.total()) == (samples, tokens, tokens)
        assert (trained.reward_mean, trained.truncated_share) == (0.5, 0.5), "of the batch"


def test_engines_that_were_idle_while_others_started_are_not_called_idle(folder: RunFolder) -> None:
    with observing(folder, engine_idle_s=40.0) as run:
        run.learning(batch(0), masked_tokens=0)
        run.stepped(result(1))
        run.updated([UpdateReport(1, 0.004, 7, 40.25, engine="engine 0")])
    assert lines(folder.metrics)[0]["engine_idle_s"] == 0.25


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_written_with_its_own_samples_though_the_next_has_begun(folder: RunFolder) -> None:
    with observing(folder) as run:
        run.learning(batch(0), masked_tokens=0)
        run.stepped(result(1))
        run.learning(batch(1), masked_tokens=0)
        assert lines(folder.metrics) == [], "engines come first"
        run.updated([UpdateReport(1, 0.004, 7)])
        assert [(line["step"], line["update_pause_s"]) for line in lines(folder.metrics)] == [(1, 0.004)]
        run.stepped(result(2))
    kept = [(row.step, row.excerpt) for row in SampleReader(folder.samples).page(SampleFilter()).rows]
    assert kept == [(2, "of 1"), (1, "of 0")]
    assert [line["step"] for line in lines(folder.metrics)] == [1, 2], "the last one's update was not waited for"


def test_a_step_ends_with_what_it_learned_and_publishing_is_the_update_s(folder: RunFolder) -> None:
    with observing(folder) as run:
        run.learning(batch(0), masked_tokens=0)
        run.stepped(result(1))
        run.updated([UpdateReport(1, 0.004, 0)])
    spans = {event["name"]: event for event in read_timeline(folder.timeline) if event["ph"] == "X"}
    assert spans["step 1"]["dur"] == pytest.approx(10e6)
    assert spans[PUBLISH]["dur"] == pytest.approx(2e6)
    assert spans["publish version 1"]["ts"] == pytest.approx(spans["step 1"]["ts"] + 10e6)


def test_a_long_run_takes_no_more_memory_than_a_short_one(folder: RunFolder) -> None:
    """What a step came to is in its file, and not in the controller."""
    with observing(folder) as run:
        for version in range(200):
            run.learning(batch(version), masked_tokens=0)
            run.stepped(result(version + 1))
            run.updated([UpdateReport(version + 1, 0.004, 0)])
        records = [one for one in gc.get_objects() if type(one) is StepRecord]
    assert len(lines(folder.metrics)) == 200
    assert len(records) < 50


def group(number: int, *rewards: float) -> Group:
    samples = [Sample([0, 1], [False, True], [0.0, -1.0], [-1, 0], FinishReason.STOP, "", r) for r in rewards]
    return Group(number, Task(f"t{number}", "?", [0]), samples, 0)


def test_the_mean_of_all_judged_is_never_of_a_handful(folder: RunFolder) -> None:
    """Few were judged between two quick steps: those before count too, up to a batch."""
    with observing(folder) as run:
        for version, judged in enumerate([[1, 1, 0, 0, 1, 1], [0], [0, 0], [0, 1, 0, 1, 1, 1]]):
            run.judged(group(version, *judged))
            run.learning(Batch(version, [group(version, 1, 1, 1, 0)]), masked_tokens=0)
            run.stepped(result(version + 1))
            run.updated([UpdateReport(version + 1, 0.0, 0)])
    means = [line["reward_mean_all"] for line in lines(folder.metrics)]
    assert means == [4 / 6, 0.5, 0.25, 4 / 6], "of 6, then of 4: 0 1 1 0, then 1 0 0 0, then the 6 since"


def said_in(folder: RunFolder, batches: list[Batch]) -> list[str]:
    with observing(folder) as run:
        for given in batches:
            run.learning(given, masked_tokens=0)
    return [str(line["text"]) for line in lines(folder.notes)]


def test_constant_rewards_get_one_note(folder: RunFolder) -> None:
    def batches(*rewards: float) -> list[Batch]:
        return [Batch(version, [group(version, reward, reward)]) for version, reward in enumerate(rewards)]

    assert said_in(folder, batches(*[0.0] * 19, 1.0, *[0.0] * 19)) == []
    (note,) = said_in(folder, batches(*[0.0] * 60))
    assert "every answer of the last 20 steps got the reward 0, so nothing can be learned" in note
    assert "freerun judge" in note
    assert lines(folder.notes)[0]["step"] == 0


def test_answers_that_are_nearly_all_cut_off_get_one_note(folder: RunFolder) -> None:
    def given(version: int, cut: int) -> Batch:
        made = group(version, *(float(i % 2) for i in range(20)))
        for sample in made.samples[:cut]:
            sample.finish = FinishReason.LENGTH
        return Batch(version, [made])

    assert said_in(folder, [given(version, 18) for version in range(9)]) == []
    (note,) = said_in(folder, [given(version, 19) for version in range(9)])
    assert "cut off at rollout.max_new_tokens" in note
