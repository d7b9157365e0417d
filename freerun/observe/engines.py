"""What a step's figures say of the engines that are there. One that comes late, or back, counts from the moment it is
first heard of; one that is gone counts no more."""

import math
from collections.abc import Mapping, Sequence

from freerun.core.reports import EngineStats, UpdateReport


class EngineFigures:
    """Consumes snapshots and reports, by the engines' names; produces what became of them since the last step."""

    def __init__(self) -> None:
        self._latest: dict[str, EngineStats] = {}
        self._idle_s: dict[str, float] = {}
        """What each had counted at the last step, or when it was first heard of."""
        self._prompts: dict[str, tuple[int, int]] = {}
        """Tokens of prompts, and how many were in the cache, that each had counted at the last step."""
        self._cached_share = math.nan

    def begin(self, idle_s: Mapping[str, float]) -> None:
        self._idle_s = dict(idle_s)

    def heard(self, name: str, stats: EngineStats) -> None:
        self._latest[name] = stats
        self._idle_s.setdefault(name, stats.idle_s)

    def out(self, name: str) -> None:
        self._latest.pop(name, None)
        self._idle_s.pop(name, None)

    @property
    def latest(self) -> list[EngineStats]:
        return list(self._latest.values())

    def idle_s(self, updates: Sequence[UpdateReport]) -> float:
        """How long engines had nothing to do since the last step, mean over those that were there."""
        spent = [one.idle_s - self._idle_s[one.engine] for one in updates if one.engine in self._idle_s]
        self._idle_s |= {one.engine: one.idle_s for one in updates}
        return sum(spent) / len(spent) if spent else 0.0

    def cache_hit_share(self) -> float:
        """Engines tell a few times a second: a quick step may have heard nothing, and then what was known holds."""
        asked = found = 0
        for name, stats in self._latest.items():
            prompt_tokens, reused_tokens = self._prompts.get(name, (0, 0))
            if stats.prompt_tokens < prompt_tokens:  # it was started again
                prompt_tokens = reused_tokens = 0
            asked += stats.prompt_tokens - prompt_tokens
            found += stats.reused_tokens - reused_tokens
            self._prompts[name] = stats.prompt_tokens, stats.reused_tokens
        self._cached_share = found / asked if asked > 0 else self._cached_share
        return self._cached_share
