"""Versions by TCP: equal and once a machine, or an error in seconds; never half a version."""

import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights import peer
from freerun.weights.base import of_parts
from freerun.weights.slot import SlotReader
from freerun.weights.subscribe import AnySubscriber, of_run
from freerun.weights.tcp import TcpPublisher, TcpSubscriber
from tests.weights.proxy import Proxy, Trouble

KEY = "the run's"


def tensors(version: int) -> dict[str, Tensor]:
    """About 40 MiB: several ranges."""
    generator = torch.Generator().manual_seed(version)
    return {
        "scalar": torch.tensor(float(version)),
        "a": torch.randn(2000, 2000, generator=generator),
        "b": torch.randn(7, generator=generator).bfloat16(),
        "c": torch.randn(6_000_000, generator=generator),
    }


def equal(ours: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return ours.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) and tensor.dtype == others[name].dtype for name, tensor in ours.items()
    )


def folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[TcpPublisher]:
    publisher = TcpPublisher(folder(tmp_path / "trainer"), "127.0.0.1", KEY)
    yield publisher
    publisher.server.close()


@pytest.fixture
def subscriber(tmp_path: Path) -> TcpSubscriber:
    return TcpSubscriber(folder(tmp_path / "engine"), KEY)


def through(proxy: Proxy, handle: WeightsHandle) -> WeightsHandle:
    path = handle.location.removeprefix("tcp://").partition("/")[2]
    return replace(handle, location=f"tcp://{proxy.address}/{path}")


def test_versions_arrive_as_they_were(publisher: TcpPublisher, subscriber: TcpSubscriber) -> None:
    for version in range(3):
        handle = publisher.publish(version, tensors(version))
        assert equal(subscriber.fetch(handle), tensors(version))
        assert subscriber.received_bytes == pytest.approx(40e6, rel=0.01)
    late = publisher.publish(3, tensors(3))
    publisher.publish(4, tensors(4))
    assert equal(subscriber.fetch(late), tensors(3)), "the version before the newest is still there"


def test_an_engine_beside_the_trainer_reads_its_slot(publisher: TcpPublisher, tmp_path: Path) -> None:
    beside = TcpSubscriber(tmp_path / "trainer", KEY)
    assert equal(beside.fetch(publisher.publish(0, tensors(0))), tensors(0))
    assert beside.received_bytes == publisher.server.sent_bytes == 0


def engine(scratch: Path, pipe: Connection) -> None:
    subscriber = AnySubscriber(of_run(scratch, KEY))
    while handle := pipe.recv():
        got = subscriber.fetch(handle)
        pipe.send((subscriber.received_bytes, got["c"].sum().item()))


def test_four_engines_of_a_machine_cost_one_transfer(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")  # before the publisher has threads
    pipes, scratch = [fork.Pipe() for _ in range(4)], folder(tmp_path / "engines")
    engines = [fork.Process(target=engine, args=(scratch, theirs), daemon=True) for _, theirs in pipes]
    for process in engines:
        process.start()
    publisher = TcpPublisher(folder(tmp_path / "trainer"), "127.0.0.1", KEY)
    for version in range(3):
        sent_before, handle = publisher.server.sent_bytes, publisher.publish(version, tensors(version))
        for ours, _ in pipes:
            ours.send(handle)
        received, sums = zip(*(ours.recv() for ours, _ in pipes), strict=True)
        size = SlotReader(Path(handle.location.removeprefix(f"tcp://{publisher.server.address}"))).header().size
        assert sorted(received) == [0, 0, 0, size]
        assert size <= publisher.server.sent_bytes - sent_before < size + 100, "the slot, and its header to begin with"
        assert set(sums) == {tensors(version)["c"].sum().item()}
    for ours, _ in pipes:
        ours.send(None)
    for process in engines:
        process.join(10)
        assert process.exitcode == 0


@pytest.mark.parametrize("after", [100, 20_000_000, 39_999_900])
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("cut", "closed the connection|is gone|key"),
        ("flip", "damaged on its way|key"),
        ("stall", "sent nothing for|closed the connection"),
    ],
)
def test_a_torn_transfer_is_never_used(
    publisher: TcpPublisher,
    subscriber: TcpSubscriber,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Trouble,
    said: str,
    after: int,
) -> None:
    handle = publisher.publish(0, tensors(0))
    with Proxy(publisher.server.address, trouble, after) as proxy, monkeypatch.context() as patched:
        if trouble == "stall":
            patched.setattr(peer, "PATIENCE_S", 0.3)
        began_s = time.monotonic()
        with pytest.raises(WeightsError, match=said):
            subscriber.fetch(through(proxy, handle))
        assert time.monotonic() - began_s < 5
        assert proxy.troubled.is_set()
    for slot in (tmp_path / "engine").glob("pulled-*[0-9a-f]"):
        assert SlotReader(slot).header().version == -1, "nothing is marked as complete"
    assert equal(subscriber.fetch(handle), tensors(0)), "without the trouble it arrives"


def test_a_wrong_key_gets_nothing(publisher: TcpPublisher, subscriber: TcpSubscriber, tmp_path: Path) -> None:
    handle = publisher.publish(0, tensors(0))
    with pytest.raises(WeightsError, match=r"127.0.0.1:\d+: it does not accept this run's key"):
        TcpSubscriber(tmp_path / "engine", "another's").fetch(handle)
    host, _, port = publisher.server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as mute:
        mute.sendall(bytes(200))
        mute.settimeout(5)
        challenge = mute.recv(16, socket.MSG_WAITALL)
        with suppress(ConnectionResetError):
            assert mute.recv(1) == b"", "it is told nothing"
        assert len(challenge) == 16
    assert publisher.server.sent_bytes == 0


def test_a_server_that_does_not_know_the_key_is_refused(subscriber: TcpSubscriber) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def impostor() -> None:
            with listening.accept()[0] as client:
                client.sendall(bytes(16))
                client.recv(48, socket.MSG_WAITALL)
                client.sendall(bytes(32))

        Thread(target=impostor, daemon=True).start()
        location = f"tcp://127.0.0.1:{listening.getsockname()[1]}/weights-0-0"
        with pytest.raises(WeightsError, match="does not know this run's key"):
            subscriber.fetch(WeightsHandle("tcp", 0, location, "00"))


def test_a_replaced_version_is_gone(publisher: TcpPublisher, subscriber: TcpSubscriber) -> None:
    old, _, newest = (publisher.publish(version, {"a": torch.full((5,), version)}) for version in range(3))
    with pytest.raises(WeightsError, match="version 0 is gone: version 2 has taken its place"):
        subscriber.fetch(old)
    assert subscriber.fetch(newest)["a"].tolist() == [2] * 5
    with pytest.raises(WeightsError, match="another than the one that was announced"):
        subscriber.fetch(replace(newest, checksum="0123456789abcdef"))
    with pytest.raises(WeightsError, match="only go up"):
        publisher.publish(2, {})


def test_a_version_is_not_replaced_while_it_is_pulled(
    publisher: TcpPublisher, subscriber: TcpSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher waits for who is in the middle of it, until that one hangs."""
    monkeypatch.setattr(peer, "PATIENCE_S", 0.5)
    first = publisher.publish(0, tensors(0))
    publisher.publish(1, tensors(1))
    with Proxy(publisher.server.address, "stall", 20_000_000) as proxy:
        failed: list[str] = []

        def fetch() -> None:
            try:
                subscriber.fetch(through(proxy, first))
            except WeightsError as error:
                failed.append(str(error))

        pulling = Thread(target=fetch)
        pulling.start()
        assert proxy.troubled.wait(10)
        publisher.publish(2, tensors(2))
        pulling.join(10)
    assert "sent nothing for 0.5 s" in failed[0]
    assert equal(subscriber.fetch(publisher.publish(3, tensors(3))), tensors(3))


def test_who_waited_for_one_that_failed_fails_with_it(
    publisher: TcpPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "PATIENCE_S", 1.0)
    scratch, handle, failures = folder(tmp_path / "engines"), publisher.publish(0, tensors(0)), []
    with Proxy(publisher.server.address, "stall", 100) as proxy:

        def fetch() -> None:
            try:
                TcpSubscriber(scratch, KEY).fetch(through(proxy, handle))
            except WeightsError as error:
                failures.append(str(error))

        threads = [Thread(target=fetch) for _ in range(4)]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert time.monotonic() - began_s < 3
    assert len(failures) == 4
    assert len(set(failures)) == 1


TRAINER = """
import sys, torch
from pathlib import Path
from freerun.weights.tcp import TcpPublisher
publisher = TcpPublisher(Path(sys.argv[1]), "127.0.0.1", sys.argv[2])
handle = publisher.publish(5, {"a": torch.zeros(30_000_000)})
print(handle.location, handle.checksum, flush=True)
sys.stdin.read()
"""


def test_a_trainer_that_is_killed_is_an_error_at_once(subscriber: TcpSubscriber, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINER, str(folder(tmp_path / "trainer")), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        location, checksum = trainer.stdout.readline().split()
        handle = WeightsHandle("tcp", 5, location, checksum)
        with Proxy(location.removeprefix("tcp://").partition("/")[0], "hold", 1_000_000) as proxy:

            def kill() -> None:
                proxy.troubled.wait(10)
                trainer.kill()
                trainer.wait()
                proxy.go_on.set()

            killing = Thread(target=kill)
            killing.start()
            with pytest.raises(WeightsError, match=r"closed the connection|is gone|or is ending"):
                subscriber.fetch(through(proxy, handle))
            killing.join()
        with pytest.raises(WeightsError, match="refused; is its machine cut off"):
            subscriber.fetch(handle)


def test_a_version_of_several_parts(tmp_path: Path) -> None:
    """Each rank has its share of the tensors, and its server."""
    shares: list[dict[str, Tensor]] = [{}, {}]
    for number, (name, tensor) in enumerate(tensors(1).items()):
        shares[number % 2][name] = tensor
    scratch, machine = folder(tmp_path / "trainer"), folder(tmp_path / "engine")
    ranks = [TcpPublisher(scratch, "127.0.0.1", KEY, part) for part in range(2)]
    handle = of_parts([rank.publish(1, share.items()) for rank, share in zip(ranks, shares, strict=True)])
    assert [part.version for part in handle.parts] == [1, 1]
    subscriber = AnySubscriber(of_run(machine, KEY))
    assert equal(subscriber.fetch(handle), tensors(1))
    subscriber.confirm(handle)
    assert 40e6 < subscriber.received_bytes <= sum(rank.server.sent_bytes for rank in ranks)
    ranks[1].server.close()
    with pytest.raises(WeightsError, match=ranks[1].server.address):
        AnySubscriber(of_run(folder(tmp_path / "late"), KEY)).fetch(handle)
    ranks[0].server.close()
