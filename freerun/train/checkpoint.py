"""Everything a resumed run needs of the trainer, to the disk and back, by torch's distributed checkpointing (DCP).

Promises that a loaded learner goes on bit for bit as the saved one would have, and that training waits only while its
state is copied: `async_save` copies on the caller's thread and writes on another, with or without a process group. One
is written at a time; whoever wants the next one sooner waits.

Every rank writes its share into the same folder, and all of them call the same methods in turn. Tensors go by name, so
another number of ranks can load them. Where ranks are on machines that do not share the folder, each machine keeps its
own part, for the same ranks alone (`apart.py`). The random state is the first rank's. Hyper-parameters are not saved:
they are the configuration's.
"""

import errno
import os
import pickle
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from freerun.core import TrainerError, Version
from freerun.models.adapter import is_of_adapter
from freerun.train.apart import Parts, find_keepers, in_a_line, is_apart, own_folder, shares, why_apart
from freerun.train.checkpoint_folder import CONTROL, CheckpointFolder
from freerun.train.learner import Learner
from freerun.train.optimizer import EIGHT_BIT_MOMENTS
from freerun.train.protocol import Written
from freerun.train.ranks import ALONE, Ranks

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class _WriterWithRoom(FileSystemWriter):
    """Refuses what there is no room for before it writes: a disk that is full, be it for a moment, fails whatever else
    of the run writes then."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        needed = sum(item.tensor_storage_size() or 0 for item in plan.items)
        if needed > shutil.disk_usage(self.path).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        return super().write_data(plan, planner)


class NotWritten(TrainerError):
    """The disk would not take a checkpoint. The trainer is as it was."""


class CheckpointWriter:
    """Consumes a learner's state; produces complete checkpoints, beside the caller's work.

    `begin` waits for the previous checkpoint and for the copy; `finish` for the writing. A checkpoint that could not be
    written fails whichever comes next, with `NotWritten`, and nothing of it is left: training can go on without it.
    """

    def __init__(self, keep: int, ranks: Ranks = ALONE) -> None:
        self._keep, self._ranks = keep, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._going: Future[None] | None = None
        self._written: Written | None = None
        self._told = False
        """That machines keep their own parts."""

    def begin(self, learner: Learner, folder: Path, control: str) -> list[str]:
        """Returns when the state is copied, with what the run should be told. A version that is already there is not
        written again."""
        self.finish()
        checkpoint_folder, version = CheckpointFolder(folder), learner.version
        unfinished = self._ranks.by_first(lambda: _begun(checkpoint_folder, version))
        if unfinished is None:
            return []
        with _failing_in_a_line():
            keepers = find_keepers(folder, self._ranks)
            if any(keepers):
                return self._begin_apart(learner, folder, keepers, control)
        writer = _WriterWithRoom(unfinished)
        written = async_save(_state(learner), storage_writer=writer, process_group=self._ranks.aside)
        complete = partial(self._complete, checkpoint_folder, version, unfinished, written, control)
        self._going = self._thread.submit(self._timed, version, complete)
        return []

    def _begin_apart(self, learner: Learner, folder: Path, keepers: list[int], control: str) -> list[str]:
        parts = Parts(CheckpointFolder(folder), learner.version, keepers, self._ranks)
        writer = _WriterWithRoom(parts.begin())
        written = async_save(shares(_state(learner)), storage_writer=writer, no_dist=True)
        complete = partial(parts.complete, written, control, self._keep)
        self._going = self._thread.submit(self._timed, learner.version, complete)
        told, self._told = self._told, True
        return [] if told else [why_apart(folder, self._ranks)]

    def finish(self) -> None:
        """Wait until the last one is complete."""
        going, self._going = self._going, None
        if going:
            wait([going])
            self._ranks.by_first(lambda: _outcome(going))

    def last_written(self) -> Written | None:
        """The last one that is complete, if that was not told yet."""
        written, self._written = self._written, None
        return written

    def _timed(self, version: Version, complete: Callable[[], None]) -> None:
        start_s = time.monotonic()
        complete()
        self._written = Written(version, start_s, time.monotonic())

    def _complete(
        self, checkpoint_folder: CheckpointFolder, version: Version, unfinished: Path, written: Any, control: str
    ) -> None:
        with _nothing_left(unfinished, self._ranks.is_first):
            written.result()  # on the first rank: every rank's
            if self._ranks.is_first:
                (unfinished / CONTROL).write_text(control)
                checkpoint_folder.complete(version, self._keep)


@contextmanager
def _nothing_left(unfinished: Path, is_first: bool) -> Iterator[None]:
    """What is half written takes the room that the next one needs."""
    try:
        yield
    except BaseException:
        if is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _begun(checkpoint_folder: CheckpointFolder, version: Version) -> Path | None:
    with _failing_in_a_line():
        return None if version in checkpoint_folder.finished() else checkpoint_folder.begin(version)


def _outcome(going: Future[None]) -> None:
    with _failing_in_a_line():
        going.result()


@contextmanager
def _failing_in_a_line() -> Iterator[None]:
    """Whatever it is, the disk is at fault: torch says of a full one that a position is unexpected."""
    try:
        yield
    except (OSError, CheckpointException) as error:
        raise NotWritten(
            f"a checkpoint could not be written: {in_a_line(error)}; see whether its disk is full"
        ) from None


def load_checkpoint(folder: Path, learner: Learner, ranks: Ranks = ALONE) -> None:
    """Put the learner where the saved one was. DCP reads into the tensors that are there, and refuses other shapes and
    tensors that it does not find; those that nobody asks for it would pass over."""
    apart, state = is_apart(folder, ranks), _state(learner)
    try:
        if apart:
            state |= _read_part(own_folder(folder, ranks), state)
        else:
            _refuse_other_weights(folder, state["model"])
            _refuse_other_moments(folder, state["optimizer"])
            found = _saved(folder, state)
            load(found, checkpoint_id=folder, process_group=ranks.aside)
            state |= found
    except (OSError, CheckpointException, ValueError, RuntimeError) as error:
        raise TrainerError(f"{folder} is damaged, or of another model: {in_a_line(error)}") from None
    learner.load_state(state)
    _set_random_state(state["random"])


def _read_part(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Into the shares of these tensors. Returns what is not a tensor."""
    part = _saved(folder, shares(state))
    _refuse_other_weights(folder, part["model"])
    _refuse_other_moments(folder, part["optimizer"])
    load(part, checkpoint_id=folder, no_dist=True)
    return {key: value for key, value in part.items() if not isinstance(value, dict)}


def _refuse_other_weights(folder: Path, model: dict[str, Any]) -> None:
    names = {name for name in FileSystemReader(folder).read_metadata().state_dict_metadata if name.startswith("model.")}
    if any(map(is_of_adapter, model)):  # earlier releases wrote the weights below an adapter, too
        names = set(filter(is_of_adapter, names))
    if odd := sorted(names - {f"model.{name}" for name in model}):
        raise ValueError(f"it has {odd[0].removeprefix('model.')}, which the model in model.path has not")


def _refuse_other_moments(folder: Path, optimizer: dict[str, Any]) -> None:
    """Refuses moments of 8 bits where they are to be of 32, and the other way round."""
    names = FileSystemReader(folder).read_metadata().state_dict_metadata
    saved = any(name.startswith("optimizer.") and name.endswith(EIGHT_BIT_MOMENTS) for name in names)
    if saved != any(name in EIGHT_BIT_MOMENTS for state in optimizer.values() for name in state):
        kind = "8bit" if saved else "32bit, or offload"
        raise TrainerError(f"{folder} has other moments than this run: resume with train.optimizer_state={kind}")


def _saved(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Without what the checkpoints of earlier releases do not have, and which begins afresh then."""
    names = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {key: value for key, value in state.items() if key != "drift" or key in names}


def _state(learner: Learner) -> dict[str, Any]:
    return learner.state() | {"random": _random_state()}


def _random_state() -> bytes:
    """All in one value: DCP would take a dictionary apart, and ask for a GPU's part on a machine without one."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if on_gpu else []
    return pickle.dumps((random.getstate(), torch.get_rng_state(), cuda))


def _set_random_state(state: bytes) -> None:
    python, cpu, cuda = pickle.loads(state)
    random.setstate(python)
    torch.set_rng_state(cpu)
    if cuda and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
