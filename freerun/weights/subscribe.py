"""Fetches a version in whichever way its handle names."""

from collections.abc import Callable, Collection

from torch import Tensor

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import Subscriber

PLAIN = ("shm", "files")
"""Ways whose handles are names of files. CUDA IPC's handle is a pickle, which can run any code that its sender
likes: it is accepted from the run's own controller only."""


class AnySubscriber(Subscriber):
    def __init__(self, ways: Collection[str] = (*PLAIN, "ipc")) -> None:
        self._ways = ways
        self._made: dict[str, Subscriber] = {}

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        if handle.backend not in self._made:
            if handle.backend not in self._ways:
                known = ", ".join(self._ways)
                raise WeightsError(f"weights by {handle.backend!r} are not taken here; it is one of {known}")
            self._made[handle.backend] = _WAYS[handle.backend]()
        return self._made[handle.backend].fetch(handle)

    def confirm(self, handle: WeightsHandle) -> None:
        self._made[handle.backend].confirm(handle)


def _shm() -> Subscriber:
    from freerun.weights.shm import ShmSubscriber

    return ShmSubscriber()


def _files() -> Subscriber:
    from freerun.weights.files import FileSubscriber

    return FileSubscriber()


def _ipc() -> Subscriber:
    from freerun.weights.ipc import IpcSubscriber

    return IpcSubscriber()


_WAYS: dict[str, Callable[[], Subscriber]] = {"shm": _shm, "files": _files, "ipc": _ipc}
