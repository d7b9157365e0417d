"""The connection to a trainer on another machine: encrypted, for whoever knows the run's key, and given up at once when
the machine is lost."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from freerun.core import Batch, TrainerError
from freerun.core.clock import Clock
from freerun.core.reports import StepResult
from freerun.train.messages import opening
from freerun.train.ranks import ALONE
from freerun.train.remote import RemoteTrainer
from freerun.train.sockets import connect
from freerun.train.worker import serve
from tests.train.test_learner import random_batch
from tests.train.test_messages import assert_same

LOOPBACK = "tcp://127.0.0.1:*"
GIVEN_UP = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.DISCONNECTED,
)


class Silent:
    """Keeps what it was asked to do, and says nothing to `publish`."""

    ranks = ALONE

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.got = threading.Event()

    def do(self, request: tuple[str, Any]) -> Any:
        self.asked.append(request)
        self.got.set()
        if request[0] == "publish":
            threading.Event().wait()
        if request[0] == "save":
            return None
        return StepResult(len(self.asked), phases=[("learn", 5.0, 7.0)])


def served(endpoint: str, key: str | None) -> tuple[Silent, str]:
    """A trainer, and where it says that it is."""
    worker, bound, announced = Silent(), threading.Event(), []

    def ready(where: str) -> None:
        announced.append(where)
        bound.set()

    threading.Thread(target=serve, args=(worker, endpoint, ready, key), daemon=True).start()
    assert bound.wait(10)
    return worker, announced[0]


async def test_a_batch_arrives_by_tcp_as_it_was() -> None:
    worker, endpoint = served(LOOPBACK, "the run's")
    assert endpoint.startswith("tcp://127.0.0.1:")
    assert int(endpoint.rpartition(":")[2]) > 0, "a free port was taken"
    batch = random_batch(3)
    with RemoteTrainer(endpoint, "the run's") as trainer:
        assert (await trainer.step(batch)).version == 1
    found = worker.asked[0][1]
    for ours, theirs in zip(found.groups, batch.groups, strict=True):
        for one, other in zip(ours.samples, theirs.samples, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("stranger", ["has no key", "has another key"])
async def test_strangers_get_nothing_through_and_keep_nobody_out(stranger: str) -> None:
    worker, endpoint = served(LOOPBACK, "the run's")
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 0
        monitor = socket.get_monitor_socket()
        if stranger == "has no key":
            socket.connect(endpoint)
        else:
            connect(socket, endpoint, "another's")
        socket.send_multipart(opening(1, "save", "/somewhere", 0))
        while recv_monitor_message(monitor)["event"] not in GIVEN_UP:
            pass
        with RemoteTrainer(endpoint, "the run's") as trainer:  # while the stranger tries on
            assert (await asyncio.wait_for(trainer.step(Batch(0, [])), 10)).version == 1
        assert [method for method, _ in worker.asked] == ["step"]
        socket.disable_monitor()


async def test_what_travels_cannot_be_read() -> None:
    """Through a go-between that keeps all bytes: the folder's name is not among them."""
    _, endpoint = served(LOOPBACK, "the run's")
    seen, over = bytearray(), asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))
        over.set()

    server = await asyncio.start_server(between, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with RemoteTrainer(f"tcp://127.0.0.1:{port}", "the run's") as trainer:
        await trainer.save("a-name-that-says-much")
    await over.wait()
    server.close()
    assert len(seen) > 200
    assert b"a-name-that-says-much" not in seen


async def test_on_one_machine_no_key_is_needed(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/trainer"
    worker, announced = served(endpoint, "the run's")
    assert announced == endpoint
    with RemoteTrainer(endpoint) as trainer:
        assert (await trainer.step(Batch(0, []))).version == 1
    assert len(worker.asked) == 1


def test_a_trainer_that_others_reach_needs_a_key() -> None:
    with pytest.raises(TrainerError, match="can be reached by others: give it the run's key"):
        serve(Silent(), LOOPBACK, lambda _: None)


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    with pytest.raises(TrainerError, match=r"cannot listen at tcp://192\.0\.2\.1:\*: Cannot assign requested address"):
        serve(Silent(), "tcp://192.0.2.1:*", lambda _: None, "the run's")


async def test_a_trainer_that_is_lost_fails_who_waits_for_it_at_once() -> None:
    worker, endpoint = served(LOOPBACK, "the run's")
    with RemoteTrainer(endpoint, "the run's") as trainer:
        waits = [asyncio.create_task(trainer.publish()), asyncio.create_task(trainer.save("after it"))]
        await asyncio.to_thread(worker.got.wait)
        trainer.lose("machine b is cut off")
        for one in waits:
            with pytest.raises(TrainerError, match="the trainer is lost: machine b is cut off"):
                await asyncio.wait_for(one, 1)
        with pytest.raises(TrainerError, match="lost"):
            await asyncio.wait_for(trainer.written(), 1)


async def test_phases_are_by_our_clock() -> None:
    class Ahead(Clock):
        def ours(self, theirs_s: float) -> float:
            return theirs_s - 1000.0

    _, endpoint = served(LOOPBACK, "the run's")
    with RemoteTrainer(endpoint, "the run's", Ahead()) as trainer:
        assert (await trainer.step(Batch(0, []))).phases == [("learn", -995.0, -993.0)]
        assert (await trainer.sft([])).phases == [("learn", -995.0, -993.0)]
