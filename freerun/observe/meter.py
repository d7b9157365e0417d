"""The figures of every step, put together from what the loop tells: one `StepRecord` a step, and the spans of the
trainer and the controller.

Consumes what happens; produces `step` and `span`, which it tells all observers, and a few notes. A step is complete
when the engines have its version; one of supervised training, which publishes nothing, at once.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from freerun.core import Batch, DropReason, Group, Task
from freerun.core.groups import GroupEvent, Stage, Tally, TallyCounter
from freerun.core.nouns import NOT_SAMPLED, trained_by_version
from freerun.core.observer import Observer
from freerun.core.records import AgentRecord, StepRecord
from freerun.core.reports import EngineStats, JudgeLoad, Span, StepResult, UpdateReport
from freerun.core.trajectory import Trajectory
from freerun.core.waits import WaitCause
from freerun.observe.advice import Advice, AgentAdvice
from freerun.observe.agents import SessionCounter
from freerun.observe.engines import EngineFigures
from freerun.observe.judges import JudgeFigures
from freerun.observe.learning import LearningAdvice


@dataclass(frozen=True)
class BatchFigures:
    """What a batch is like, by member: one that has several samples counts once."""

    judged: int
    samples: int
    """Members that are trained on."""
    tokens: int
    masked_tokens: int
    staleness: Counter[int]
    reward_mean: float
    answer_tokens_mean: float
    truncated_share: float

    @classmethod
    def of(cls, batch: Batch, masked_tokens: int, skip_truncated: bool) -> "BatchFigures":
        members = [member for group in batch.groups for member in group.members]
        trained = [[s for s in member if not (skip_truncated and s.truncated)] for member in members]
        versions = trained_by_version(sample for branches in trained for sample in branches)
        staleness = {batch.version - version: count for version, count in versions.items() if version != NOT_SAMPLED}
        return cls(
            judged=len(members),
            samples=sum(map(bool, trained)),
            tokens=versions.total(),
            masked_tokens=masked_tokens,
            staleness=Counter(staleness),
            reward_mean=_mean([member[0].reward for member in members if member[0].reward is not None], none=math.nan),
            answer_tokens_mean=_mean([sum(branch.num_sampled for branch in member) for member in members]),
            truncated_share=_mean([any(branch.truncated for branch in member) for member in members]),
        )

    @property
    def staleness_mean(self) -> float:
        return sum(age * count for age, count in self.staleness.items()) / max(self.tokens, 1)


@dataclass(frozen=True)
class Stepped:
    """A step that is done and whose version the engines do not have yet."""

    record: StepRecord
    result: StepResult
    batch_asked_s: float


class StepMeter(Observer):
    def __init__(
        self,
        tell: Observer,
        begun_s: float,
        before: Tally | None = None,
        solved: Callable[[], int] = lambda: 0,
        skip_truncated: bool = False,
        agents_before: AgentRecord | None = None,
    ) -> None:
        """`begun_s` is when the run began, by the monotonic clock; `before` and `agents_before` are the tally and the
        agents' counts of the run that this one goes on from; `solved` counts the tasks that are solved; the trainer may
        `skip_truncated`."""
        self._tell = tell
        self._start_s = begun_s
        self._solved = solved
        self._skip_truncated = skip_truncated
        self._ended = TallyCounter(before)
        self._ready = 0
        self._last_step_s = self._batch_asked_s = self._trained_s = time.monotonic()
        self._rewards: list[float] = []
        """The rewards judged since the last step, and enough earlier ones to make up a batch."""
        self._judged_since = self._judged = 0
        self._advice = Advice()
        self._learning: BatchFigures | None = None
        self._stepped: Stepped | None = None
        self._engines = EngineFigures()
        self._sessions = SessionCounter(agents_before)
        self._agent_advice = AgentAdvice()
        self._learning_advice = LearningAdvice()
        self._waits = _no_waits()
        """Who → what for → seconds since the last step."""
        self._judges = JudgeFigures()

    def begin(self, engines_idle_s: Mapping[str, float]) -> None:
        """Generation begins now: what came before was start-up, when engines, by name, have been idle for so long."""
        self._last_step_s = self._batch_asked_s = time.monotonic()
        self._waits.clear()
        self._engines.begin(engines_idle_s)

    def group(self, event: GroupEvent) -> None:
        self._ready += (event.stage is Stage.READY) - (event.stage is Stage.TRAINING)
        self._ready -= event.reason is DropReason.TOO_STALE
        self._ended.count(event)

    def rolled_out(self, task: Task, trajectories: Sequence[Trajectory]) -> None:
        if self._sessions.count(trajectories) and (record := self._sessions.record):
            for note in self._agent_advice.notes(record):
                self._tell.note(note)

    def judged(self, group: Group) -> None:
        rewards = group.rewards
        self._rewards.extend(rewards)
        self._judged_since += len(rewards)
        self._judged += len(rewards)
        self._tell.doing("rewards", f"{self._judged} answers judged")

    def engine(self, name: str, stats: EngineStats) -> None:
        self._engines.heard(name, stats)
        doing = f"version {stats.version}, {stats.running} answers running, {stats.waiting} queued"
        self._tell.doing(name, doing)
        for span in stats.spans:
            self._tell.span(replace(span, process=name))

    def judging(self, load: JudgeLoad) -> None:
        self._judges.heard(load)

    def waited(self, who: str, cause: WaitCause, seconds: float) -> None:
        self._waits[who][cause.value] += seconds

    def engine_out(self, name: str, why: str) -> None:
        self._engines.out(name)
        self._tell.doing(name, why)

    def span(self, span: Span) -> None:
        if span.track == "checkpoint":  # the trainer was busy with a copy of itself until now
            self._batch_asked_s = span.end_s

    def learning(self, batch: Batch, masked_tokens: int) -> None:
        self._learning = BatchFigures.of(batch, masked_tokens, self._skip_truncated)
        for note in self._advice.notes(batch):
            self._tell.note(note)

    def stepped(self, result: StepResult) -> None:
        """The record is told after the update: nothing is told twice, and engines are waiting."""
        assert self._learning
        self._complete()
        now_s = time.monotonic()
        self._rewards = self._rewards[-max(self._judged_since, self._learning.judged) :]
        self._stepped = Stepped(self._record(now_s, self._learning, result), result, self._batch_asked_s)
        self._judged_since = 0
        self._sessions.step_done()
        self._last_step_s = self._batch_asked_s = now_s
        self._trained_s = result.learned_s or now_s
        if result.weights is None:
            self._complete()

    def updated(self, updates: list[UpdateReport]) -> None:
        assert self._stepped
        now_s, record = time.monotonic(), self._stepped.record
        name = f"publish version {record.version}"
        self._tell.span(Span("publish", name, self._trained_s, now_s, process="controller"))
        recomputed = float(sum(update.recomputed_tokens for update in updates))
        received = float(sum(update.bytes for update in updates))
        record = replace(
            record,
            engine_idle_s=self._engines.idle_s(updates),
            update_s=now_s - self._trained_s,
            update_pause_s=_mean([update.pause_s for update in updates]),
            trainer=record.trainer | {"recomputed_tokens": recomputed, "weights_bytes": received} | _caches(updates),
        )
        self._stepped = replace(self._stepped, record=record)
        self._complete()

    def close(self) -> None:
        """The last step's update may not have been waited for."""
        self._complete()

    def _complete(self) -> None:
        if stepped := self._stepped:
            self._stepped = None
            self._draw(stepped)
            self._tell.step(stepped.record)
            for note in self._learning_advice.notes(stepped.record):
                self._tell.note(note)

    def _record(self, now_s: float, trained: BatchFigures, result: StepResult) -> StepRecord:
        step_s = now_s - self._last_step_s
        every, tally = self._engines.latest, self._ended.tally
        waits, self._waits = self._waits, _no_waits()
        return StepRecord(
            step=result.version,
            version=result.version,
            time_s=now_s - self._start_s,
            step_s=step_s,
            reward_mean=trained.reward_mean,
            reward_mean_all=_mean(self._rewards) if self._rewards else trained.reward_mean,
            samples=trained.samples,
            tokens_trained=trained.tokens,
            tokens_per_s=trained.tokens / step_s,
            answer_tokens_mean=trained.answer_tokens_mean,
            truncated_share=trained.truncated_share,
            staleness_mean=trained.staleness_mean,
            staleness_max=max(trained.staleness, default=0),
            staleness_histogram={str(age): count for age, count in sorted(trained.staleness.items())},
            dropped={why.value: count for why, count in tally.dropped.items() if why is not DropReason.RUN_ENDED},
            judgements=tally.judgements,
            engine_idle_s=0.0,
            trainer_idle_s=self._trainer_idle_s(now_s, result),
            update_pause_s=0.0,
            first_token_s=_mean([stats.first_token_s for stats in every]),
            running=sum(stats.running + stats.waiting for stats in every),
            waiting=self._ready,
            solved=self._solved(),
            cache_hit_share=self._engines.cache_hit_share(),
            agents=self._sessions.record,
            trainer_waits=dict(waits["trainer"]),
            admission_waits=dict(waits["admission"]),
            **self._judges.figures(step_s),
            trainer=result.metrics
            | {"masked_tokens": float(trained.masked_tokens), "recomputed_tokens": 0.0, "weights_bytes": 0.0},
        )

    def _trainer_idle_s(self, now_s: float, result: StepResult) -> float:
        """Before the step, for a batch; after it, until its version could be published and was."""
        if not result.phases:
            return 0.0
        return (result.phases[0][1] - self._batch_asked_s) + (now_s - result.phases[-1][2])

    def _draw(self, stepped: Stepped) -> None:
        result = stepped.result
        if not result.phases:
            return
        start_s = result.phases[0][1]
        self._tell.span(Span("wait", "wait for a batch", stepped.batch_asked_s, start_s, process="controller"))
        self._tell.span(Span("step", f"step {result.version}", start_s, result.learned_s, process="trainer"))
        for name, phase_start_s, phase_end_s in result.phases:
            self._tell.span(Span("phase", name, phase_start_s, phase_end_s, process="trainer"))


def _caches(updates: list[UpdateReport]) -> dict[str, float]:
    """What became of running answers' caches, where engines choose."""
    chose = [update for update in updates if update.kept_caches or update.rebuilt_caches]
    if not chose:
        return {}
    kept = sum(update.kept_caches for update in chose)
    answers = kept + sum(update.rebuilt_caches for update in chose)
    return {"kept_caches": kept / answers, "cache_error": _mean([update.cache_error for update in chose])}


def _no_waits() -> defaultdict[str, defaultdict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


def _mean(values: Sequence[float] | Sequence[int] | Sequence[bool], none: float = 0.0) -> float:
    return sum(values) / len(values) if values else none
