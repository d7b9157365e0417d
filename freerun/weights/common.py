"""Weights that never change, once in memory for all processes that compute with them: the base of an adapter.

On a CPU they are a file in shared memory that everybody maps: whoever needs it first writes it, and it appears complete
or not at all. Whichever process dies, the others' mapping stays, and the next one maps it again.

On a GPU they are a lender's, the trainer, which has them anyway; borrowers get them by CUDA IPC, and end when the
lender ends: what they have mapped is not theirs. The lender holds a lock, which ends with it, however that ends.

    lender     withdraws what was offered before → takes the lock → loads → offers, and stays
    borrower   waits until the lock is held and something is offered → maps it → waits for the lock: then it ends

Both are a `Common` of `models/checkpoint.py`: given tensors on the meta device by name, and how to read each, they
return the tensors.
"""

import fcntl
import json
import mmap
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import torch
import xxhash
from torch import Tensor

from freerun.core import WeightsError
from freerun.core.files import write_atomically

Likes = Mapping[str, Tensor]
Read = Callable[[str], Tensor]

_ALIGNED = 64
_LOOK_S = 0.02
_SPARE_BYTES = 2**26
"""Room in shared memory that is left for versions on their way."""


class CommonFile:
    """A file of tensors, one after another as their shapes say. Where there is no room for it in that folder, each
    process has its own after all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, likes: Likes, read: Read) -> dict[str, Tensor]:
        places, size = _places(likes)
        kind = json.dumps([(name, str(like.dtype), list(like.shape)) for name, like in likes.items()])
        path = self._folder / f"base-{xxhash.xxh3_64_hexdigest(kind.encode())}"
        with _locked(path):
            if not path.exists():
                try:
                    _write(path, places, size, read)
                except OSError as error:
                    path.with_suffix(".unfinished").unlink(missing_ok=True)
                    print(
                        f"{self._folder} has no room for {size / 2**30:.1f} GiB of weights ({error.strerror}), so each "
                        "process of the run holds its own: make it larger (of a container: --shm-size)",
                        file=sys.stderr,
                    )
                    return {name: read(name) for name in likes}
        content = _mapped(path, size)
        return {
            name: content[place.start : place.stop].view(likes[name].dtype).view(likes[name].shape)
            for name, place in places.items()
        }


def _places(likes: Likes) -> tuple[dict[str, range], int]:
    """Which bytes each tensor is, and how many there are."""
    places, start = {}, 0
    for name, like in likes.items():
        end = start + like.numel() * like.dtype.itemsize
        places[name], start = range(start, end), -(-end // _ALIGNED) * _ALIGNED
    return places, max(start, _ALIGNED)


def _write(path: Path, places: Mapping[str, range], size: int, read: Read) -> None:
    """Allocated first: a mapping that memory runs out under would kill the process."""
    unfinished, room = path.with_suffix(".unfinished"), os.statvfs(path.parent)
    if room.f_bavail * room.f_frsize < size + _SPARE_BYTES:
        raise OSError(28, os.strerror(28))
    file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        with mmap.mmap(file, size) as memory:
            for name, place in places.items():
                content = read(name).detach().cpu().contiguous().view(-1).view(torch.uint8)
                memory[place.start : place.stop] = content.numpy().data
    finally:
        os.close(file)
    unfinished.rename(path)


def _mapped(path: Path, size: int) -> Tensor:
    """What a process writes there by mistake is its own copy of that page."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=torch.uint8)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class Lender:
    """Lends this process's GPU memory, as long as it lives."""

    def __init__(self, folder: Path) -> None:
        """Before anything is loaded."""
        self._offer = folder / "base-lent"
        self._offer.unlink(missing_ok=True)
        self._lock = os.open(self._offer.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def offer(self, tensors: Mapping[str, Tensor]) -> None:
        """They must stay where they are."""
        from torch.multiprocessing.reductions import reduce_tensor

        gpu = str(torch.cuda.get_device_properties(next(iter(tensors.values())).device).uuid)
        torch.cuda.synchronize()
        lent = {name: reduce_tensor(tensor.detach()) for name, tensor in tensors.items()}  # type: ignore[no-untyped-call]
        write_atomically(self._offer, pickle.dumps((gpu, lent)))


class Borrower:
    """Borrows from a lender on the same GPU. The folder is private to the run: what is offered there is a pickle."""

    def __init__(self, folder: Path, end: Callable[[], None] | None = None) -> None:
        """`end` is called when the lender has ended; it ends this process, unless told otherwise."""
        self._offer, self._end = folder / "base-lent", end or _end_process

    def __call__(self, likes: Likes, read: Read) -> dict[str, Tensor]:
        """However long the lender takes to load."""
        from freerun.weights.ipc import device_of, opened

        gpu, lent = pickle.loads(self.wait())
        device = device_of(gpu)
        tensors: dict[str, Tensor] = {name: opened(device, *shared) for name, shared in lent.items()}
        same = (tensors[name].shape == like.shape for name, like in likes.items() if name in tensors)
        if sum(same) < len(likes):
            raise WeightsError("what the trainer lends is not the base of this model")
        Thread(target=self._watch, name="lender", daemon=True).start()
        return {name: tensors[name] for name in likes}

    def wait(self) -> bytes:
        """What is offered by a lender that lives."""
        while True:
            if self._is_there():
                with suppress(FileNotFoundError):
                    return self._offer.read_bytes()
            time.sleep(_LOOK_S)

    def _is_there(self) -> bool:
        """A lender that begins withdraws the offer of the one before, and then takes the lock."""
        with suppress(FileNotFoundError), self._offer.with_suffix(".lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _watch(self) -> None:
        with self._offer.with_suffix(".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._end()


def _end_process() -> None:
    traceback.print_exception(WeightsError("the trainer has ended, and with it the weights that it shared"))
    sys.stderr.flush()
    os._exit(1)
