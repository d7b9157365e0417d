"""The figures of a step by member, and those of agents' sessions."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.core.observer import Observer, Observers
from freerun.core.records import AgentRecord, StepRecord
from freerun.core.reports import EngineStats, SessionReport, UpdateReport
from freerun.core.trajectory import Trajectory
from freerun.observe import advice
from freerun.observe.agents import SessionCounter
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.live import view
from freerun.observe.meter import BatchFigures, StepMeter
from freerun.observe.records import read_steps
from freerun.rollouts.agents.spec import SessionFailure
from tests.observe.runs import a_step
from tests.observe.test_meter_and_files import batch, result
from tests.observe.test_report import page_of

TASK = Task("t", "?", [0])


class Told(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[StepRecord] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)


def metered(before: AgentRecord | None = None) -> tuple[StepMeter, Told]:
    told = Told()
    return StepMeter(Observers([told]), 0.0, agents_before=before), told


def step(meter: StepMeter, version: int) -> None:
    meter.learning(batch(version - 1), masked_tokens=0)
    meter.stepped(result(version))
    meter.updated([UpdateReport(version, 0.0, 0)])


def branch(member: int, sampled: int, given: int, reward: float, finish: FinishReason = FinishReason.STOP) -> Sample:
    """A prompt's token, a few that another branch has, and its own."""
    marks = [False] * (1 + given) + [True] * sampled
    versions = [-1] * (1 + given) + [0] * sampled
    return Sample([1] * len(marks), marks, [-1.0] * len(marks), versions, finish, "", reward, member)


def test_a_member_with_ten_branches_counts_as_one_with_one() -> None:
    cut = FinishReason.LENGTH
    many = [branch(0, 3, 0, 1.0), *(branch(0, 2, 3, 1.0) for _ in range(8)), branch(0, 1, 3, 1.0, cut)]
    one = [branch(1, 5, 0, 0.0)]
    all_cut = [branch(2, 4, 0, 0.5, cut)]
    given = Batch(1, [Group(0, TASK, [*many, *one, *all_cut], 0)])
    many[0].mask_older_than(1)
    figures = BatchFigures.of(given, 3, skip_truncated=False)
    assert (figures.reward_mean, figures.judged, figures.samples) == (0.5, 3, 3)
    assert figures.truncated_share == pytest.approx(2 / 3)
    assert figures.answer_tokens_mean == (20 + 5 + 4) / 3, "what was too old was sampled all the same"
    assert figures.tokens == 17 + 5 + 4
    without = BatchFigures.of(given, 3, skip_truncated=True)
    assert (without.samples, without.tokens) == (2, 16 + 5), "a member is trained on if one of its branches is"


def member(turns: int = 3, branches: int = 1, **report: object) -> Trajectory:
    first, *others = [branch(0, 2, 0, 1.0) for _ in range(branches)]
    session = SessionReport(**({"requests": turns, "turns": turns} | report))  # type: ignore[arg-type]
    return Trajectory(first, branches=others, session=session)


def failed(why: str, tries: int = 2, requests: int = 1) -> Trajectory:
    trajectory = Trajectory.failed("it did not work")
    trajectory.session = SessionReport(requests=requests, failures={why: tries}, reread_tokens=5)
    return trajectory


def test_sessions_are_counted_since_the_start_and_means_by_step() -> None:
    meter, told = metered(AgentRecord(sessions={"ok": 10, "crash": 1}, requests=100, forks={"edited": 4}))
    retried = member(5, 3, forks={"edited": 2}, apart={"retried": 1}, failures={"deadline": 1}, reread_tokens=40)
    meter.rolled_out(TASK, [member(3), retried, failed("deadline")])
    step(meter, 1)
    step(meter, 2)
    meter.rolled_out(TASK, [member(7, apart={"orphaned": 2})])
    step(meter, 3)
    first, second, third = [record.agents for record in told.steps]
    assert first == AgentRecord(
        sessions={"ok": 12, "crash": 1, "deadline": 3},
        requests=109,
        turns_mean=4.0,
        branches_mean=2.0,
        forks={"edited": 6},
        unused={"retried": 1},
        reread_tokens=45,
    )
    assert second is not None
    assert (second.sessions, second.reread_tokens) == (first.sessions, 0)
    assert math.isnan(second.turns_mean)
    assert third is not None
    assert (third.turns_mean, third.requests, third.unused) == (7.0, 116, {"retried": 1, "orphaned": 2})


def test_a_run_without_agents_has_no_record_of_them() -> None:
    meter, told = metered()
    meter.rolled_out(TASK, [Trajectory(branch(0, 2, 0, 1.0)), Trajectory.failed("a tool did not answer")])
    step(meter, 1)
    assert told.steps[0].agents is None


def test_what_engines_found_in_their_caches_is_told_by_step() -> None:
    meter, told = metered()
    stats = EngineStats(0, 0, 0, 0, 0.0, prompt_tokens=100, reused_tokens=20)
    step(meter, 1)
    meter.engine("engine 0", stats)
    meter.engine("engine 1", stats)
    step(meter, 2)
    step(meter, 3)
    meter.engine("engine 1", EngineStats(0, 0, 0, 0, 0.0, prompt_tokens=200, reused_tokens=110))
    step(meter, 4)
    first, *shares = [record.cache_hit_share for record in told.steps]
    assert math.isnan(first), "no prompt was read"
    assert shares == [pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.9)], "what was known holds"


def test_records_go_through_the_file_and_those_of_older_runs_are_read(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    agents = AgentRecord({"ok": 3, "error": 1}, 9, math.nan, 1.5, {"edited": 2}, {"retried": 1}, 7)
    with JsonLines(folder.metrics) as lines:
        lines.append(a_step(1))
        lines.append(a_step(2, agents=agents, cache_hit_share=0.5))
    older = json.loads(folder.metrics.read_text().splitlines()[0])
    del older["agents"], older["cache_hit_share"]
    folder.metrics.write_text(json.dumps(older | {"step": 0}) + "\n" + folder.metrics.read_text())
    oldest, without, found = read_steps(folder.metrics)
    assert oldest.agents is None
    assert without.agents is None
    assert found.agents is not None
    assert math.isnan(found.agents.turns_mean)
    assert (found.agents.failures, found.agents.failed_share, found.agents.fork_share) == ({"error": 1}, 0.25, 2 / 9)
    assert found.cache_hit_share == 0.5


def test_sessions_that_fail_and_requests_that_fork_get_one_note_each() -> None:
    meter, told = metered()
    meter.rolled_out(TASK, [failed("no_call", tries=19, requests=0)])
    assert told.notes == [], "too few to say anything"
    meter.rolled_out(TASK, [failed("no_call", tries=1, requests=0), member(20, forks={"edited": 9, "compacted": 1})])
    (note,) = told.notes
    assert note.startswith("95% of the agents' sessions fail (20 no call of 21): the agent never asks the policy")
    for _ in range(3):
        meter.rolled_out(TASK, [failed("no_call"), member(20, forks={"edited": 20})])
    assert len(told.notes) == 2
    assert "do not go on from where the conversation was (29 edited, 1 compacted of 41)" in told.notes[1]
    assert told.notes[1].endswith("add to the conversation instead")


def test_what_mostly_works_gets_no_note() -> None:
    meter, told = metered()
    for _ in range(20):
        meter.rolled_out(TASK, [member(4, forks={"edited": 2}), *(member() for _ in range(3)), failed("error", 1)])
    assert told.notes == []


def test_there_is_a_cause_for_every_failure() -> None:
    assert set(advice.FAILURES) == set(SessionFailure)


AGENTS = AgentRecord({"ok": 380, "deadline": 20}, 1600, 4.0, 1.25, {"edited": 80}, {"retried": 3}, 900)


def test_the_live_view_has_one_line_about_agents() -> None:
    out = io.StringIO()
    shown = view("demo", 200, 4, Console(file=out, force_terminal=False, width=40))
    shown.step(a_step(1))
    before = len(out.getvalue().splitlines())
    shown.step(a_step(2, agents=AGENTS, cache_hit_share=0.85))
    assert out.getvalue().splitlines()[before + 1 :] == [
        "  agents: 400 sessions  20 failed  4 turns  5% forks  85% in cache"
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=80, record=True, _environ={"TERM": "xterm"})
    panel = view("demo", 200, 4, console)
    panel.step(a_step(2, agents=AGENTS, cache_hit_share=0.85))
    console.print(panel.render())  # type: ignore[attr-defined]
    text = console.export_text()
    assert "400 sessions · 20 failed · 4 turns · 5% forks · 85% in cache" in text


def test_the_report_has_the_agents_figures(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    with JsonLines(folder.metrics) as lines:
        for number in range(1, 4):
            lines.append(a_step(number, agents=AGENTS, cache_hit_share=0.8))
    page = page_of(folder)
    for figure in [
        "400",
        "failed: 20 deadline",
        "in 1.25 branches",
        "of 1.6k requests: 80 edited",
        "80%",
        "2.7k tokens",
    ]:
        assert figure in page.text
    assert page.data["curves"]["columns"]["agents/turns_mean"] == [4.0] * 3


def test_a_counter_goes_on_from_an_earlier_run() -> None:
    assert SessionCounter().record is None
    going_on = SessionCounter(AGENTS).record
    assert going_on is not None
    assert (going_on.sessions, going_on.requests) == (AGENTS.sessions, 1600)
