"""What came of a run that was struck: its promises counted, and its pace against that of the same run undisturbed."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from freerun.bench.chaos_strikes import Struck
from freerun.bench.run_log import Audited
from freerun.config.tree import RunConfig
from freerun.core import ConfigError, DataError
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_evals, read_steps
from freerun.observe.sample_reader import SampleReader
from freerun.observe.search import SampleFilter
from freerun.observe.status import RunPhase, read_status

_LAST_SHARE = 0.1
"""The share of the steps whose rewards are the rewards at the end."""
_MIB = 2**20


@dataclass(frozen=True)
class Pace:
    """How far a run came in how long."""

    tokens: int
    """Tokens of all steps; a step that was done again counts once."""
    wall_s: float
    """From its first start to its end."""
    steps: int
    reward: float
    """Mean over the last tenth of the steps."""
    pass_at_1: float | None
    """What the last evaluation found, if there was one."""

    @classmethod
    def of(cls, folder: RunFolder, wall_s: float) -> "Pace":
        steps, evaluations = read_steps(folder.metrics), read_evals(folder.evals)
        last = steps[-max(int(len(steps) * _LAST_SHARE), 1) :]
        reward = statistics.fmean(step.reward_mean_all for step in last)
        pass_at_1 = evaluations[-1].pass_at_1 if evaluations else None
        return cls(sum(step.tokens_trained for step in steps), wall_s, len(steps), reward, pass_at_1)

    @classmethod
    def of_earlier(cls, folder: Path) -> "Pace":
        """A run that was done in one go, by its own clock."""
        status = read_status(folder)
        if status is None or status.state is not RunPhase.DONE:
            raise ConfigError(f"{folder} is no run that is done: leave --reference out, and one is made")
        return cls.of(RunFolder(folder), status.heartbeat - status.started)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s if self.wall_s else 0.0


def violations(folder: RunFolder, config: RunConfig) -> int:
    """Trained tokens above the bound by the steps' figures; and samples above it in run.db, where it can be read and
    where tokens too old are not masked in samples that are trained on."""
    bound, found = config.control.max_staleness, 0
    for step in read_steps(folder.metrics):
        found += sum(tokens for age, tokens in step.staleness_histogram.items() if int(age) > bound)
    if config.control.when_stale != "mask" and folder.samples.is_file():
        reader = SampleReader(folder.samples)
        try:
            found += reader.page(SampleFilter(staleness_min=bound + 1, fate="trained"), limit=1).total or 0
        except DataError:
            pass
        finally:
            reader.close()
    return found


@dataclass
class Memory:
    """Resident bytes of each part, when it was first looked at and when it was last."""

    begin: dict[str, int] = field(default_factory=dict)
    end: dict[str, int] = field(default_factory=dict)

    def see(self, name: str, rss_bytes: int) -> None:
        if rss_bytes:
            self.begin.setdefault(name, rss_bytes)
            self.end[name] = rss_bytes

    @property
    def growth(self) -> dict[str, float]:
        return {name: self.end[name] / self.begin[name] for name in self.begin}

    def __str__(self) -> str:
        if not self.begin:
            return "memory: not looked at"
        parts = [f"{name} {self.begin[name] // _MIB}→{self.end[name] // _MIB}" for name in self.begin]
        worst = max(self.growth, key=self.growth.__getitem__)
        return f"memory, MiB: {', '.join(parts)}; largest growth {worst} ×{self.growth[worst]:.2f}"


@dataclass
class Verdict:
    struck: list[Struck]
    audit: Audited
    violations: int
    pace: Pace
    reference: Pace
    memory: Memory
    starts: int
    """How often the controller was started."""
    hung: int = 0
    """How often the run made no step for so long that it was ended from outside."""
    left: list[str] = field(default_factory=list)
    """Processes that were still there some time after the run had ended."""
    early: str = ""
    """Why there were fewer strikes than asked for."""

    @property
    def goodput(self) -> float:
        return self.pace.tokens_per_s / self.reference.tokens_per_s if self.reference.tokens else 0.0

    @property
    def is_good(self) -> bool:
        return not (self.audit.lost or self.audit.twice or self.violations)

    @property
    def last_line(self) -> str:
        return (
            f"chaos: {len(self.struck)} kills, {self.audit.lost} lost, {self.audit.twice} twice, {self.violations} "
            f"violations, goodput {self.goodput:.2f}"
        )

    def lines(self) -> list[str]:
        """What there is to say before the last line."""
        return [
            *recoveries(self.struck),
            f"controller: started {self.starts} times"
            + (f"; {self.hung} times the run hung and was ended" if self.hung else ""),
            f"groups: {self.audit.trained:,} trained, {self.audit.lost} lost, {self.audit.twice} trained twice; "
            f"{self.violations} trained tokens beyond the staleness bound",
            f"rewards at the end: {_rewards(self.pace)}, undisturbed {_rewards(self.reference)}",
            f"tokens to lasting effect: {self.pace.tokens:,} in {self.pace.wall_s:.0f} s, undisturbed "
            f"{self.reference.tokens:,} in {self.reference.wall_s:.0f} s",
            str(self.memory),
            *([f"still there after the end: {', '.join(self.left)}"] if self.left else []),
            *([self.early] if self.early else []),
        ]

    def record(self) -> dict[str, Any]:
        plain = asdict(self) | {"goodput": self.goodput}
        for struck in plain["struck"]:
            struck["at_s"] = round(struck["at_s"], 3)
        return plain


def recoveries(struck: Sequence[Struck]) -> list[str]:
    """A line for each kind of part and what was done to it: how often, and how long until the next step."""
    by: Mapping[str, list[Struck]] = defaultdict(list)
    for one in struck:
        by[f"{one.strike.what} {one.strike.kind or ''}".strip()].append(one)
    return [f"{name}: {_times(of)}" for name, of in sorted(by.items())]


def _times(struck: list[Struck]) -> str:
    took = [one.recovered_s for one in struck if one.recovered_s is not None]
    never = f", {len(struck) - len(took)} after the last step" if len(took) < len(struck) else ""
    if not took:
        return f"{len(struck)}{never}"
    return f"{len(struck)}, next step after {statistics.median(took):.1f} s, at worst {max(took):.1f} s{never}"


def _rewards(pace: Pace) -> str:
    evaluated = "" if pace.pass_at_1 is None else f", pass@1 {pace.pass_at_1:.2f}"
    return f"{pace.reward:.3f}{evaluated} at step {pace.steps}"
