"""Ranks on two machines that share nothing but a network: they learn together, and each keeps its own part of a
checkpoint. Two processes in network namespaces, one of which has a disk of its own."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.bench.namespaces import enter_network, machines, unavailable
from freerun.core import TrainerError
from freerun.train.checkpoint import CheckpointWriter, load_checkpoint
from freerun.train.checkpoint_folder import CheckpointFolder, damage
from freerun.train.ranks import ALONE, Ranks
from tests.train.processes import together
from tests.train.test_ranks import assert_close, learned, resumed, student

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

_NEW_MOUNTS = 0x20000
"""Linux's CLONE_NEWNS."""
FULL = "100k"
"""Less than a checkpoint takes."""


def on_its_own_disk(folder: Path, size: str = "64m") -> None:
    """From here on this process sees something else at that path than everybody else does."""
    assert ctypes.CDLL(None).unshare(_NEW_MOUNTS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "own", folder], check=True)


def rank(number: int, homes: list[tuple[int, str]], folder: Path) -> None:
    torch.set_num_threads(1)
    holder, address = homes[number]
    enter_network(holder)
    kept, full = folder / "kept", folder / "full"
    if number:
        on_its_own_disk(kept)
        on_its_own_disk(full, FULL)
    ranks = Ranks.join(number, 2, f"tcp://{homes[0][1]}:7411", "cpu", host=address, machine="ab"[number])
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    results: dict[str, Any] = {"unbroken": learned(student(0, ranks), range(5))}
    learner, writer = student(0, ranks), CheckpointWriter(2, ranks)
    for version in range(3):
        learned(learner, range(version, version + 1))
        results[f"notes {version}"] = writer.begin(learner, kept, '{"controller": 1}')
    writer.finish()
    checkpoint = kept / "step-3"
    results["resumed"] = resumed(checkpoint, ranks)
    mine = {str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file()}
    results["files"], results["damage"] = ranks.everyones(mine), ranks.everyones(damage(checkpoint))
    moved = Ranks(number, 2, machine="ac"[number])
    results["elsewhere"] = refusal(lambda: resumed(checkpoint, moved))
    results["shared once"] = refusal(lambda: resumed(folder / "by one" / "step-1", hidden(number, folder, ranks)))

    writer.begin(learner, full, "{}")
    results["full"] = refusal(writer.finish)
    results["after"] = ranks.everyones(list(CheckpointFolder(full).finished()))
    if number:
        (checkpoint / "rank-1").rename(kept / "away")
    results["lacking"] = refusal(lambda: resumed(checkpoint, ranks))
    if ranks.is_first:
        torch.save(results, folder / "results")
    torch.distributed.destroy_process_group()


def hidden(number: int, folder: Path, ranks: Ranks) -> Ranks:
    """The second rank no longer sees the folder that one alone wrote to."""
    if number:
        on_its_own_disk(folder / "by one")
    return ranks


def refusal(work: Callable[[], Any]) -> str:
    with pytest.raises(TrainerError) as refused:
        work()
    return str(refused.value)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    if why := unavailable():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("apart")
    for name in ("kept", "full", "by one"):
        (folder / name).mkdir()
    one, writer = student(0, ALONE), CheckpointWriter(1)
    learned(one, range(1))
    writer.begin(one, folder / "by one", "{}")
    writer.finish()
    with machines("a", "b") as both:
        together(rank, 2, [(machine.pid, machine.address) for machine in both], folder)
    return folder, torch.load(folder / "results")


def test_ranks_on_two_machines_learn_what_one_does(apart: tuple[Path, dict[str, Any]]) -> None:
    assert_close(learned(student(0, ALONE), range(5)), apart[1]["unbroken"], 1e-4)


def test_each_machine_keeps_its_own_part_and_says_so_once(apart: tuple[Path, dict[str, Any]]) -> None:
    folder, results = apart
    (note,) = results["notes 0"]
    assert note.startswith(f"{folder / 'kept'} is not shared between the trainer's machines (a, b): each keeps its own")
    assert results["notes 1"] == results["notes 2"] == []
    for number, files in enumerate(results["files"]):
        rest = {"control.json", "machines.json", "checksums.json", f"rank-{number}/.metadata"}
        rest |= {f"rank-{number}/__0_0.distcp"}
        assert files == {f"step-{version}/{file}" for version in (2, 3) for file in rest}
    assert results["damage"] == [None, None]


def test_it_goes_on_bit_for_bit_on_the_same_machines(apart: tuple[Path, dict[str, Any]]) -> None:
    resumed, unbroken = apart[1]["resumed"], apart[1]["unbroken"]
    assert all(torch.equal(resumed[name], tensor) for name, tensor in unbroken.items())


def test_other_ranks_are_told_which_machine_has_the_files(apart: tuple[Path, dict[str, Any]]) -> None:
    folder, results = apart
    checkpoint = folder / "kept" / "step-3"
    assert results["elsewhere"] == (
        f"each machine keeps its own part of {checkpoint} (a has rank 0, b has rank 1): resume with ranks on the same "
        "machines, and with the same train.shard; now a has rank 0, c has rank 1"
    )
    assert results["lacking"] == (
        f"b does not have its part of {checkpoint}, of which a has rank 0, b has rank 1: bring it back to it"
    )
    with pytest.raises(TrainerError, match=r"\(a has rank 0, b has rank 1\).*now local has rank 0"):
        load_checkpoint(checkpoint, student(0, ALONE))


def test_a_folder_that_is_no_longer_shared_is_told(apart: tuple[Path, dict[str, Any]]) -> None:
    folder, results = apart
    checkpoint = folder / "by one" / "step-1"
    assert results["shared once"].startswith(f"b does not see {checkpoint}, which is on a: put `runs`")


def test_no_machine_completes_what_another_could_not_write(apart: tuple[Path, dict[str, Any]]) -> None:
    assert "could not be written: on b, " in apart[1]["full"]
    assert apart[1]["after"] == [[], []]
