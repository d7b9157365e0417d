"""Conversations in run.db and in the report: turns, tools, branches, rewards, versions."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.core.reports import UpdateReport
from freerun.core.task import Message
from freerun.core.turns import Turn
from freerun.observe.folder import RunFolder
from freerun.observe.records import CallRecord, SampleRecord, TurnRecord
from freerun.observe.sample_reader import SampleReader
from freerun.observe.search import SampleFilter
from tests.observe.runs import a_sample, keep_samples
from tests.observe.test_meter_and_files import observing, result
from tests.observe.test_report import HOSTILE, page_of

TASK = Task("t", "what is 2 + 3?", [0], "5")
ASKED: Message = {"role": "user", "content": "what is 2 + 3?"}
CALLED: Message = {
    "role": "assistant",
    "content": "let me see",
    "reasoning_content": "a sum",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}],
}
FOUND: Message = {"role": "tool", "content": "5", "tool_call_id": "call_1"}
ENDED: Message = {"role": "assistant", "content": "5"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def branch(member: int, said: Sequence[Turn], versions: list[int], reward: float = 1.0) -> Sample:
    """A sample whose tokens, 1, 2, 3, …, are of these versions: -1 where the policy did not sample them here."""
    marks = [version >= 0 for version in versions]
    logprobs = [-float(token) if mark else 0.0 for token, mark in enumerate(marks, start=1)]
    tokens = range(1, len(versions) + 1)
    return Sample(list(tokens), marks, logprobs, versions, FinishReason.STOP, "5", reward, member, None, said)


def written(folder: RunFolder, *samples: Sample) -> list[SampleRecord]:
    with observing(folder) as run:
        run.learning(Batch(4, [Group(0, TASK, list(samples), 0)]), masked_tokens=0)
        run.stepped(result(5))
        run.updated([UpdateReport(5, 0.0, 0)])
    reader = SampleReader(folder.samples)
    return reader.many([row.id for row in reader.page(SampleFilter()).rows][::-1])


def test_a_conversation_is_kept_by_turn(folder: RunFolder) -> None:
    turns = [Turn(ASKED), Turn(CALLED, True, 2, 5, 0.25), Turn(FOUND), Turn(ENDED, True, 7, 9)]
    (record,) = written(folder, branch(3, turns, [-1, -1, 2, 2, 3, -1, -1, 4, 4]))
    assert record.turns == [
        TurnRecord("user", "what is 2 + 3?"),
        TurnRecord(
            role="assistant",
            text="let me see",
            reasoning="a sum",
            calls=[CallRecord("add", '{"a": 2, "b": 3}', "call_1")],
            sampled=True,
            reward=0.25,
            start=0,
            end=3,
            versions=[(2, 2), (3, 1)],
        ),
        TurnRecord("tool", "5", result_of="call_1"),
        TurnRecord("assistant", "5", sampled=True, start=3, end=5, versions=[(4, 2)]),
    ]
    assert record.versions == [2, 2, 3, 4, 4]
    assert record.logprobs == [-3.0, -4.0, -5.0, -8.0, -9.0]
    assert (record.member, record.branch, record.branches) == (3, 0, 1)


def test_what_another_branch_trains_is_said_and_has_no_tokens_here(folder: RunFolder) -> None:
    first = branch(0, [Turn(ASKED), Turn(CALLED, True, 1, 3)], [-1, 2, 2])
    second = branch(0, [Turn(ASKED), Turn(CALLED, True, 1, 3), Turn(ENDED, True, 4, 6)], [-1, -1, -1, -1, 3, 3])
    one, other = written(folder, first, second)
    assert [(one.branch, one.branches), (other.branch, other.branches)] == [(0, 2), (1, 2)]
    _, called, ended = other.turns
    assert (called.sampled, called.start, called.end, called.versions) == (True, 0, 0, [])
    assert (ended.start, ended.end, ended.versions) == (0, 2, [(3, 2)])
    assert len(other.tokens) == 2


def test_every_member_and_every_branch_is_kept(folder: RunFolder) -> None:
    samples = [branch(member, [], [-1, 2]) for member in range(3) for _ in range(10 if member == 0 else 1)]
    kept = [(record.member, record.branch, record.branches) for record in written(folder, *samples)]
    assert kept == [*((0, number, 10) for number in range(10)), (1, 0, 1), (2, 0, 1)]


def test_a_single_answer_has_no_turns(folder: RunFolder) -> None:
    (record,) = written(folder, branch(0, [], [-1, 4, 4]))
    assert (record.turns, record.branch, record.branches, record.versions) == ([], 0, 1, [4, 4])
    assert (record.prompt, record.answer, record.fate) == (TASK.prompt, TASK.answer, "trained")


def test_messages_that_are_no_plain_text_are_kept_as_json(folder: RunFolder) -> None:
    odd: Message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    call = {"function": {"name": "add", "arguments": {"a": 2}}}
    said: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    (record,) = written(folder, branch(0, [Turn(odd), Turn(said, True, 1, 2)], [-1, 4]))
    assert record.turns[0].text == '[{"type":"text","text":"hi"}]'
    assert (record.turns[1].text, record.turns[1].calls) == ("", [CallRecord("add", '{"a":2}', "")])


def conversation(turns: list[TurnRecord], tokens: int, **changes: object) -> SampleRecord:
    lists = {"tokens": [str(i) for i in range(tokens)], "logprobs": [-0.5] * tokens, "versions": [0] * tokens}
    return a_sample(1, turns=turns, member=0, **(lists | changes))


def test_the_report_has_turns_and_what_they_hold_stays_text(folder: RunFolder) -> None:
    asked = TurnRecord(HOSTILE, HOSTILE)
    called = TurnRecord("assistant", "x", "y", [CallRecord(HOSTILE, "{}", "i")], None, True, 0.5, 0, 2, [(0, 2)])
    found = TurnRecord("tool", "5" * 9000, result_of="i")
    keep_samples(folder.samples, conversation([asked, called, found], 2, branch=1, branches=6))
    page = page_of(folder)
    (sample,) = page.data["samples"]["records"].values()
    first, second, third = sample["turns"]
    assert (first["role"], first["text"], third["text"]) == (HOSTILE, HOSTILE, "5" * 9000)
    assert (second["start"], second["end"], second["reward"]) == (0, 2, 0.5)
    assert second["calls"] == [{"name": HOSTILE, "arguments": "{}", "id": "i"}]
    assert (sample["branch"], sample["branches"]) == (1, 6)
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
