"""Figures as systems that watch many machines have them: a name without slashes, a unit, labels.

`trainer/loss` is `freerun_trainer_loss`; one of a family, such as `dropped/too_stale`, is `freerun_dropped` with the
label `reason`.
"""

import re
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from freerun.core.metrics import METRICS, Metric

PREFIX = "freerun_"
_STALENESS = "staleness"
_LABELS = {"staleness_histogram/*": _STALENESS, "trainer/ratio_at_age_*": _STALENESS}
"""What a family's members differ by, where that is no reason."""


@dataclass(frozen=True)
class Series:
    name: str
    help: str
    unit: str = ""
    labels: dict[str, str] = field(default_factory=dict)


def series_of(figure: str) -> Series:
    if figure in METRICS:
        return _series(figure, METRICS[figure], {})
    for family, metric in METRICS.items():
        stem = family.removesuffix("*")
        if stem != family and figure.startswith(stem):
            label = _LABELS.get(family, "reason")
            return _series(stem.rstrip("/_"), metric, {label: figure.removeprefix(stem)})
    return Series(_plain(figure), f"{figure}, as the trainer reports it.")


def info_of(name: str, config: dict[str, Any]) -> dict[str, str]:
    """What tells runs apart on a dashboard: the labels of `freerun_run_info`."""
    return {
        "run": name,
        "version": version("freerun"),
        "model": str(config["model"]["path"]),
        "data": str(config["data"]["source"]),
        "seed": str(config["seed"]),
        "max_staleness": str(config["control"]["max_staleness"]),
    }


def _series(figure: str, metric: Metric, labels: dict[str, str]) -> Series:
    return Series(_plain(figure), f"{metric.title}: {metric.says}", metric.unit, labels)


def _plain(figure: str) -> str:
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", figure)
