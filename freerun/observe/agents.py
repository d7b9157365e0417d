"""How the sessions of a run's agents go: counted as groups are rolled out, told with each step.

Consumes the `SessionReport`s of members, produces an `AgentRecord` a step. A run without agents has none, and nothing
is counted for it.
"""

import math
from collections import Counter
from collections.abc import Sequence

from freerun.core.records import OK, AgentRecord
from freerun.core.trajectory import Trajectory


class SessionCounter:
    def __init__(self, before: AgentRecord | None = None) -> None:
        """`before` is the last record of the run that this one goes on from."""
        before = before or AgentRecord()
        self._sessions = Counter(before.sessions)
        self._forks = Counter(before.forks)
        self._unused = Counter(before.unused)
        self._requests = before.requests
        self._any = bool(before.sessions)
        self._turns: list[int] = []
        self._branches: list[int] = []
        self._reread_tokens = 0
        """The last three since the last step."""

    def count(self, trajectories: Sequence[Trajectory]) -> bool:
        """Whether any of them is an agent's."""
        found = False
        for trajectory in trajectories:
            if report := trajectory.session:
                found = self._any = True
                self._requests += report.requests
                self._forks.update(report.forks)
                self._unused.update(report.apart)
                self._sessions.update(report.failures)
                self._reread_tokens += report.reread_tokens
                if trajectory.sample is not None and trajectory.error is None:
                    self._sessions[OK] += 1
                    self._turns.append(report.turns)
                    self._branches.append(len(trajectory.samples))
        return found

    @property
    def record(self) -> AgentRecord | None:
        """All counts as they are now; None where no agent has run."""
        if not self._any:
            return None
        return AgentRecord(
            sessions=dict(self._sessions),
            requests=self._requests,
            turns_mean=_mean(self._turns),
            branches_mean=_mean(self._branches),
            forks=dict(self._forks),
            unused=dict(self._unused),
            reread_tokens=self._reread_tokens,
        )

    def step_done(self) -> None:
        """What is counted by step begins again."""
        self._turns.clear()
        self._branches.clear()
        self._reread_tokens = 0


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else math.nan
