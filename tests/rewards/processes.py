"""Waiting for the end of a process that is not our child, without polling."""

import os
import select


def wait_until_ended(pidfd: int) -> None:
    """A pidfd opened while it lived becomes readable when it ends."""
    readable, _, _ = select.select([pidfd], [], [], 10)
    os.close(pidfd)
    assert readable, "it still runs"
