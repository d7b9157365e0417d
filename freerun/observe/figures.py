"""How figures are written for people: the same words on a terminal, in a log and in the report."""

import math

MISSING = "–"


def number(value: float) -> str:
    """A reward or a loss: three decimals, or as many digits when it is large."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def count(value: float) -> str:
    """950, 12.3k, 4.5M, 1.2G."""
    if not math.isfinite(value):
        return MISSING
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.0f}"


def share(value: float) -> str:
    """A share of one as percent; small ones keep a decimal so that they do not read as none."""
    if not math.isfinite(value):
        return MISSING
    return f"{value * 100:.1f}%" if 0 < abs(value) < 0.0095 else f"{value * 100:.0f}%"


def duration(seconds: float) -> str:
    """0.8s, 42s, 7m12s, 3h05m, 2d04h."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def reasons(counts: dict[str, int]) -> str:
    """`12 no signal, 3 too stale`, most frequent first."""
    found = sorted(((n, reason) for reason, n in counts.items() if n), reverse=True)
    return ", ".join(f"{n} {reason.replace('_', ' ')}" for n, reason in found)
