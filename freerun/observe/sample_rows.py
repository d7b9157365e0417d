"""What run.db keeps of a sample: a row of plain values, made from the group that it belongs to.

Rows are made thousands a second in the thread that writes them, so the common case, one answer after a prompt, is a
slice of the sample's arrays and not a mask over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freerun.core import FinishReason, Group, Sample, Version
from freerun.core.groups import DropReason
from freerun.core.nouns import NOT_SAMPLED, member_places
from freerun.core.turns import Turn
from freerun.core.versions import VersionRuns
from freerun.observe.folder import encode, whole
from freerun.observe.records import CallRecord, TurnRecord

TRAINED = "trained"
MEMBERS, BRANCHES = 2, 4
"""Kept of a step's first group, at most, when there is no room for all: members, and branches of each."""

COLUMNS = (
    *("step", "version", "grp", "task", "member", "branch", "branches", "reward", "fate", "finish", "truncated"),
    *("length", "turns", "staleness_max", "staleness_mean", "text", "tokens", "logprobs", "versions", "before"),
    "conversation",
)
Row = tuple[Any, ...]
_FINISH = {reason: reason.value for reason in FinishReason}
"""Plain strings: SQLite takes others by a detour."""
Logprobs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """A group that was trained on or dropped, and what is kept of it."""

    group: Group
    step: int
    """The step that consumed it; of a dropped one, the step that was next."""
    fate: str = TRAINED
    """`trained`, or why it was dropped."""
    before: list[Logprobs] | None = None
    """For each of its samples, the log-probabilities by the trainer's weights before the step."""

    @property
    def num_tokens(self) -> int:
        return sum(len(sample.tokens) for sample in self.group.samples)


def rows_of(ended: EndedGroup) -> Iterator[Row]:
    """All samples of a group; those that could not be judged are its last."""
    group = ended.group
    yield from _rows(ended, group.samples, ended.fate, ended.before)
    if group.unjudged:
        yield from _rows(ended, group.unjudged, DropReason.JUDGE_FAILED.value, None)


def few_rows_of(ended: EndedGroup) -> Iterator[Row]:
    """Two members, with a few branches of each."""
    places = [place for member in member_places(ended.group.samples)[:MEMBERS] for place in member[:BRANCHES]]
    rows = list(_rows(ended, ended.group.samples, ended.fate, ended.before))
    yield from (rows[place] for place in sorted(places))


def _rows(ended: EndedGroup, samples: list[Sample], fate: str, before: list[Logprobs] | None) -> Iterator[Row]:
    group, version, task = ended.group, ended.step - 1, whole(ended.group.task.id)
    for place, (sample, (member, branch, branches)) in enumerate(zip(samples, _branches(samples), strict=True)):
        places = sampled_places(sample)
        length, oldest, ages, versions = _ages(sample.versions.runs, version)
        yield (
            *(ended.step, version, group.id, task, member, branch, branches, sample.reward, fate),
            *(_FINISH[sample.finish], sample.truncated, length, len(sample.turns), oldest, ages, whole(sample.text)),
            sample.tokens[places].tobytes(),
            sample.behavior_logprobs[places].tobytes(),
            versions,
            before[place].astype(np.float32, copy=False).tobytes() if before else None,
            encode(turns_of(sample)) if sample.turns else None,
        )


def _branches(samples: list[Sample]) -> list[tuple[int, int, int]]:
    """Gives, for each sample, its member, which of its branches it is, and how many there are."""
    if len({sample.member for sample in samples}) == len(samples) > 1:
        return [(place if sample.member is None else sample.member, 0, 1) for place, sample in enumerate(samples)]
    found = [(0, 0, 1)] * len(samples)
    for number, places in enumerate(member_places(samples)):
        for branch, place in enumerate(places):
            member = samples[place].member
            found[place] = number if member is None else member, branch, len(places)
    return found


def _ages(runs: Sequence[tuple[Version, int]], version: Version) -> tuple[int, int, float, str]:
    """How many tokens were sampled, the staleness of the oldest and their mean, and by which versions, as JSON."""
    if len(runs) == 2 and runs[0][0] == NOT_SAMPLED:
        sampled_by, count = runs[1]
        return count, version - sampled_by, float(version - sampled_by), f"[[{sampled_by}, {count}]]"
    sampled = VersionRuns.joined(run for run in runs if run[0] != NOT_SAMPLED).runs
    if not sampled:
        return 0, 0, 0.0, "[]"
    length = sum(count for _, count in sampled)
    mean = version - sum(sampled_by * count for sampled_by, count in sampled) / length
    return length, version - min(sampled)[0], mean, str([list(run) for run in sampled])


def sampled_places(sample: Sample) -> slice | NDArray[np.bool_]:
    """Which of its tokens the policy sampled."""
    runs = sample.versions.runs
    given = [place for place, run in enumerate(runs) if run[0] == NOT_SAMPLED]
    if given == [0] or not given:
        return slice(runs[0][1] if given else 0, None)
    marks: NDArray[np.bool_] = sample.versions.by_token() != NOT_SAMPLED
    return marks


def turns_of(sample: Sample) -> list[TurnRecord]:
    """Places among all tokens become places among the sampled ones, which are those that are kept."""
    versions = sample.versions.by_token()
    sampled = versions != NOT_SAMPLED
    place = np.concatenate([[0], np.cumsum(sampled)]).tolist()
    return [
        _turn(turn, place[turn.start], place[turn.end], versions[turn.start : turn.end][sampled[turn.start : turn.end]])
        for turn in sample.turns
    ]


def searched(text: str, turns: list[TurnRecord]) -> str:
    """What a search for text looks at: the answer; of a conversation, all that was said in it."""
    if not turns:
        return text
    said = [[turn.text, turn.reasoning, *(f"{call.name} {call.arguments}" for call in turn.calls)] for turn in turns]
    return "\n".join(part for parts in said for part in parts if part)


def _turn(turn: Turn, start: int, end: int, versions: NDArray[np.int64]) -> TurnRecord:
    message = turn.message
    return TurnRecord(
        role=str(message.get("role", "")),
        text=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")),
        calls=[_call(call) for call in message.get("tool_calls") or ()],
        result_of=message.get("tool_call_id"),
        sampled=turn.sampled,
        reward=turn.reward,
        start=start,
        end=end,
        versions=list(VersionRuns.of(versions).runs),
    )


def _call(call: dict[str, Any]) -> CallRecord:
    function = call.get("function") or {}
    return CallRecord(str(function.get("name", "")), _text(function.get("arguments")), str(call.get("id") or ""))


def _text(content: Any) -> str:
    """A text as it is; whatever else a message may hold, as JSON."""
    if content is None:
        return ""
    return content if isinstance(content, str) else encode(content).decode()
