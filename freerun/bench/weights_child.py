"""Processes of `freerun bench weights`: a trainer that publishes, engines that fetch, and a plain stream between the
same two. Each takes commands on its standard input, a JSON list a line, and answers each with a line.
"""

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from freerun.core.reports import WeightsHandle
from freerun.machine.parent import RUN_KEY
from freerun.weights.peer import Kind
from freerun.weights.pull import Source, pull
from freerun.weights.slot import MappedSlots
from freerun.weights.tcp import TcpPublisher, TcpSubscriber, place_of

KEY = RUN_KEY
"""Nobody else's: the benchmark proves a key as a run does, and the network is its own."""
_BLOCK = 1 << 20


class Trainer:
    """Publishes random weights in float32, or in bf16 with deltas, each version after a step of Adam."""

    def __init__(self, scratch: Path, host: str) -> None:
        self._scratch, self._host = scratch, host
        self._publisher: TcpPublisher | None = None
        self._weights: list[torch.nn.Parameter] = []
        self._version = 0

    def prepare(self, mib: int, low: bool) -> None:
        if self._publisher:
            self._publisher.server.close()
        torch.manual_seed(0)
        elements = (1 << 20) // (2 if low else 4)
        self._weights = [torch.nn.Parameter(0.02 * torch.randn(elements * 16)) for _ in range(max(mib // 16, 1))]
        self._adam = torch.optim.Adam(self._weights, lr=1e-6)
        dtype = torch.bfloat16 if low else None
        self._publisher = TcpPublisher(self._scratch, self._host, KEY, int(low), dtype, deltas=low)

    def publish(self, learns: bool) -> Any:
        assert self._publisher
        if learns:
            for weight in self._weights:
                weight.grad = torch.randn_like(weight)
            self._adam.step()
        self._version += 1
        tensors = {str(number): weight.detach() for number, weight in enumerate(self._weights)}
        return self._publisher.publish(self._version, tensors)

    def sent(self) -> int:
        assert self._publisher
        return self._publisher.server.sent_bytes

    def stream(self, mib: int, connections: int) -> str:
        """Send that much over plain connections, to whoever connects; where."""
        listening = socket.create_server((self._host, 0))
        share = mib // connections

        def send() -> None:
            client, _ = listening.accept()
            with client:
                block = memoryview(bytes(_BLOCK))
                for _ in range(share):
                    client.sendall(block)

        for _ in range(connections):
            threading.Thread(target=send, daemon=True).start()
        return f"{self._host}:{listening.getsockname()[1]}"


class Engine:
    def __init__(self, scratch: Path, host: str) -> None:
        self._scratch = scratch
        self._subscriber, self._slots = TcpSubscriber(scratch, KEY), MappedSlots()

    def pull(self, handle: dict[str, Any]) -> float:
        """Seconds until the version is complete in this machine's shared memory."""
        wanted = msgspec.convert(handle, WeightsHandle)
        source, slot = Source(place_of(wanted.location)[0], KEY), self._scratch / f"measured-{wanted.version % 2}"
        began_s = time.monotonic()
        pull(source, Kind.WHOLE, wanted.version, wanted.checksum, slot, self._slots)
        return time.monotonic() - began_s

    def fetch(self, handle: dict[str, Any]) -> tuple[float, int]:
        """Seconds until it is there as tensors, and how many bytes came."""
        began_s = time.monotonic()
        self._subscriber.fetch(msgspec.convert(handle, WeightsHandle))
        return time.monotonic() - began_s, self._subscriber.received_bytes

    def receive(self, address: str, mib: int, connections: int) -> float:
        """Seconds for a plain stream, whose bytes nobody keeps."""
        host, _, port = address.rpartition(":")

        def take() -> None:
            room = bytearray(_BLOCK)
            with socket.create_connection((host, int(port))) as server:
                while server.recv_into(room):
                    pass

        began_s = time.monotonic()
        threads = [threading.Thread(target=take) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began_s


def main(role: str, host: str, scratch: Path) -> None:
    torch.set_num_threads(1)
    worker = Trainer(scratch, host) if role == "trainer" else Engine(scratch, host)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(msgspec.json.encode(getattr(worker, command)(*arguments)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
