"""Whole runs with an adapter: engines compute with it, an update is the adapter alone, the base is in memory once."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader

import freerun
from freerun.commands.export import export
from freerun.machine.processes import ChildProcess
from freerun.models.adapter import is_of_adapter
from freerun.observe.records import read_steps
from freerun.plan.plan import _Assignments
from freerun.run import training
from freerun.run.hosts import hosts_of
from freerun.run.resume import resume
from freerun.run.running import run_processes
from freerun.run.start import create_folder
from freerun.train.checkpoint_folder import CheckpointFolder
from freerun.weights.slot import SlotReader
from tests.run.test_kept_trainer import Killer, started
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

__all__ = ["started"]

LORA = ("train.lora.rank=16", "train.lr=2e-2", "control.max_staleness=2")


async def test_engines_compute_with_the_adapter_in_a_run_and_after_its_resume(tmp_path: Path) -> None:
    run = prepared(tmp_path, *LORA, "control.steps=12", "evaluate.every=6")
    outcome = await training.train(run)
    steps = read_steps(outcome.folder.metrics)
    fresh = [r.trainer["engine_mismatch_max"] for r in steps if "engine_mismatch_max" in r.trainer]
    assert max(fresh) < 1e-3, "engine and trainer disagree at equal weights"
    assert max(r.trainer["drift_staleness"] for r in steps) > 1e-3, "and these are not always the same"

    last = CheckpointFolder(outcome.folder.checkpoints).finished()[12]
    names = FileSystemReader(last).read_metadata().state_dict_metadata
    assert all(is_of_adapter(name) for name in names if name.startswith("model.")), "the adapter and its moments alone"

    again = await training.train(*resume(outcome.folder.path, ["control.steps=14"]))
    assert [record.step for record in again.steps][-2:] == [13, 14]
    mismatch = [r.trainer.get("engine_mismatch_max", 0.0) for r in again.steps[-2:]]
    assert max(mismatch) < 1e-3, "after a resume, engines have the base and the newest adapter"
    export(outcome.folder.path, tmp_path / "exported")
    saved = load_file(outcome.folder.checkpoints / "last" / "model.safetensors")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(exported[name], tensor) for name, tensor in saved.items())
    assert json.loads((tmp_path / "exported" / "adapter" / "adapter_config.json").read_text())["r"] == 16


async def test_ranks_publish_parts_of_the_adapter(tmp_path: Path) -> None:
    run = prepared(tmp_path, *LORA, "control.steps=4", "train.ranks=2")
    assert {one.process: one.base for one in run.plan().everyone} == {
        "engine 0": "file",
        "trainer": "own",
        "trainer 1": "own",
    }
    outcome = await training.train(run)
    assert max(r.trainer.get("engine_mismatch_max", 0.0) for r in outcome.steps) < 1e-3


async def test_what_is_published_is_the_adapter_and_the_base_is_mapped_by_all(tmp_path: Path) -> None:
    run = prepared(tmp_path, *LORA, "control.steps=2", "resources.engines=2")
    plan = run.plan()
    assert plan.way is not None
    assert plan.way.adapter
    assert {one.base for one in plan.everyone} == {"file"}
    async with hosts_of(run.config, print) as hosts, run_processes(hosts, run, create_folder(run), plan) as running:
        handle = await running.trainer.publish()
        names = SlotReader(Path(handle.location)).read(handle.version, handle.checksum).keys()
        assert names
        assert all(name.endswith((".lora_a", ".lora_b")) for name in names)
        (base,) = {path.with_suffix("") for path in hosts.scratch.glob("base-*")}
        mapping = await asyncio.to_thread(_processes_that_map, base)
        assert len(mapping) == 3, "the trainer and two engines"


def _processes_that_map(path: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                maps = (process / "maps").read_text()
            except OSError:
                continue
            if str(path) in maps:
                found.append(int(process.name))
    return found


async def test_a_killed_trainer_and_a_killed_engine_map_the_same_base_again(
    tmp_path: Path, started: dict[str, list[ChildProcess]]
) -> None:
    trainer, engine = Killer(started, "trainer", {4: 0.01}), Killer(started, "engine 0", {8: 0.01})
    settings = ("control.steps=12", "train.save_every=3", "resources.engines=2", "train.lora.bits=8", "name=killed")
    outcome = await training.train(prepared(tmp_path, *LORA, *settings), guests=[trainer, engine])
    assert (trainer.killed, engine.killed) == (1, 1)
    assert (len(started["trainer"]), len(started["engine 0"]), len(started["engine 1"])) == (2, 2, 1)
    assert [record.step for record in outcome.steps] == list(range(1, 13))
    fresh = [r.trainer.get("engine_mismatch_max", 0.0) for r in outcome.steps]
    assert max(fresh) < 1e-3
    assert len([name for name in trainer.scratch if name.startswith("base-") and "." not in name]) == 1


WITHOUT_A_GPU = """
import sys
if "freerun.run.child" in " ".join(sys.orig_argv):
    import pickle, threading
    from freerun.core.files import write_atomically
    from freerun.weights.common import Borrower, Lender

    def offer(self, tensors):
        write_atomically(self._offer, pickle.dumps({name: tensor.clone() for name, tensor in tensors.items()}))

    def borrow(self, likes, read):
        lent = pickle.loads(self.wait())
        threading.Thread(target=self._watch, daemon=True).start()
        return {name: lent[name] for name in likes}

    Lender.offer, Borrower.__call__ = offer, borrow
"""
"""What is offered is the tensors themselves: CUDA IPC aside, everything is as on a GPU."""


async def test_borrowers_end_with_their_lender_and_come_back_with_the_next(
    tmp_path: Path, started: dict[str, list[ChildProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_A_GPU)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(freerun.__file__).parents[1]}")
    monkeypatch.setattr(_Assignments, "_base", lambda self, at: "lent")
    killers = [Killer(started, "engine 1", {3: 0.01}), Killer(started, "trainer", {5: 0.01})]
    settings = ("control.steps=9", "train.save_every=3", "resources.engines=2", "name=lent")
    outcome = await training.train(prepared(tmp_path, *LORA, *settings), guests=killers)
    assert [killer.killed for killer in killers] == [1, 1]
    assert (len(started["trainer"]), len(started["engine 0"])) == (2, 2)
    assert len(started["engine 1"]) in (2, 3), "it may still be on its way when the trainer dies"
    assert [record.step for record in outcome.steps] == list(range(1, 10))
    assert max(r.trainer.get("engine_mismatch_max", 0.0) for r in outcome.steps) < 1e-3
    ended = [
        note for note in killers[0].notes if "the trainer has ended, and with it the weights that it shared" in note
    ]
    assert ended
