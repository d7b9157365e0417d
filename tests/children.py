"""The processes behind a `Processes`, for tests that kill them."""

from freerun.machine.processes import ChildProcess, Processes


def child_of(processes: Processes, name: str | None = None) -> ChildProcess:
    """The one of that name, or the first."""
    found = next(child for child in processes._children if name in (None, child.name))
    assert isinstance(found, ChildProcess)
    return found
