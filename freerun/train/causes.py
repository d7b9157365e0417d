"""Where a step's drift comes from, as figures: `drift.py` for batches and ranks, with what earlier steps have shown."""

import numpy as np

from freerun.core import Batch
from freerun.train.before import BatchTokens
from freerun.train.drift import CUTOFFS, PARTS, UNEXPLAINED, Reference, TakenApart, take_apart
from freerun.train.how_sampled import HowSampled
from freerun.train.ranks import Ranks


class Causes:
    """The first rank takes drift apart, and tells the others what came of it: all of them have the same reference, and
    any of them can save it."""

    def __init__(self, how: HowSampled, ranks: Ranks) -> None:
        self._how, self._ranks = how, ranks
        self.reference = Reference()

    def of(self, batch: Batch, tokens: BatchTokens | None, figures: dict[str, float]) -> dict[str, float]:
        """`figures` are the step's, summed over all ranks: the parts must add up to its `drift`, and what they lack is
        unexplained. All ranks have to call this; the first has the tokens."""
        if "drift" not in figures:
            return {}
        found, complete = self._ranks.say(self._taken_apart(batch, tokens) if tokens else None)
        self.reference = found.reference
        parts = dict(found.parts)
        if not complete and (told := sum(parts.values())):
            scale = (figures["drift"] - figures[f"drift_{CUTOFFS}"]) / told
            parts = {part: scale * value for part, value in parts.items()}
        parts[CUTOFFS] = figures[f"drift_{CUTOFFS}"]
        parts[UNEXPLAINED] += max(0.0, figures["drift"] - sum(parts.values()))
        return {f"drift_{part}": parts[part] for part in PARTS} | {"mismatched_tokens": float(found.mismatched)}

    def _taken_apart(self, batch: Batch, tokens: BatchTokens) -> tuple[TakenApart, bool]:
        groups_S = None
        if self._how.keeps_cache:
            groups_S = np.repeat(np.arange(len(batch.groups)), [len(group.samples) for group in batch.groups])
        return take_apart(tokens.compared(batch.version, groups_S), self.reference), tokens.complete
