"""Whether a run fits machines, and what would where it does not."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from freerun.config.load import config_of
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.core.section import by_dotted_key
from freerun.machine.machines import Machine
from freerun.models.published import published_models, shape_to_plan_by
from freerun.models.shape import Shape
from freerun.plan.lengths import Lengths
from freerun.plan.placement import Placement, place
from freerun.plan.plan import Plan, make_plan

_CHANGES: list[tuple[str, Any]] = [
    ("train__recompute", True),
    ("train__recompute", "all"),
    ("train__recompute", "offload"),
    ("train__micro_batch_tokens", None),
    ("resources__engines", None),
    ("engine__max_running", 32),
    ("train__optimizer_state", "8bit"),
    ("train__optimizer_state", "offload"),
    ("train__lora__bits", 8),
    ("train__lora__bits", 4),
    *(("train__context_parallel", ranks) for ranks in (2, 4, 8)),
    *(("engine__tensor_parallel", gpus) for gpus in (2, 4, 8)),
]
"""What makes a run need less of a GPU's memory, the mildest first."""
_SHORTER: dict[str, Any] = {"train__micro_batch_tokens": None}
"""Without which a pass is no smaller when answers are shorter."""
_LAST_RESORTS: list[dict[str, Any]] = [
    {"train__lora__rank": 16},
    {"train__lora__rank": 16, "train__recompute": "all"},
    {"train__lora__rank": 16, "train__recompute": "all", "train__lora__bits": 4},
]
_MOST_CHANGES = 3


@dataclass(frozen=True)
class Fitting:
    """A run on machines."""

    placement: Placement
    plan: Plan | None
    """None where it does not fit."""
    why_not: str = ""
    would: list[str] = field(default_factory=list)
    """What would fit instead, in words."""


def fit(config: RunConfig, shape: Shape, lengths: Lengths, evaluated: int, machines: list[Machine]) -> Fitting:
    """What cannot even be placed is a ConfigError; what only does not fit the memory is told, with what would."""
    placement = place(config, machines, evaluates=bool(evaluated))
    tried = _Tried(config, shape, lengths, evaluated, machines)
    try:
        return Fitting(placement, tried.plan(config, shape, lengths))
    except ConfigError as error:
        return Fitting(placement, None, str(error), list(tried.would_fit()))


@dataclass(frozen=True)
class _Tried:
    config: RunConfig
    shape: Shape
    lengths: Lengths
    evaluated: int
    machines: list[Machine]

    def plan(self, config: RunConfig, shape: Shape, lengths: Lengths) -> Plan:
        return make_plan(config, shape, lengths, evaluated=self.evaluated, machines=self.machines)

    def fits(self, config: RunConfig, shape: Shape, lengths: Lengths) -> bool:
        try:
            self.plan(config, shape, lengths)
        except ConfigError:
            return False
        return True

    def would_fit(self) -> Iterator[str]:
        """The fewest changes of settings; else the longest answer; the largest model."""
        yield from self._with_changes()
        key = "rollout.max_new_tokens" if self.lengths.prompt else "rollout.context_tokens"
        for change in ({}, _SHORTER):
            changed = self._changed(change)
            if changed and (longest := self._longest_answer(changed)):
                yield f"it fits with {_in_words({**change, key: longest})}, and nothing longer"
                break
        models = [(name, shape_to_plan_by(name)[0]) for name in published_models()]
        dense = [(name, shape) for name, shape in models if shape.experts is None]
        small = [(shape.num_parameters, name) for name, shape in dense if self.fits(self.config, shape, self.lengths)]
        if small:
            parameters, name = max(small)
            yield f"the largest model that fits is {name}, of {parameters / 1e9:.1f}B parameters, or one of its size"

    def _with_changes(self) -> Iterator[str]:
        """The fewest changes of settings with which it fits."""
        several = (
            dict(changes)
            for count in range(1, _MOST_CHANGES + 1)
            for changes in combinations(_CHANGES, count)
            if len(dict(changes)) == count
        )
        for change in (*several, *_LAST_RESORTS):
            if (changed := self._changed(change)) and self.fits(changed, self.shape, self.lengths):
                yield f"it fits with {_in_words(change)}"
                return

    def _changed(self, change: dict[str, Any]) -> RunConfig | None:
        """None where that contradicts other settings, or changes less than it says."""
        try:
            changed, _ = config_of(self.config, **change)
        except ConfigError:
            return None
        before, after = (dict(by_dotted_key(one.model_dump())) for one in (self.config, changed))
        keys = [key.replace("__", ".") for key in change]
        return changed if all(before[key] != after[key] for key in keys) else None

    def _longest_answer(self, config: RunConfig) -> int:
        """By halving; 0 if not even a short one fits."""
        fits, too_long = 0, self.lengths.answer
        while too_long - fits > 256:
            middle = (fits + too_long) // 2
            if self.fits(config, self.shape, Lengths(self.lengths.prompt, middle)):
                fits = middle
            else:
                too_long = middle
        return fits


def _in_words(change: dict[str, Any]) -> str:
    """As one would write it on the command line."""
    return " ".join(f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in change.items())
