"""Checkpoints on folders that the machines of a trainer's ranks do not share: each machine keeps its own ranks' part.

Whether a folder is shared is found out by trying: the first rank on each machine leaves a file there, and all look
whose they see. Where it is not, each rank writes its shares into `rank-R` of the folder that it sees, as plain tensors,
and one rank for each folder completes it: with the controller's state and `machines.json`, which says who has the
rest. Only ranks that are placed and share the weights as they did then can go on from it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from freerun.core import TrainerError, Version
from freerun.train.checkpoint_folder import CONTROL, MACHINES, CheckpointFolder, Kept
from freerun.train.ranks import Ranks, own


def find_keepers(folder: Path, ranks: Ranks) -> list[int]:
    """For each rank, which rank looks after the folder that it sees: the first of those that see the same. On one
    machine all see the same."""
    first_on = [ranks.machines.index(machine) for machine in dict.fromkeys(ranks.machines)]
    if len(first_on) == 1:
        return [0] * ranks.size
    name, mine = ranks.say(f".seen-{token_hex(8)}"), ranks.rank in first_on
    _all_succeed(ranks, lambda: _leave(folder / f"{name}-{ranks.rank}") if mine else None)
    seen = [rank for rank in first_on if (folder / f"{name}-{rank}").exists()]
    keepers = ranks.everyones(seen[0] if seen else ranks.rank)
    if mine:
        (folder / f"{name}-{ranks.rank}").unlink(missing_ok=True)
    return keepers


def why_apart(folder: Path, ranks: Ranks) -> str:
    """What to tell a run whose folder is not shared."""
    machines = ", ".join(dict.fromkeys(ranks.machines))
    return (
        f"{folder} is not shared between the trainer's machines ({machines}): each keeps its own part of a checkpoint, "
        "and the run can be resumed with the same ranks on the same machines only; put `runs` into a shared folder to "
        "be free of that"
    )


def _leave(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


class Parts:
    """A checkpoint in the making of which each machine keeps its own part."""

    def __init__(self, folder: CheckpointFolder, version: Version, keepers: list[int], ranks: Ranks) -> None:
        self._folder, self._version, self._ranks = folder, version, ranks
        self._keeps = keepers[ranks.rank] == ranks.rank

    def begin(self) -> Path:
        """Where this rank writes its shares. Nobody writes into a folder that its keeper still empties."""
        begins = self._keeps and not self._ranks.is_first  # the first rank's is begun
        _all_succeed(self._ranks, lambda: self._folder.begin(self._version) if begins else None)
        return own_folder(self._folder.unfinished(self._version), self._ranks)

    def complete(self, written: Any, control: str, keep: int) -> None:
        """On the thread that writes checkpoints, when it is written. No machine completes what another could not
        write."""
        _refuse_failures(self._ranks, self._failures(written.result))
        _refuse_failures(self._ranks, self._failures(lambda: self._complete(control, keep) if self._keeps else None))

    def _failures(self, work: Callable[[], Any]) -> list[str | None]:
        """What each rank's disk had against it."""
        box: list[str | None] = [None] * self._ranks.size
        dist.all_gather_object(box, _failure(work), group=self._ranks.aside)
        return box

    def _complete(self, control: str, keep: int) -> None:
        unfinished = self._folder.unfinished(self._version)
        (unfinished / CONTROL).write_text(control)
        Kept(self._ranks.machines, self._ranks.sharing).write(unfinished)
        self._folder.complete(self._version, keep)


def _all_succeed(ranks: Ranks, work: Callable[[], Any]) -> None:
    """Do it on every rank; where it fails on one, all fail alike, with that one's machine in the message."""
    _refuse_failures(ranks, ranks.everyones(_failure(work)))


def _failure(work: Callable[[], Any]) -> str | None:
    """What the disk had against it; None if it is done."""
    try:
        work()
    except (OSError, CheckpointException) as error:
        return in_a_line(error)
    return None


def _refuse_failures(ranks: Ranks, failures: Sequence[str | None]) -> None:
    for machine, wrong in zip(ranks.machines, failures, strict=True):
        if wrong:
            raise OSError(f"on {machine}, {wrong}")


def in_a_line(error: BaseException) -> str:
    """DCP's message holds a traceback a rank; the cause is its last line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def own_folder(checkpoint: Path, ranks: Ranks) -> Path:
    return checkpoint / f"rank-{ranks.rank}"


def shares(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with this rank's share of each tensor, live."""
    return {key: _share(value) for key, value in state.items()}


def _share(value: Any) -> Any:
    if isinstance(value, Mapping):
        return shares(value)
    return own(value) if isinstance(value, Tensor) else value


def is_apart(checkpoint: Path, ranks: Ranks) -> bool:
    """Whether each machine has its own part of this checkpoint. What these ranks cannot go on from is refused: parts
    of other ranks or elsewhere, and a folder that was shared and no longer is."""
    found = ranks.everyones(_look(checkpoint, ranks))
    if kept := next((one for one, _ in found if one), None):
        now = Kept(ranks.machines, ranks.sharing)
        if kept != now:
            raise TrainerError(
                f"each machine keeps its own part of {checkpoint} ({kept.where}): resume with ranks on the same "
                f"machines, and with the same train.shard; now {now.where}"
            )
        for machine, (_, is_there) in zip(ranks.machines, found, strict=True):
            if not is_there:
                raise TrainerError(
                    f"{machine} does not have its part of {checkpoint}, of which {kept.where}: bring it back to it"
                )
        return True
    there = [machine for machine, (_, is_there) in zip(ranks.machines, found, strict=True) if is_there]
    lacking = [machine for machine in ranks.machines if machine not in there]
    if lacking:
        who = f"which is on {there[0]}" if there else "nor does any other machine of the trainer's"
        raise TrainerError(
            f"{lacking[0]} does not see {checkpoint}, {who}: put `runs` into a folder that all share, or copy it there"
        )
    return False


def _look(checkpoint: Path, ranks: Ranks) -> tuple[Kept | None, bool]:
    """What `machines.json` says, where there is one; and whether this rank's files are there."""
    if not (checkpoint / MACHINES).is_file():
        return None, checkpoint.is_dir()
    return Kept.read(checkpoint), own_folder(checkpoint, ranks).is_dir()
