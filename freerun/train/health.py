"""Notes about a step's figures that are not as they should be, each with what to change."""

from collections import deque

from freerun.core.metrics import metric_of
from freerun.train.drift import PARTS

_DRIFT = ("drift", *(f"drift_{part}" for part in PARTS))
_STEPS = 8
"""Drift, and what follows from it, is judged by its mean over so many steps: a few tokens at which a policy is
undecided can move far in one."""
_BY_DRIFT = ("effective_samples", "behavior_capped_share")
"""What follows from drift, and is not said beside it."""


class Health:
    """Says once that a figure left its healthy range, and again only after it was back."""

    def __init__(self) -> None:
        self._ill: set[str] = set()
        self._latest = {name: deque[float](maxlen=_STEPS) for name in (*_DRIFT, *_BY_DRIFT)}

    def warnings(self, metrics: dict[str, float]) -> list[str]:
        figures = metrics | self._means(metrics)
        found = {}
        for name, value in figures.items():
            known = metric_of(f"trainer/{name}")
            if known and known.cause and not known.low <= value <= known.high:
                found[name] = f"train.{name} is {value:.3g}, outside {known.low:g} to {known.high:g}: {known.cause}"
        if figures.get("drift_tokens"):
            found.pop("drift_numerics", None)  # some that do not match may not be far enough off to be found
        if "drift" in found:
            part, found["drift"] = _largest(figures)
            for name in (part, *_BY_DRIFT):
                found.pop(name, None)
        new = [text for name, text in found.items() if name not in self._ill]
        self._ill = set(found)
        return new

    def _means(self, metrics: dict[str, float]) -> dict[str, float]:
        """Over the latest steps."""
        means = {}
        for name, values in self._latest.items():
            if name in metrics:
                values.append(metrics[name])
                means[name] = sum(values) / len(values)
        return means


def _largest(figures: dict[str, float]) -> tuple[str, str]:
    """The largest part of drift, and what to do about it."""
    name = max(_DRIFT[1:], key=lambda part: figures.get(part, 0.0))
    metric = metric_of(f"trainer/{name}")
    assert metric, "every part is among the metrics"
    share, by = figures[name] / figures["drift"], metric.title.removeprefix("Drift").strip()
    return name, f"drift is {figures['drift']:.2g} nats, {share:.0%} of it {by}: {metric.cause}"
