"""What the time of a run went to: shares of it by who waited for what, over some of its steps. No files, no advice."""

import math
from dataclasses import dataclass

import numpy as np

from freerun.core.reports import JudgeLoad
from freerun.core.waits import WaitCause
from freerun.observe.columns import StepColumns


@dataclass(frozen=True)
class TimeShares:
    """Where the seconds of some steps went. Shares are 0 to 1; NaN, or missing, where the run did not say."""

    first_step: int
    last_step: int
    seconds: float
    learning: float
    """The trainer learned, and published."""
    waiting: dict[WaitCause, float]
    """The trainer waited, by what for; empty for a run that only says how long it waited."""
    engines_idle: float
    admission: dict[WaitCause, float]
    """Nothing more was begun, by why."""
    judges: JudgeLoad | None
    """What judging cost in a step, mean."""
    judges_busy: float
    judge_wait_s: float
    step_s: float
    """Mean."""
    truncated: float
    answer_tokens: float
    update_s: float
    has_agents: bool = False

    @property
    def trainer_waits(self) -> float:
        return 1.0 - self.learning

    def waits(self, *causes: WaitCause) -> float:
        return sum(self.waiting.get(cause, 0.0) for cause in causes)


def time_shares(columns: StepColumns, steps: int | None = None) -> TimeShares | None:
    """Looks at the last `steps`, or at all but the first, which includes the start. None without any."""
    count = len(columns)
    if not count:
        return None
    start = max(count - steps, 0) if steps else int(count > 1)
    step_s = columns.column("step_s", start)
    seconds = float(np.nansum(step_s))
    if seconds <= 0:
        return None

    def share(name: str) -> float:
        return min(float(np.nansum(columns.column(name, start))) / seconds, 1.0)

    def causes(prefix: str) -> dict[WaitCause, float]:
        known = {cause: share(prefix + cause.value) for cause in WaitCause}
        return {cause: part for cause, part in known.items() if part > 0}

    def mean(name: str) -> float:
        values = columns.column(name, start)
        return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan

    waiting = causes("trainer_waits/")
    waited = sum(waiting.values()) if waiting else share("trainer_idle_s")
    return TimeShares(
        first_step=columns.steps[start],
        last_step=columns.steps[-1],
        seconds=seconds,
        learning=max(1.0 - waited, 0.0),
        waiting=waiting,
        engines_idle=share("engine_idle_s"),
        admission=causes("admission_waits/"),
        judges=_judges(columns, start, mean("judge_cpu_share")),
        judges_busy=mean("judge_busy_share"),
        judge_wait_s=mean("judge_wait_s"),
        step_s=seconds / len(step_s),
        truncated=mean("truncated_share"),
        answer_tokens=mean("answer_tokens_mean"),
        update_s=mean("update_s"),
        has_agents="agents/requests" in columns.names,
    )


def _judges(columns: StepColumns, start: int, cpu_share: float) -> JudgeLoad | None:
    """A mean step's."""
    workers, busy = columns.column("judge_workers", start), columns.column("judge_busy_share", start)
    seconds = workers * busy * columns.column("step_s", start)
    judge_s = columns.column("judge_s", start)
    if np.isnan(seconds).all() or np.isnan(judge_s).all() or not workers[-1] > 0:
        return None
    busy_s = float(np.nanmean(seconds))
    judged = round(busy_s / max(float(np.nanmean(judge_s)), 1e-9))
    return JudgeLoad(int(workers[-1]), 0, max(judged, 1), busy_s, 0.0, cpu_share)
