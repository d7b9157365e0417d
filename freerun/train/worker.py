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

from freerun.core import FreerunError, TrainerError
from freerun.train.checkpoint import CheckpointWriter, load_checkpoint
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.protocol import METHODS, Checkpoint
from freerun.train.ranks import ALONE, Ranks
from freerun.weights.base import Publisher


class Worker:
    """Its methods are those of the Trainer protocol, done at once. It goes on from `checkpoint` where there is one."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        temperature: float,
        seed: int,
        publisher: Publisher,
        checkpoint: Path | None = None,
        longest: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self._folder = folder
        self._publisher = publisher
        self._learner = Learner.from_folder(folder, config, temperature, seed, longest, ranks)
        self._checkpoints = CheckpointWriter(config.keep)
        if checkpoint:
            load_checkpoint(checkpoint, self._learner)
        self.step = self._learner.step
        self.sft = self._learner.sft
        self.score = self._learner.score

    def publish(self, _: None) -> Any:
        return self._publisher.publish(self._learner.version, self._learner.policy.tensors())

    def save(self, folder: str) -> None:
        self._learner.save(Path(folder), like=self._folder)

    def checkpoint(self, wanted: Checkpoint) -> None:
        if wanted.version != self._learner.version:
            raise TrainerError(f"version {wanted.version} is gone: the trainer is at {self._learner.version}")
        self._checkpoints.begin(self._learner, Path(wanted.folder), wanted.control)

    def written(self, _: None) -> None:
        self._checkpoints.finish()


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
