"""Versions by broadcast, over gloo: real processes, two sources, members that come, vanish and come back."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights import epoch, nccl
from freerun.weights.base import of_parts
from freerun.weights.epoch import Epoch
from freerun.weights.nccl import NcclPublisher
from freerun.weights.subscribe import AnySubscriber, of_run
from freerun.weights.tcp import TcpPublisher
from tests.weights.test_tcp import KEY, folder

FORK = multiprocessing.get_context("fork")


def tensors(version: int, source: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(10 * version + source)
    return {f"{source}.{name}": torch.randn(50_000, generator=generator) for name in "abc"}


def engine(scratch: Path, pipe: Connection) -> None:
    """Says of each version how many bytes came, and a digest of what is in it; or dies in the middle of a broadcast."""
    torch.set_num_threads(1)
    subscriber = AnySubscriber(of_run(scratch, KEY))
    while told := pipe.recv():
        handle, dies = told
        if dies:
            monkeypatched = pytest.MonkeyPatch()
            monkeypatched.setattr(nccl, "_content", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        got = subscriber.fetch(handle)
        pipe.send((subscriber.received_bytes, {name: tensor.sum().item() for name, tensor in got.items()}))


class Machines:
    """Engines, by name; what is given to all of them at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.engines: dict[str, tuple[BaseProcess, Connection]] = {}

    def start(self, name: str, machine: str) -> None:
        (self._root / machine).mkdir(exist_ok=True)
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=engine, args=(self._root / machine, theirs), daemon=True)
        process.start()
        self.engines[name] = (process, ours)

    def kill(self, name: str) -> None:
        process, _ = self.engines.pop(name)
        process.kill()
        process.join()

    def take(self, handle: WeightsHandle, *names: str, dies: str = "") -> dict[str, int]:
        """How many bytes came to each; everybody has that version, but for the one that dies."""
        for name in (*names, dies) if dies else names:
            self.engines[name][1].send((handle, name == dies))
        if dies:
            self.engines.pop(dies)[0].join()
        answers = {name: self.engines[name][1].recv() for name in names}
        wanted = tensors(handle.version, 0) | tensors(handle.version, 1)
        for _, sums in answers.values():
            assert sums == {name: tensor.sum().item() for name, tensor in wanted.items()}
        return {name: received for name, (received, _) in answers.items()}


class Trainer:
    """Two ranks, each with half of the tensors."""

    def __init__(self, scratch: Path) -> None:
        self.pulled = [TcpPublisher(scratch, "127.0.0.1", KEY, rank) for rank in range(2)]
        self._ranks = [NcclPublisher(pulled, rank, "127.0.0.1", "gloo") for rank, pulled in enumerate(self.pulled)]

    def publish(self, version: int) -> WeightsHandle:
        parts = [rank.publish(version, tensors(version, number)) for number, rank in enumerate(self._ranks)]
        handle = of_parts(parts)
        for rank in self._ranks:
            rank.announce(handle)
        return handle

    @property
    def sent_bytes(self) -> int:
        """By TCP."""
        return sum(pulled.server.sent_bytes for pulled in self.pulled)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machines, Trainer]]:
    patience = timedelta(seconds=2)
    for module in (epoch, nccl):
        monkeypatch.setattr(module, "PATIENCE", patience)
    monkeypatch.setattr(epoch, "BUCKET_BYTES", 1 << 18)
    machines = Machines(tmp_path)
    for name, machine in (("a", "one"), ("beside a", "one"), ("b", "two"), ("late", "three")):
        machines.start(name, machine)  # before there are threads
    trainer = Trainer(folder(tmp_path / "trainer"))
    yield machines, trainer
    for process, pipe in machines.engines.values():
        pipe.send(None)
        process.join(5)
        process.kill()
    for pulled in trainer.pulled:
        pulled.server.close()


def test_members_come_and_vanish(run: tuple[Machines, Trainer]) -> None:
    machines, trainer = run
    whole, epochs = 1_200_000, []
    for version in range(2):
        sent = trainer.sent_bytes
        received = machines.take(handle := trainer.publish(version), "a", "beside a", "b")
        assert Epoch.of(handle.location).members == ()
        assert 2 * whole < sum(received.values()) <= trainer.sent_bytes - sent < 2.1 * whole, "once a machine"
    for version in range(2, 4):
        sent = trainer.sent_bytes
        received = machines.take(handle := trainer.publish(version), "a", "beside a", "b")
        epochs.append(Epoch.of(handle.location))
        assert trainer.sent_bytes == sent, "nobody pulled"
        assert sorted(value > whole for value in received.values()) == [False, True, True], "once a machine"
    assert epochs[0] == epochs[1]
    assert epochs[0].members == (1, 2)

    machines.take(trainer.publish(4), "a", "beside a", dies="b")
    assert whole < trainer.sent_bytes - sent < 1.1 * whole, "the machine that is left pulled it"
    sent = trainer.sent_bytes
    for version in (5, 6):  # the late one has to take two in a row
        machines.take(handle := trainer.publish(version), "a", "beside a", "late")
        assert Epoch.of(handle.location) == replace(epochs[0], number=epochs[0].number + 1, members=(3,))
    assert 2 * whole < trainer.sent_bytes - sent < 2.1 * whole, "the late one alone pulled"
    sent = trainer.sent_bytes
    machines.take(handle := trainer.publish(7), "a", "beside a", "late")
    assert Epoch.of(handle.location).members == (3, 4)
    assert trainer.sent_bytes == sent
    machines.kill("late")
    machines.take(trainer.publish(8), "a", "beside a")
    assert whole < trainer.sent_bytes - sent < 1.1 * whole, "and who does not arrive is not waited for"


def test_a_trainer_that_is_started_again_is_met_anew(run: tuple[Machines, Trainer], tmp_path: Path) -> None:
    """Where the trainer was, at other ports; numbers of members are given anew."""
    machines, trainer = run
    for version in range(3):
        machines.take(handle := trainer.publish(version), "a", "b")
    assert Epoch.of(handle.location).members == (1, 2)
    for pulled in trainer.pulled:
        pulled.server.close()
    again = Trainer(tmp_path / "trainer")
    for version in range(2, 4):  # it redoes one, which engines have
        handle = again.publish(version)
        assert Epoch.of(handle.location).members == ()
    machines.take(handle, "a", "b")
    machines.take(again.publish(4), "a", "b")
    sent = again.sent_bytes
    machines.take(handle := again.publish(5), "a", "b")
    assert Epoch.of(handle.location).members == (1, 2)
    assert again.sent_bytes == sent, "nobody pulled"
    for machine in ("one", "two"):
        pulled_slots = [path for path in (tmp_path / machine).glob("pulled-*") if not path.suffix]
        assert len(pulled_slots) == 4, "two ranks, two each: nothing is left of the first trainer's"
    for pulled in again.pulled:
        pulled.server.close()


def test_a_handle_that_names_no_epoch_is_refused(tmp_path: Path) -> None:
    handle: Any = WeightsHandle("nccl", 1, "tcp://nowhere", parts=[WeightsHandle("tcp", 1, "tcp://h:1/x", "0")])
    with pytest.raises(WeightsError, match="does not name an epoch"):
        AnySubscriber(of_run(tmp_path, KEY)).fetch(handle)
