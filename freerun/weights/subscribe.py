"""Fetches a version in whichever way its handle names; one of several parts, all of them at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.base import PARTS, Subscriber

Ways = dict[str, Callable[[], Subscriber]]
_AT_ONCE = 8
"""Parts that are fetched at the same time, at most."""


class AnySubscriber(Subscriber):
    def __init__(self, ways: Ways | None = None) -> None:
        self._ways = within_machine() if ways is None else ways
        self._made: dict[tuple[str, int], Subscriber] = {}
        """By way and the number of the part."""

    def fetch(self, handle: WeightsHandle) -> dict[str, Tensor]:
        parts = _parts(handle)
        subscribers = [self._subscriber(part.backend, number) for number, part in enumerate(parts)]
        if len(parts) == 1:
            tensors = subscribers[0].fetch(handle)  # by this thread, whose CUDA stream it is
        else:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                fetched = list(pool.map(lambda pair: pair[0].fetch(pair[1]), zip(subscribers, parts, strict=True)))
            tensors = {name: tensor for part in fetched for name, tensor in part.items()}
        self.received_bytes = sum(subscriber.received_bytes for subscriber in subscribers)
        return tensors

    def confirm(self, handle: WeightsHandle) -> None:
        for number, part in enumerate(_parts(handle)):
            self._made[part.backend, number].confirm(part)

    def _subscriber(self, way: str, number: int) -> Subscriber:
        if way not in self._ways:
            raise WeightsError(f"weights by {way!r} are not taken here; it is one of {', '.join(self._ways)}")
        if (way, number) not in self._made:
            self._made[way, number] = self._ways[way]()
        return self._made[way, number]


def _parts(handle: WeightsHandle) -> list[WeightsHandle]:
    return handle.parts if handle.backend == PARTS else [handle]


def plain() -> Ways:
    """Ways whose handles are names of files. CUDA IPC's handle is a pickle, which can run any code that its sender
    likes: it is accepted from the run's own controller only."""
    return {"shm": _shm, "files": _files}


def within_machine() -> Ways:
    return {**plain(), "ipc": _ipc}


def of_run(scratch: Path, key: str | None, host: str = "127.0.0.1") -> Ways:
    """Every way that an engine of a run may be told: `scratch` is in the machine's shared memory, for all its engines;
    whoever knows the run's key is served by its trainer; at `host` the others reach this process."""

    def nccl() -> Subscriber:
        from freerun.weights.nccl import NcclSubscriber

        return NcclSubscriber(scratch, host, AnySubscriber({"tcp": tcp}))

    def tcp() -> Subscriber:
        from freerun.weights.tcp import TcpSubscriber

        return TcpSubscriber(scratch, key or "")

    return {**within_machine(), "tcp": tcp, "nccl": nccl}


def _shm() -> Subscriber:
    from freerun.weights.shm import ShmSubscriber

    return ShmSubscriber()


def _files() -> Subscriber:
    from freerun.weights.files import FileSubscriber

    return FileSubscriber()


def _ipc() -> Subscriber:
    from freerun.weights.ipc import IpcSubscriber

    return IpcSubscriber()
