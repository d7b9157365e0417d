"""Versions as runs say the same as versions one by one, and samples count by them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import FinishReason, Group, Sample, Task
from freerun.core.nouns import NOT_SAMPLED, VersionRuns, trained_by_version

versions = st.lists(st.integers(NOT_SAMPLED, 4), max_size=30)
marked = st.lists(st.tuples(st.integers(NOT_SAMPLED, 4), st.booleans()), max_size=30)


def sample_of(tokens: list[tuple[int, bool]]) -> Sample:
    sampled_by, marks = [version for version, _ in tokens], [mark for _, mark in tokens]
    return Sample(list(range(len(tokens))), marks, [-1.0] * len(tokens), sampled_by, FinishReason.STOP)


@given(versions)
def test_runs_are_the_versions_one_by_one(each: list[int]) -> None:
    runs = VersionRuns.of(each)
    assert list(runs) == runs.by_token().tolist() == each
    assert len(runs) == len(each)
    assert all(count > 0 for _, count in runs.runs)
    assert all(before[0] != after[0] for before, after in zip(runs.runs, runs.runs[1:], strict=False))
    assert VersionRuns.joined((version, 1) for version in each) == runs
    assert [v for v, start, end in runs.stretches() for _ in range(start, end)] == each
    sampled = [version for version in each if version != NOT_SAMPLED]
    assert runs.num_sampled == len(sampled)
    assert runs.oldest == min(sampled, default=NOT_SAMPLED)
    assert runs.newest == max(sampled, default=NOT_SAMPLED)


@given(marked, st.integers(0, 5))
def test_tokens_that_are_too_old_lose_their_loss(tokens: list[tuple[int, bool]], oldest: int) -> None:
    sample = sample_of(tokens)
    assert trained_by_version([sample]) == {
        version: count for version in range(NOT_SAMPLED, 5) if (count := tokens.count((version, True)))
    }
    too_old = [NOT_SAMPLED < version < oldest and mark for version, mark in tokens]
    assert sample.trains_older_than(oldest) == any(too_old)
    assert sample.mask_older_than(oldest) == sum(too_old)
    assert sample.loss_mask.tolist() == [mark and not old for (_, mark), old in zip(tokens, too_old, strict=True)]
    assert not sample.trains_older_than(oldest)
    assert trained_by_version([sample]).total() == np.count_nonzero(sample.loss_mask)


def test_a_mask_is_changed_by_giving_another() -> None:
    sample = sample_of([(NOT_SAMPLED, False), (0, True), (1, True)])
    with pytest.raises(ValueError, match="read-only"):
        sample.loss_mask[1] = False
    sample.loss_mask = np.array([False, False, True])
    assert trained_by_version([sample]) == {1: 1}


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    samples = [sample_of([(NOT_SAMPLED, False), (3, True), (4, True)]), sample_of([(NOT_SAMPLED, False), (2, True)])]
    group = Group(0, Task("a", "", []), samples, admitted_at=1)
    assert (group.oldest_version, group.newest_version) == (2, 4)
    assert Group(0, Task("a", "", []), [sample_of([])], admitted_at=1).oldest_version == 1
