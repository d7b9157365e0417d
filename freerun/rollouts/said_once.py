"""Failures of a user's code, told once for each kind: what they cost is counted elsewhere."""

from collections.abc import Callable

_MOST_SAID = 20
"""Different failures of a run that are noted; the others are counted only."""


class SaidOnce:
    def __init__(self, note: Callable[[str], None], what: str) -> None:
        """`what` begins every note: `your rollout failed`."""
        self._note, self._what = note, what
        self._said: set[str] = set()

    def say(self, error: str) -> None:
        """Once for each line and kind of error: what is in the message may differ each time."""
        kind = ": ".join(error.split(": ")[:2])
        if kind not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(kind)
            self._note(f"{self._what}: {error}; what it cost is counted, and this is not said again")
