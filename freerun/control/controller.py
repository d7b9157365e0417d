"""The loop: generate, judge, admit, learn, publish. Pure asyncio; it sees protocols only.

There is one loop: synchronous training is `max_staleness: 0`, and conversations, agents and tools are rollouts.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from freerun.control.admission import Admission
from freerun.control.bound import Selection
from freerun.control.buffer import Buffer
from freerun.control.config import ControlConfig
from freerun.control.explain import Explainer
from freerun.control.fleet import Fleet, cannot_restart
from freerun.control.groups import GroupBook, OpenGroup
from freerun.control.judging import Teacher, rewarded, taught, unjudged, verdicts_on
from freerun.control.lookahead import LookaheadLimit
from freerun.control.places import Places
from freerun.control.task_queue import TaskQueue
from freerun.control.waiting import FAILING_S, background, last_step_s, unbroken
from freerun.control.waits import ADMISSION, TRAINER, Waits
from freerun.core import Batch, DropReason, EngineError, EngineLost, FreerunError, Group, Version
from freerun.core.groups import Position
from freerun.core.observer import Observer, Observers
from freerun.core.reports import JudgeLoad, WeightsHandle
from freerun.core.state import RunState
from freerun.core.trajectory import Trajectory
from freerun.core.waits import WaitCause
from freerun.engines.base import Client, Engine, Load
from freerun.engines.tracked import TrackedEngine
from freerun.rewards.base import GroupJudge
from freerun.rollouts.base import GroupRollout, trajectories_of
from freerun.train.base import Trainer

T = TypeVar("T")

_TO_ENGINES_S = 0.05
"""How long the trainer, and whatever else the next step needs, keeps still for the engines to take new weights: they do
it sooner then, where they share a GPU or a processor with it."""


_NOTICED_S = 1.0
"""How long after its connections break a process that has died may go unnoticed: its requests have not failed of
themselves."""


@dataclass
class Run:
    """Everything one run needs, behind protocols."""

    config: ControlConfig
    group_size: int
    seed: int
    tasks: TaskQueue
    rollout: GroupRollout
    judge: GroupJudge
    engines: Mapping[str, Engine]
    """Those that the run begins with, by name; `fleet` has those that are there."""
    trainer: Trainer
    observer: Observer = field(default_factory=Observers)
    """Is told everything."""
    begins: RunState = field(default_factory=RunState)
    """Where the run begins; `tasks` begin there too."""
    max_running: int = 10**9
    """Samples an engine can run at once. Admitting more would only let them grow old in a queue."""
    max_sessions: int = 10**9
    """Samples that can run at once, however many engines there are."""
    engines_may_join: bool = False
    """Whether the run waits when no engine is left, since another one may come, or it ends."""
    ready: Sequence[tuple[Position, Group]] = ()
    """Judged groups that the run which this one goes on from has left, and that can still be trained on."""
    used: Collection[int] = ()
    """Ids of groups that are not to be given again."""
    restart: Callable[[str, str, bool], bool] = cannot_restart
    """Ends the process of the engine of that name, for that reason, and starts it again, or does not where that is
    false; false where it is nobody's to end."""
    teacher: Teacher | None = None
    """Reads what was sampled, where the objective learns from what it thinks of it."""
    judge_load: Callable[[], JudgeLoad | None] = lambda: None
    """What judging has cost so far, where that is known."""
    version: Version = field(init=False)
    """The trainer's. Engines take it a moment later; `admission` knows theirs."""
    published: "asyncio.Queue[WeightsHandle]" = field(default_factory=asyncio.Queue)
    """From the trainer to `deliver`: one at a time."""
    delivered: asyncio.Event = field(default_factory=asyncio.Event)
    """The engines have the trainer's version."""
    book: GroupBook = field(init=False)
    admission: Admission = field(init=False)
    lookahead: LookaheadLimit = field(init=False)
    buffer: Buffer = field(init=False)
    load: Load = field(default_factory=Load)
    fleet: Fleet = field(init=False)
    places: Places = field(default_factory=Places)
    waits: Waits = field(init=False)
    explain: Explainer = field(init=False)
    failed_in_a_row: int = 0
    equal_in_a_row: int = 0
    """Groups without signal: all rewards equal."""
    nothing_left: bool = False
    """There is nothing left to learn from the data: nothing more is dealt."""
    failing: bool = False
    """Generation or judging has failed, and the run ends: the step it is in may take its time."""

    def __post_init__(self) -> None:
        self.version = self.begins.version
        self.delivered.set()
        config, batch_samples = self.config, self.config.groups_per_step * self.group_size
        self.book = GroupBook(self.begins.tally, self.begins.next_group, self.used)
        self.book.listeners += [self.tasks.solved.note, self.observer.group, self.places.note]
        self.admission = Admission(
            self.book, batch_samples, config.max_staleness, batch_samples * config.steps, self.version
        )
        self.lookahead = LookaheadLimit(
            config.groups_per_step, config.max_staleness, lambda: self.judge.waiting // self.group_size
        )
        bound = config.bound()
        self.buffer = Buffer(self.book, bound, self.lookahead)
        self.fleet = Fleet(
            self.engines, self.observer, config.patience_s, self.engines_may_join, self.load.notify, self.restart
        )
        self.waits = Waits(self.observer, config.patience_s)
        self.book.listeners.append(self.waits.changed)
        self.explain = Explainer(
            self.book, self.places, self.fleet, bound, config.groups_per_step, batch_samples, self.waits,
            self.judge_load, lambda: self.version,
        )  # fmt: skip

    async def begin(self, newest: WeightsHandle) -> None:
        """Bring the engines the version that the run begins with."""
        await self.fleet.deliver(newest)

    async def join(self, name: str, engine: Engine) -> None:
        """An engine has started late or come back: it is asked as soon as it has the newest version."""
        await self.fleet.join(name, engine)

    def remove(self, name: str, why: str, how: str = "is lost") -> None:
        """An engine is gone. The groups that it had are asked of others."""
        self.fleet.remove(name, why, how)

    @property
    def state(self) -> RunState:
        """What is needed to go on from here. Between two steps only: a batch that is being trained on is owed."""
        return RunState(
            version=self.version,
            next_group=self.book.next_group,
            position=self.tasks.position,
            owed=self.book.owed + self.tasks.owed,
            resting=self.tasks.solved.resting,
            data=self.tasks.fingerprint,
            model=self.begins.model,
            tally=self.book.tally,
        )

    def last_step_s(self) -> float | None:
        """How long the step that it is in may still take when the run is ended; None: as long as it does."""
        return FAILING_S if self.failing else last_step_s()

    @property
    def max_load(self) -> int:
        """Samples to keep the engines at: what those that are there can run, and an eighth more to refill from at
        once."""
        return max(min(self.max_running * len(self.fleet), self.max_sessions) * 9 // 8, self.group_size)


async def train(run: Run) -> None:
    """Take the oldest batch the bound allows, learn from it, publish the new version; all the while, `produce` keeps
    the engines busy and `deliver` brings them what was published.

    Consumes judged groups; produces versions; waits for the buffer and the trainer; is unblocked by either.
    Invariant: what runs or waits never exceeds what the staleness bound admits, so nothing is trained on too stale.
    """
    try:
        async with (
            background(noticed(run, lambda: produce(run))),
            background(deliver(run)),
            background(noticed(run, run.fleet.watch)),
        ):
            found_ready(run)
            for step in range(run.version, run.config.steps):
                batch, masked_tokens = await next_batch(run, step)
                if not batch.groups:
                    break
                await unbroken(learn(run, batch, masked_tokens), run.last_step_s)
            await run.delivered.wait()
    finally:
        for group in run.book.open:
            run.book.drop(group.id, DropReason.RUN_ENDED, run.version)


def found_ready(run: Run) -> None:
    """What an earlier run has left waits for the trainer again."""
    for position, group in run.ready:
        run.observer.judged(group)
        run.book.found_ready(group, position, run.group_size)


async def produce(run: Run) -> None:
    """Keep the engines busy, never past the admission budget, and no further ahead of the trainer than it needs.

    Consumes tasks; produces judged groups in the book. Waits for room in the engines, in the look-ahead and under the
    formula; is unblocked by the end of a sample, a step's beginning or end, a drop.
    """
    async with asyncio.TaskGroup() as going:
        for position, task in run.tasks:
            dealt = run.book.deal(position, task, run.group_size)
            if run.nothing_left:
                break
            with run.waits.of(ADMISSION, WaitCause.ENGINES):
                await run.load.at_most(lambda: run.max_load - run.group_size)
            with run.waits.of(ADMISSION, lambda: WaitCause.JUDGING if run.lookahead.queues else WaitCause.AHEAD):
                await run.buffer.room()
            with run.waits.of(ADMISSION, WaitCause.BOUND):
                await run.admission.admit(dealt)
            run.load.add(run.group_size)
            going.create_task(answer(run, dealt))
            await asyncio.sleep(0)  # a hundred that begin at once would keep the loop from everything else
    run.buffer.end()


async def noticed(run: Run, generation: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Should it fail, the trainer is most likely well: the run then ends its step before it ends."""
    try:
        await generation()
    except Exception:
        run.failing = True
        raise


async def answer(run: Run, admitted: OpenGroup) -> None:
    """One task: roll it out, have it judged, and make it ready, or drop it with the reason."""
    trajectories = await rolled_out(run, admitted)
    if trajectories is None:
        return discard(run, admitted.id, DropReason.ROLLOUT_FAILED)
    run.observer.rolled_out(admitted.task, trajectories)
    errors = [one.error for one in trajectories if one.error is not None]
    if len(trajectories) - len(errors) < min(2, len(trajectories)):
        return discard(run, admitted.id, DropReason.ROLLOUT_ERROR, errors[0])
    run.book.sampled(admitted.id)
    run.lookahead.judging()
    if run.teacher:
        await taught(run.teacher, trajectories)
    verdicts = await verdicts_on(run.judge, admitted.task, trajectories)
    samples, left_out = rewarded(trajectories, verdicts), unjudged(trajectories, verdicts)
    group = Group(admitted.id, admitted.task, samples, admitted.version, left_out, admitted.engine)
    run.book.judged(group, [verdict.reason for verdict in verdicts])
    run.observer.judged(group)
    if len(group.members) < min(2, len(trajectories)):
        return discard(run, group.id, DropReason.JUDGE_FAILED)
    run.failed_in_a_row = 0
    if run.config.drop_no_signal and not group.has_signal:
        return pass_over(run, group)
    run.equal_in_a_row = 0
    return run.book.made_ready(group.id)


async def rolled_out(run: Run, admitted: OpenGroup) -> list[Trajectory] | None:
    """What became of each member; None when engines failed it every time. A retry starts the group afresh, and so does
    the loss of its engine, which is nobody's failure."""
    failed: list[TrackedEngine] = []
    counted = True  # as load, since it was admitted
    while len(failed) <= run.config.retries:
        engine = await run.fleet.choose(admitted.task.prompt_tokens, but_not=failed)
        admitted.engine = engine.name
        run.load.add(0 if counted else run.group_size)
        run.places.asked(admitted.id, engine.name)
        client = Client(engine, f"{run.seed}/{admitted.id}/{len(failed)}", run.load, reserved=run.group_size)
        try:
            return trajectories_of(await engine.roll_out(run.rollout(admitted.task, client)))
        except EngineLost:
            pass  # the fleet has said so
        except EngineError as error:
            if run.engines_may_join and await engine.is_lost_within(_NOTICED_S):
                continue
            failed.append(engine)
            run.observer.note(f"group {admitted.id}, attempt {len(failed)}: {error}")
        finally:
            client.close()
            counted = False
    return None


async def next_batch(run: Run, step: int) -> tuple[Batch, int]:
    """The batch for this step, empty when the data has ended; the groups that came too late for it are dropped."""
    while True:
        ready = run.buffer.take(run.config.groups_per_step, run.version)
        with run.waits.of(TRAINER, run.explain.batch_cause):
            selection = await waiting(run, "batch", "controller", f"waits for batch {step}", ready, run.explain.batch)
        for group in selection.drop:
            run.book.drop(group.id, DropReason.TOO_STALE, run.version)
        if selection.take or not selection.drop:
            assert_bound(run, selection)
            return Batch(run.version, sorted(selection.take, key=lambda group: group.id)), selection.masked_tokens


def assert_bound(run: Run, selection: Selection) -> None:
    """The promise, checked where it matters. It failing is a bug in the bound, and ends the run."""
    oldest = run.version - run.config.max_staleness
    for group in selection.take:
        if group.oldest_version < oldest and any(sample.trains_older_than(oldest) for sample in group.samples):
            raise FreerunError(f"group {group.id} holds a token older than max_staleness allows: this is a bug")


async def learn(run: Run, batch: Batch, masked_tokens: int) -> None:
    """One step: learn from the batch, hand the new version on, settle what was used up.

    The version before must have been delivered. Nothing is admitted between settling and taking the state, so the state
    is the version's own.
    """
    if run.teacher and (unread := [one for one in batch.samples if one.teacher_logprobs is None]):
        await run.teacher.read(unread)  # left by a run that had no teacher
    run.observer.learning(batch, masked_tokens)
    learning = run.trainer.step(batch)
    result = await waiting(
        run, "learn", "trainer", f"learns from batch {batch.version}", learning, run.explain.learning
    )
    run.fleet.compared(batch, result)
    with run.waits.of(TRAINER, WaitCause.WEIGHTS):
        await run.delivered.wait()
    assert result.weights, "a step publishes its version"
    settle(run, batch, result.version)
    run.delivered.clear()
    run.published.put_nowait(result.weights)
    run.waits.look()
    if load := run.judge_load():
        run.observer.judging(load)
    run.observer.stepped(result)
    for warning in result.warnings:
        run.observer.note(warning)
    state = run.state
    with suppress(TimeoutError), run.waits.of(TRAINER, WaitCause.WEIGHTS):
        await asyncio.wait_for(run.delivered.wait(), _TO_ENGINES_S)
    with run.waits.of(TRAINER, WaitCause.CHECKPOINT):
        await run.observer.settled(state)


async def deliver(run: Run) -> None:
    """Bring each version to the engines there are, complete, between two steps of each. The trainer goes on meanwhile.

    Consumes published versions; produces room under the formula; waits for the engines; is unblocked by them.
    """
    while True:
        handle = await run.published.get()
        taken, version = run.fleet.deliver(handle), handle.version
        updates = await waiting(
            run, "weights", "weights", f"version {version} to the engines", taken, partial(run.explain.weights, version)
        )
        run.admission.advance(handle.version)
        run.observer.updated(updates)
        await run.observer.published(handle)
        run.delivered.set()


def settle(run: Run, batch: Batch, version: Version) -> None:
    """The step is done: its groups are used up."""
    for group in batch.groups:
        run.book.trained(group.id, batch.version)
    run.version = version


def discard(run: Run, group: int, reason: DropReason, why: str = "") -> None:
    """Drop a group that failed on its way; too many in a row and the run says so instead of spinning."""
    run.book.drop(group, reason, run.version)
    run.failed_in_a_row += 1
    if run.failed_in_a_row >= run.config.give_up_after:
        cause = f"{reason.value}: {why}" if why else reason.value
        raise FreerunError(
            f"the last {run.failed_in_a_row} groups were all dropped (the last one: {cause}), so there is "
            "nothing to train on; look at the logs of engine and judge"
        )


def pass_over(run: Run, group: Group) -> None:
    """Drop a group whose rewards are all equal. Before anything was trained on, too many of them in a row are
    the reward's fault; later, a whole pass over the data without any other leaves nothing to learn from it, and the run
    ends."""
    run.book.drop(group.id, DropReason.NO_SIGNAL, run.version)
    run.equal_in_a_row += 1
    found = f"the last {run.equal_in_a_row} groups had equal rewards each (the last one: {group.rewards[0]:g})"
    if not run.version and run.equal_in_a_row >= run.config.give_up_after:
        raise FreerunError(f"{found}, so there is nothing to train on; look at the reward")
    if run.equal_in_a_row >= max(run.config.give_up_after, len(run.tasks)) and not run.nothing_left:
        run.nothing_left = True
        run.observer.note(f"{found}: there is nothing left to learn from this data, and the run ends here")


async def waiting(
    run: Run, kind: str, process: str, doing: str, work: Coroutine[Any, Any, T], explain: Callable[[], str]
) -> T:
    """Wait for what that process does, and say so: at once to those who watch, aloud when it takes longer than waits of
    its kind usually do."""
    run.observer.doing(process, doing)
    try:
        return await run.waits.aloud(kind, work, explain)
    finally:
        run.observer.doing(process, "idle")
