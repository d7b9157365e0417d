"""Notes about a step's figures that are not as they should be, each with what to change."""

from freerun.core.metrics import metric_of
from freerun.train.drift import PARTS

_BY_DRIFT = ("effective_samples", "behavior_capped_share")
"""What follows from drift, and is not said beside it."""


class Health:
    """Says once that a figure left its healthy range, and again only after it was back."""

    def __init__(self) -> None:
        self._ill: set[str] = set()

    def warnings(self, metrics: dict[str, float]) -> list[str]:
        found = {}
        for name, value in metrics.items():
            known = metric_of(f"trainer/{name}")
            if known and known.cause and not known.low <= value <= known.high:
                found[name] = f"train.{name} is {value:.3g}, outside {known.low:g} to {known.high:g}: {known.cause}"
        if metrics.get("mismatched_tokens"):
            found.pop("drift_numerics", None)  # there may be more of them, not far enough off to be found
        if "drift" in found:
            part, found["drift"] = _drift(metrics)
            for name in (part, *_BY_DRIFT):
                found.pop(name, None)
        new = [text for name, text in found.items() if name not in self._ill]
        self._ill = set(found)
        return new


def _drift(metrics: dict[str, float]) -> tuple[str, str]:
    """The largest part's name, and what to do about it."""
    parts = {f"drift_{part}": metrics.get(f"drift_{part}", 0.0) for part in PARTS}
    largest = max(parts, key=parts.__getitem__)
    metric = metric_of(f"trainer/{largest}")
    assert metric, "every part is among the metrics"
    share, by = parts[largest] / metrics["drift"], metric.title.removeprefix("Drift").strip()
    return largest, f"drift is {metrics['drift']:.2g} nats, {share:.0%} of it {by}: {metric.cause}"
