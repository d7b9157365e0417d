"""Moments by another machine's clock. Monotonic clocks begin anywhere, so those of two machines have nothing in common;
what a process reports is brought to the controller's before anybody compares it."""


class Clock:
    """That of this machine."""

    def ours(self, theirs_s: float) -> float:
        """A moment of that clock, by ours."""
        return theirs_s
