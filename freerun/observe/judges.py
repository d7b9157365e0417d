"""What a step's figures say of judging: the difference between what it had cost then and now."""

import math
from typing import Any

from freerun.core.reports import JudgeLoad


class JudgeFigures:
    """Consumes what judging has cost so far; produces what it cost since the last step."""

    def __init__(self) -> None:
        self._then = self._now = JudgeLoad(0, 0)
        self._judge_s = math.nan

    def heard(self, load: JudgeLoad) -> None:
        self._now = load

    def figures(self, step_s: float) -> dict[str, Any]:
        """By their names in the record."""
        spent, self._then = self._now.since(self._then), self._now
        if not spent.workers:
            return {}
        self._judge_s = spent.judge_s if spent.judged else self._judge_s
        return {
            "judge_workers": spent.workers,
            "judge_busy_share": min(spent.busy_s / spent.workers / step_s, 1.0) if step_s > 0 else math.nan,
            "judge_s": self._judge_s,
            "judge_wait_s": spent.queued_s / spent.judged if spent.judged else math.nan,
            "judge_cpu_share": spent.cpu_share,
        }
