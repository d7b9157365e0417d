"""How a trainer hands its versions on: by the way that suits where its weights lie."""

from pathlib import Path

from freerun.weights.base import Publisher


def publisher_for(device: str, folder: Path) -> Publisher:
    """`folder` is in shared memory, and seen by the engines. On a GPU the weights never leave it."""
    if device == "cuda":
        from freerun.weights.ipc import IpcPublisher

        return IpcPublisher()
    from freerun.weights.shm import ShmPublisher

    return ShmPublisher(folder)
