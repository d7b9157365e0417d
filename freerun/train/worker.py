"""The trainer's process: takes one request at a time over ZeroMQ, does it, answers.

A request is two frames, the method and its argument in msgpack; a reply is two frames, `ok` and the result, or `error`
with message and traceback. `METHODS` is the whole protocol, for this side and for the client's.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

from freerun.core import FreerunError
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.protocol import METHODS
from freerun.weights.base import Publisher


class Worker:
    """Its methods are those of the Trainer protocol, done at once."""

    def __init__(self, folder: Path, config: TrainConfig, temperature: float, seed: int, publisher: Publisher) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._folder = folder
        self._publisher = publisher
        self._learner = Learner.from_folder(folder, config, temperature, seed)
        self.step = self._learner.step
        self.sft = self._learner.sft

    def publish(self, _: None) -> Any:
        return self._publisher.publish(self._learner.version, dict(self._learner.decoder.named_parameters()))

    def save(self, folder: str) -> None:
        self._learner.save(Path(folder), like=self._folder)


def serve(worker: Worker, endpoint: str, ready: Callable[[str], None]) -> None:
    """Until the process is ended."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.bind(endpoint)
        ready(endpoint)
        while True:
            method, argument = socket.recv_multipart()
            socket.send_multipart(answer(worker, method.decode(), argument))


def answer(worker: Worker, method: str, argument: bytes) -> list[bytes]:
    try:
        takes, _ = METHODS[method]
        result = getattr(worker, method)(msgspec.msgpack.decode(argument, type=takes))
        return [b"ok", msgspec.msgpack.encode(result)]
    except FreerunError as error:
        return [b"error", msgspec.msgpack.encode((str(error), error.detail))]
    except Exception as error:
        return [b"error", msgspec.msgpack.encode((f"{type(error).__name__}: {error}", traceback.format_exc()))]
