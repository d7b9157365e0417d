"""The way in which a trainer publishes its versions, which depends on the device its weights are on."""

from pathlib import Path

from freerun.weights.base import Publisher


def publisher_for(device: str, folder: Path) -> Publisher:
    """`folder` is in shared memory, and visible to the engines. Weights on a GPU never leave it."""
    if device == "cuda":
        from freerun.weights.ipc import IpcPublisher

        return IpcPublisher()
    from freerun.weights.shm import ShmPublisher

    return ShmPublisher(folder)
