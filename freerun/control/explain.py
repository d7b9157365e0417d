"""What is waited for, in a sentence: which groups, at which version, where, since when, and what would end it.

Reads the book of groups, their places, the engines' last figures and the judge's; changes nothing. What the trainer
waits for has one cause at any moment: see `WaitCause`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from freerun.control.bound import Bound
from freerun.control.fleet import Fleet
from freerun.control.groups import GroupBook
from freerun.control.places import Place, Places
from freerun.control.waits import ADMISSION, Waits
from freerun.core import Version
from freerun.core.groups import Stage
from freerun.core.reports import JudgeLoad
from freerun.core.waits import WaitCause

_MOST_NAMED = 3
COMPUTES = 0.5
"""A judge that computes for this share of its time gets no faster by more workers than there are processors."""


@dataclass
class Explainer:
    book: GroupBook
    places: Places
    fleet: Fleet
    bound: Bound
    groups_per_step: int
    batch_samples: int
    waits: Waits
    judge_load: Callable[[], JudgeLoad | None]
    version: Callable[[], Version]
    """The trainer's."""

    # what the trainer waits for when it wants a batch

    def batch_cause(self) -> WaitCause:
        if not len(self.fleet):
            return WaitCause.NO_ENGINE
        missing = self.groups_per_step - self.book.num_ready
        if missing <= 0:
            judging = all(place.stage is not Stage.ADMITTED for place in self.first())
            return WaitCause.JUDGING if judging else WaitCause.BOUND
        generating = self.places.count(Stage.ADMITTED)
        if self.book.num_running - generating >= min(missing, self.book.num_running or 1):
            return WaitCause.JUDGING
        asked = not generating or any(engine.tokens for engine in self.fleet.engines)
        return WaitCause.GENERATION if asked else WaitCause.AGENTS

    def first(self) -> list[Place]:
        """The running groups that must be trained on before others: all of them where that is open."""
        running = self.places.of(Stage.ADMITTED, Stage.SAMPLED, Stage.JUDGED)
        late = self.bound.late(self.book.ready, self.book.running, self.version(), self.groups_per_step)
        return [place for place in running if late is None or place.version <= late] or running

    def batch(self) -> str:
        cause = self.batch_cause()
        if cause is WaitCause.NO_ENGINE:
            return self.no_engine()
        if cause is WaitCause.JUDGING:
            return self.judging()
        if cause is WaitCause.AGENTS:
            return f"the trainer waits for agents: {self._groups(self._generating())}, and ask nothing of the engines"
        if cause is WaitCause.BOUND:
            return (
                f"the trainer waits for {self._groups(self.first())}: a batch is ready, but they would be older than "
                f"control.max_staleness {self.bound.max_staleness} after it"
            )
        generating = self._generating()
        return f"the trainer waits for {self._groups(generating)}" if generating else self._nothing_runs()

    def _generating(self) -> list[Place]:
        """As many of the oldest as are missing."""
        missing = max(self.groups_per_step - self.book.num_ready, 1)
        return self.places.of(Stage.ADMITTED)[:missing]

    def judging(self) -> str:
        load = self.judge_load()
        if load is None or not load.waiting:
            judged = self.places.of(Stage.SAMPLED)
            return f"the trainer waits for judging: {self._groups(judged)}"
        each = f", each takes {in_words(load.judge_s)}" if load.judged else ""
        if load.cpu_share > COMPUTES:
            remedy = "it computes: make the judge faster, or give it processors (reward.where: machines)"
        else:
            a_batch = replace(load, busy_s=self.batch_samples * load.judge_s) if load.judged else load
            remedy = f"raise reward.workers to {a_batch.enough_workers(self.waits.usual('learn').median_s)}"
        workers = f"{load.workers} worker{'s' * (load.workers > 1)}"
        return f"judging is the bottleneck: {load.waiting} answers wait for {workers}{each}; {remedy}"

    def no_engine(self) -> str:
        out = [engine.name for engine in self.fleet.engines]
        ending = f"{', '.join(out)} is looked at again" if out else "one is started again, or is to come"
        return f"no engine is there: {ending}"

    def _nothing_runs(self) -> str:
        if self.waits.cause(ADMISSION) is WaitCause.BOUND:
            return f"the trainer waits, and control.max_staleness {self.bound.max_staleness} admits nothing more"
        return "the trainer waits for a batch, and no group is on its way: the data, or whoever hands it out, is slow"

    # what everybody else waits for while the trainer learns, or engines take weights

    def learning(self) -> str:
        usual_s = self.waits.usual("learn").median_s
        usually = f", which usually takes {in_words(usual_s)}" if usual_s else ""
        said = f"the trainer learns from batch {self.version()}{usually}"
        if self.waits.cause(ADMISSION) is WaitCause.BOUND and not self.places.of(Stage.ADMITTED):
            names = ", ".join(engine.name for engine in self.fleet.asked)
            said += (
                f"; {names} wait{'s' * (len(self.fleet) == 1)}: control.max_staleness {self.bound.max_staleness} "
                f"admits nothing until step {self.version() + 1} is learned"
            )
        return said

    def weights(self, version: Version) -> str:
        late = [engine.name for engine in self.fleet.asked if engine.version < version]
        return f"{', '.join(late) or 'engines'} take version {version} of the weights"

    def _groups(self, places: Sequence[Place]) -> str:
        """`3 groups of version 41, running on engine 1 for 212 s, 7,012 of 8,192 tokens`."""
        by_place = Counter((place.version, place.engine, place.stage is Stage.ADMITTED) for place in places)
        now_s, said = self.places.now_s(), []
        for (version, engine, running), count in by_place.most_common(_MOST_NAMED):
            same = [one for one in places if (one.version, one.engine) == (version, engine)]
            where = f"running{f' on {engine}' if engine else ''}" if running else "being judged"
            longest = self._progress(engine) if running else ""
            said.append(
                f"{count} group{'s' * (count > 1)} of version {version}, {where} "
                f"for {in_words(now_s - min(one.since_s for one in same))}{longest}"
            )
        others = len(places) - sum(count for _, count in by_place.most_common(_MOST_NAMED))
        return "; ".join(said) + (f"; and {others} others" if others else "")

    def _progress(self, engine: str) -> str:
        """How far the answer is that has the most tokens."""
        stats = self.fleet.latest.get(engine)
        if stats is None or not stats.longest_most:
            return ""
        return f", {stats.longest_tokens:,} of {stats.longest_most:,} tokens"


def in_words(seconds: float) -> str:
    """`20 ms`, `4.2 s`, `212 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
