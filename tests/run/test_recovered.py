"""Where a killed run goes on, as a property: the book cut off after any entry, and any checkpoint before that."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.control.solved import SolvedTasks
from freerun.control.task_queue import TaskQueue
from freerun.core import Batch, Group, Task
from freerun.core.groups import GroupEvent, Position, Stage
from freerun.core.observer import Observer
from freerun.core.reports import StepResult, UpdateReport
from freerun.core.state import RunState
from freerun.data.stream import TaskStream
from freerun.observe.audit import audit
from freerun.observe.book import KeptBook
from freerun.observe.book_reader import BookReader
from freerun.observe.book_tables import Begun, BookDatabase, Done, Entry, Happened, Rested, Settled
from freerun.run.recovered import Recovered, recovered
from tests.control.test_promises import World
from tests.fakeclock import run_fast


class ListedBook(KeptBook):
    """Its entries in a list, for a test to write as many of them as it likes."""

    def __init__(self, begun: Begun) -> None:
        super().__init__(Path("nowhere"), begun, Observer())
        self.entries: list[Entry] = [begun]

    def _put(self, entry: Entry) -> None:
        self.entries.append(entry)


@dataclass
class Booked(World):
    begun: Begun = field(default_factory=lambda: Begun(0, 0, 10))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.book = ListedBook(self.begun)

    def group(self, event: GroupEvent) -> None:
        super().group(event)
        self.book.group(event)

    def judged(self, group: Group) -> None:
        self.book.judged(group)

    def stepped(self, result: StepResult) -> None:
        self.book.stepped(result)

    async def settled(self, state: RunState) -> None:
        await self.book.settled(state)

    def updated(self, updates: list[UpdateReport]) -> None:
        super().updated(updates)
        self.book._put(Done(self.run.version, 0))

    def stream(self) -> TaskStream:
        tasks = [Task(f"task-{index}", "?", [index % 5, 1]) for index in range(self.begun.tasks)]
        return TaskStream(tasks, seed=self.seed, shuffle=False, epochs=None)

    def _tasks(self) -> TaskQueue:
        stream = self.stream()
        stream.seek(self.begins.position)
        solved = SolvedTasks(self.skip_solved, resting=self.begins.resting)
        return TaskQueue(stream, self.begins.owed, solved, self.book.rested)


def written(folder: Path, entries: list[Entry]) -> BookReader:
    """As a kill leaves it after so many entries."""
    database = BookDatabase(folder / "run.db", 10**9)
    database.add(entries)
    database.close()
    return BookReader(folder / "run.db")


def checkpoints(entries: list[Entry]) -> list[RunState]:
    """The states that a checkpoint could be of: those of steps that were done."""
    done = {entry.version for entry in entries if isinstance(entry, Done)}
    return [entry.state for entry in entries if isinstance(entry, Settled) and entry.state.version in done]


def same(one: Batch, other: Batch) -> bool:
    def plain(batch: Batch) -> list[object]:
        return [
            (
                g.id,
                g.task.id,
                g.admitted_at,
                s.tokens.tolist(),
                s.behavior_logprobs.tolist(),
                s.versions,
                s.reward,
                s.text,
            )
            for g in batch.groups
            for s in g.samples
        ]

    return one.version == other.version and plain(one) == plain(other)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    max_staleness=st.integers(0, 4),
    when_stale=st.sampled_from(["wait", "mask", "drop"]),
    groups_per_step=st.integers(1, 3),
    drop_no_signal=st.booleans(),
    skip_solved=st.sampled_from([0, 4]),
    failure_rate=st.sampled_from([0.0, 0.2]),
    cut=st.floats(0.0, 1.0),
    checkpoint=st.floats(0.0, 1.0),
    unchanged=st.sampled_from([True, True, False]),
    later_batches=st.integers(1, 3),
)
def test_a_killed_run_goes_on_from_any_cut_of_its_book(
    seed: int, max_staleness: int, when_stale: Literal["wait", "mask", "drop"], groups_per_step: int,
    drop_no_signal: bool, skip_solved: int, failure_rate: float, cut: float, checkpoint: float, unchanged: bool,
    later_batches: int,
) -> None:  # fmt: skip
    """Nothing is lost and nothing twice, the bound holds, and what is done again is what was done."""
    how = {
        "max_staleness": max_staleness, "when_stale": when_stale, "drop_no_signal": drop_no_signal,
        "failure_rate": failure_rate, "skip_solved": skip_solved,
    }  # fmt: skip
    first = Booked(seed, steps=6, groups_per_step=groups_per_step, **how)  # type: ignore[arg-type]
    run_fast(first.go())
    entries = first.book.entries[: 1 + int(cut * (len(first.book.entries) - 1))]
    bases = [RunState(), *checkpoints(entries)]
    base = bases[int(checkpoint * (len(bases) - 1))]
    with TemporaryDirectory() as folder:
        book = written(Path(folder), entries)
        control = first.run.config.model_copy(update={"groups_per_step": later_batches})
        there = recovered(book, base, first.stream(), control, unchanged=unchanged)
        version = there.state.version
        newest = max((state.version for state in checkpoints(entries)), default=0)
        assert version == (newest if unchanged else base.version)
        for done in first.batches[base.version : version]:
            kept = book.batch(done.version)
            assert kept
            assert same(kept, done)
        ended = places_ended(entries, there)
        alive = there.state.owed + [place for place, _ in there.ready]
        assert len(set(alive)) == len(alive)
        assert not set(alive) & ended
        for _, group in there.ready:
            assert group.oldest_version >= version - max_staleness
            assert group.newest_version <= version
        if unchanged and when_stale == "wait" and later_batches == groups_per_step:
            waited = ready_after(entries) - {group.id for _, group in there.ready}
            assert all(too_new(first, group, version) for group in waited), "what could wait still does"
        kept_ids = frozenset(group.id for _, group in there.ready)
        second = Booked(
            seed + 1, steps=version + 4, groups_per_step=later_batches, **how,  # type: ignore[arg-type]
            begins=there.state, ready=there.ready, used=there.used,
            begun=Begun(version, there.after, 10, kept_ids),
        )  # fmt: skip
        run_fast(asyncio.wait_for(second.go(), 1e6))
        assert [batch.version for batch in second.batches] == list(range(version, version + 4))
        reader = written(Path(folder), second.book.entries)
        found = audit(Path(folder))
        assert found.is_clean, found.examples
        assert found.trained == sum(len(b.groups) for b in [*first.batches[:version], *second.batches])
        assert sum(found.dropped.values()) + found.trained + found.open + found.rested >= len(set(alive))
        tally = second.run.book.tally
        assert tally.trained == found.trained
        assert reader.beginnings()[-1].version == version


def places_ended(entries: list[Entry], there: Recovered) -> set[Position]:
    """As far as it counts."""
    numbered = [entry for entry in entries if isinstance(entry, Happened | Rested)]
    counted = [entry.event for entry in numbered[: there.after] if isinstance(entry, Happened)]
    undone = {e.group for e in counted if e.stage is Stage.TRAINED and e.version >= there.state.version}
    return {e.position for e in counted if e.stage.is_end and e.group not in undone}


def ready_after(entries: list[Entry]) -> set[int]:
    """Groups that were ready, or being trained on in a step that was not done."""
    last = {entry.event.group: entry.event for entry in entries if isinstance(entry, Happened)}
    done = max((entry.version for entry in entries if isinstance(entry, Done)), default=0)
    waits = (Stage.READY, Stage.TRAINING)
    return {g for g, e in last.items() if e.stage in waits or (e.stage is Stage.TRAINED and e.version >= done)}


def too_new(world: World, group: int, version: int) -> bool:
    """It has a token of a version that is not there again."""
    batches = [one for batch in world.batches for one in batch.groups]
    found = next((one for one in batches if one.id == group), None)
    return found is None or found.newest_version > version
