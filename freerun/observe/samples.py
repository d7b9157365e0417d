"""What samples.jsonl keeps of a batch: a few members of a group, each with its branches, for people to read."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freerun.core import Group, Sample, Version
from freerun.core.nouns import NOT_SAMPLED
from freerun.core.turns import Turn
from freerun.core.versions import VersionRuns
from freerun.observe.folder import encode
from freerun.observe.records import CallRecord, SampleRecord, TurnRecord

MEMBERS = 2
BRANCHES = 4
"""Kept, at most, of a group's members and of a member's branches; the record says how many there are."""


class Decoder(Protocol):
    def decode(self, token_ids: Any, /) -> str: ...


class SampleRecords:
    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._words: dict[int, str] = {}

    def of(self, version: Version, group: Group) -> Iterator[SampleRecord]:
        """`version` is the trainer's, before the step that learns from the group."""
        for place, branches in enumerate(group.members[:MEMBERS]):
            for number, sample in enumerate(branches[:BRANCHES]):
                member = place if sample.member is None else sample.member
                yield self._record(version, group, sample, member, number, len(branches))

    def _record(
        self, version: Version, group: Group, sample: Sample, member: int, branch: int, branches: int
    ) -> SampleRecord:
        versions = sample.versions.by_token()
        sampled = versions != NOT_SAMPLED
        return SampleRecord(
            step=version + 1,
            version=version,
            group=group.id,
            task=group.task.id,
            prompt=group.task.prompt,
            answer=group.task.answer,
            text=sample.text,
            reward=sample.reward,
            finish=sample.finish.value,
            tokens=[self._word(token) for token in sample.tokens[sampled].tolist()],
            logprobs=sample.behavior_logprobs[sampled].tolist(),
            versions=versions[sampled].tolist(),
            member=member,
            branch=branch,
            branches=branches,
            turns=_turns(sample, versions, sampled),
        )

    def _word(self, token: int) -> str:
        """Each token is decoded once: a long answer has thousands, most of them often, and the loop waits for this."""
        if token not in self._words:
            self._words[token] = self._tokenizer.decode([token])
        return self._words[token]


def _turns(sample: Sample, versions: NDArray[np.int64], sampled: NDArray[np.bool_]) -> list[TurnRecord]:
    """Places among all tokens become places among the sampled ones, which are those that the record has."""
    if not sample.turns:
        return []
    place = np.concatenate([[0], np.cumsum(sampled)]).tolist()
    return [
        _turn(turn, place[turn.start], place[turn.end], versions[turn.start : turn.end][sampled[turn.start : turn.end]])
        for turn in sample.turns
    ]


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
