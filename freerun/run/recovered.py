"""Where a run goes on, by its book in run.db: as far as its steps can be done again without sampling anything again.

The newest checkpoint is of version b. Each step since then whose batch is kept is done again from that batch, up to
version t: the trainer computes, and no engine. What happened after step t counts too: groups that were judged and wait
for the trainer still wait, if the bound allows it, tasks that were dropped are dropped, and only what was being sampled
or judged begins afresh. A batch that is not kept ends all that: from there on what happened is undone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from freerun.config.tree import RunConfig
from freerun.control.bound import in_time
from freerun.control.config import ControlConfig
from freerun.control.solved import SolvedTasks
from freerun.core import DataError, Group, Version
from freerun.core.groups import Position, Stage, TallyCounter
from freerun.core.state import RunState
from freerun.data.stream import TaskStream
from freerun.observe.book_reader import BookReader, Entry, Settlement

ReadyGroup = tuple[Position, Group]


@dataclass(frozen=True)
class Recovered:
    state: RunState
    ready: tuple[ReadyGroup, ...] = ()
    """Groups that wait for the trainer, oldest first."""
    used: frozenset[int] = frozenset()
    """Ids of groups beyond `state.next_group` that are not free."""
    after: int = 0
    """The last event that counts: later ones are undone."""


def recovered(
    book: BookReader,
    base: RunState,
    stream: TaskStream,
    control: ControlConfig,
    pass_reward: float = 1.0,
    unchanged: bool = True,
) -> Recovered:
    """`base` is what the checkpoint says. `unchanged`: the run goes on with the settings that it had; with others, what
    was sampled and learned since the checkpoint is not what it would be now, and is undone."""
    try:
        settled = book.settlements(base.version) or {}
        if base.version == 0:
            settled.setdefault(0, Settlement(base, 0))
        if base.version not in settled:
            return Recovered(base, after=_before_step(book, base.version))
        if not unchanged:
            return Recovered(base, after=settled[base.version].event)
        return _furthest(book, settled, base, stream, control, pass_reward)
    except DataError:  # the file is damaged, and put aside when the run begins
        return Recovered(base)


def _furthest(
    book: BookReader,
    settled: dict[Version, Settlement],
    base: RunState,
    stream: TaskStream,
    control: ControlConfig,
    pass_reward: float,
) -> Recovered:
    reached, newest = _reached(book, settled, base.version, control.steps), max(settled)
    at = settled[reached]
    state, ended, after = at.state, set[int](), at.event
    if reached == newest:
        tail = list(book.entries(at.event))
        solved = SolvedTasks(control.skip_solved, pass_reward, state.resting)
        state, ended = _gone_on(state, tail, stream, solved)
        after = tail[-1].id if tail else at.event
    owed = set(state.owed)
    waiting = [(place, group) for place, group in book.ready(since=reached) if place in owed and group.id not in ended]
    ready = _usable(waiting, reached, stream, control)
    left = {place for place, _ in ready}
    state = replace(state, model=base.model, data=base.data, owed=[place for place in state.owed if place not in left])
    used = {group.id for _, group in ready} | ended
    return Recovered(state, tuple(ready), frozenset(used), after)


def _reached(book: BookReader, settled: dict[Version, Settlement], version: Version, steps: int) -> Version:
    """The version that can be had from the checkpoint's by doing steps again, no more than the run is to have."""
    kept, learned = book.steps_kept(version), book.trained_since(version)
    while version < steps and version + 1 in settled and kept.get(version, 0) == learned.get(version, -1):
        version += 1
    return version


def _gone_on(
    state: RunState, tail: Iterable[Entry], stream: TaskStream, solved: SolvedTasks
) -> tuple[RunState, set[int]]:
    """The state after what happened since, and the groups that ended meanwhile."""
    owed, position, ended = dict.fromkeys(state.owed), state.position, set[int]()
    tally = TallyCounter(state.tally)
    for entry in tail:
        if entry.position >= position:
            position = stream.after(entry.position)
        if (event := entry.event) is None or event.stage is Stage.TRAINED:
            continue  # the latter: its step was not done, and it waits again
        if event.stage is Stage.DEALT:
            owed.setdefault(entry.position)
        elif event.stage.is_end:
            owed.pop(entry.position, None)
            ended.add(event.group)
            solved.note(event)
        tally.count(event)
    gone_on = replace(state, owed=list(owed), position=position, tally=tally.tally, resting=solved.resting)
    return gone_on, ended


def _usable(
    waiting: list[ReadyGroup], version: Version, stream: TaskStream, control: ControlConfig
) -> list[ReadyGroup]:
    """Those that can be trained on within the bound. A token of a version that is not there again is nobody's."""
    groups = {group.id: (place, group) for place, group in waiting if group.newest_version <= version}
    fresh = in_time([group for _, group in groups.values()], version, control.max_staleness, control.groups_per_step)
    usable = [groups[group.id] for group in sorted(fresh, key=lambda group: group.id)]
    return [(place, replace(group, task=stream.at(place))) for place, group in usable]


def _before_step(book: BookReader, version: Version) -> int:
    """The last event before the step at that version was done, as far as the book knows: it has no state of it."""
    for entry in book.entries():
        if entry.event and entry.event.stage is Stage.TRAINED and entry.event.version >= version:
            return entry.id - 1
    return book.last_event()


def learns_alike(before: RunConfig, now: RunConfig) -> bool:
    """Whether what the one has sampled and learned is what the other would have."""
    return _learning(before) == _learning(now)


def _learning(config: RunConfig) -> dict[str, Any]:
    settings = config.model_dump(mode="json", include={"model", "data", "reward", "rollout", "train", "seed"})
    settings["train"] = {key: value for key, value in settings["train"].items() if key not in ("save_every", "keep")}
    return settings
