"""The trainer's process: takes one request at a time over ZeroMQ, does it, answers.

A request is a method and its argument, with samples where it has any (`messages.py`); a reply is three frames: the
request's number, and `ok` with the result; or `refused`, where the error is one of ours, or `failed`, where it is any
other, with message and traceback. `METHODS` is the whole protocol, for this side and for the client's.

With several ranks the first one does that. It says each request to the others, and all of them do it.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
import zmq

from freerun.core import Batch, FreerunError, Sample, TrainerError
from freerun.core.reports import PUBLISH, StepResult, WeightsHandle
from freerun.models.checkpoint import Common
from freerun.models.shape import Backend
from freerun.train.config import TrainConfig
from freerun.train.divergence import refuse_divergence
from freerun.train.how_sampled import ALL, HowSampled
from freerun.train.learner import Learner
from freerun.train.messages import Received, encoded, receive
from freerun.train.protocol import Checkpoint, Copied, Preferences, Written
from freerun.train.ranks import ALONE, Ranks
from freerun.train.sockets import listening
from freerun.weights.base import Publisher, of_parts

if TYPE_CHECKING:
    from freerun.train.checkpoint import CheckpointWriter
    from freerun.weights.common import Lender


_SAVING = "freerun.train.checkpoint"
"""What a checkpoint imports takes half a second."""
IDLE_OFFLOAD = (
    "train.optimizer_state=offload spares nothing here: without a GPU all of the trainer is in the machine's memory "
    "anyway"
)


class TrainerProcess:
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
        how: HowSampled = ALL,
        backend: Backend = "auto",
        adapter_alone: bool = False,
        common: Common | None = None,
        lender: "Lender | None" = None,
    ) -> None:
        """`adapter_alone` is what it publishes. Weights that do not change are `common`, or lent by this process."""
        torch.manual_seed(seed)
        self._folder = folder
        self._publisher, self._adapter_alone = publisher, adapter_alone
        self.ranks = ranks
        given = folder, config, temperature, seed, longest, ranks, how, backend, common
        self._learner = Learner.from_folder(*given)
        if lender:
            lender.offer(self._learner.policy.base())
        self._keep = config.keep
        if checkpoint:
            from freerun.train.checkpoint import load_checkpoint  # slow to import

            load_checkpoint(checkpoint, self._learner, ranks)
        self._learner.warm_up()
        self._notes = [IDLE_OFFLOAD] if config.optimizer_state == "offload" and ranks.device == "cpu" else []
        self._asked: Any = None
        """What the last request was about. It is let go of with the next: to free a batch takes milliseconds, for which
        engines would wait if it came before the reply."""
        self._importing: Thread | None = None
        self.score = self._learner.score

    @cached_property
    def _checkpoints(self) -> "CheckpointWriter":
        from freerun.train.checkpoint import CheckpointWriter  # slow to import, and not needed before the first is due

        return CheckpointWriter(self._keep, self.ranks)

    def _expect_checkpoints(self) -> None:
        """From the first step on there is something to save, and an interrupted run has seconds for it: what saving
        imports is imported beside the next steps."""
        if self._importing is None:
            self._importing = Thread(target=import_module, args=(_SAVING,), daemon=True)
            self._importing.start()

    def do(self, request: tuple[str, Any]) -> Any:
        method, self._asked = request
        return getattr(self, method)(self._asked)

    def step(self, batch: Batch) -> StepResult:
        result = self._learner.step(batch)
        refuse_divergence(self._learner, result.metrics, self.ranks)
        start_s = time.monotonic()
        weights = self.publish(None)
        published = (PUBLISH, start_s, time.monotonic())
        self._expect_checkpoints()
        return replace(self._with_notes(result), weights=weights, phases=[*result.phases, published])

    def sft(self, examples: list[Sample]) -> StepResult:
        result = self._learner.sft(examples)
        refuse_divergence(self._learner, result.metrics, self.ranks)
        self._expect_checkpoints()
        return self._with_notes(result)

    def dpo(self, wanted: Preferences) -> StepResult:
        result = self._learner.dpo(wanted.samples, wanted.beta)
        refuse_divergence(self._learner, result.metrics, self.ranks)
        self._expect_checkpoints()
        return self._with_notes(result)

    def _with_notes(self, result: StepResult) -> StepResult:
        """What there is to tell about the trainer goes with its next step."""
        told = [*self._notes, *self._learner.decoder.notes]
        for notes in (self._notes, self._learner.decoder.notes):
            notes.clear()
        return replace(result, warnings=[*result.warnings, *told])

    def publish(self, _: None) -> WeightsHandle:
        """Every rank publishes the tensors that it keeps, and all of them know where the others' are."""
        part = self._learner.policy.part(self._adapter_alone)

        def published() -> WeightsHandle:
            try:
                return self._publisher.publish(self._learner.version, part)
            finally:
                deque(part, maxlen=0)  # the others gather theirs, even where this one failed

        handle = of_parts(self.ranks.each(published))
        self._publisher.announce(handle)
        return handle

    def save(self, folder: str) -> None:
        self._refuse_half_a_step()
        self._learner.save(Path(folder), like=self._folder)

    def checkpoint(self, wanted: Checkpoint) -> Copied:
        if wanted.version != self._learner.version:
            raise TrainerError(f"version {wanted.version} is gone: the trainer is at {self._learner.version}")
        self._refuse_half_a_step()
        notes: list[str] = []
        failed = self._why_not(self._checkpoints.finish)
        folder, control = Path(wanted.folder), wanted.control
        refused = self._why_not(lambda: notes.extend(self._checkpoints.begin(self._learner, folder, control)))
        shared = (folder / wanted.token).exists()
        written = self._checkpoints.last_written()
        return Copied(self.ranks.machines, self.ranks.sharing, shared, notes, written, failed, refused)

    def _why_not(self, write: Callable[[], None]) -> str:
        """What the disk has against it: a run goes on without a checkpoint."""
        from freerun.train.checkpoint import NotWritten  # slow to import

        try:
            write()
        except NotWritten as error:
            return error.message
        return ""

    def _refuse_half_a_step(self) -> None:
        if not self._learner.savable:
            raise TrainerError(f"version {self._learner.version} is gone: the step after it failed half-way")

    def written(self, _: None) -> Written | None:
        self._checkpoints.finish()
        return self._checkpoints.last_written()


class Worker(Protocol):
    """Whatever does requests."""

    ranks: Ranks

    def do(self, request: tuple[str, Any]) -> Any: ...


def serve(worker: Worker, endpoint: str, ready: Callable[[str], None], key: str | None = None) -> None:
    """The first rank, until its process is ended. `key` is the run's: see `sockets.py`."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        ready(listening(socket, endpoint, key))
        while True:
            socket.send_multipart(answer(worker, receive(lambda: socket.recv_multipart(copy=False))))


def follow(worker: Worker, ready: Callable[[str], None]) -> None:
    """Any other rank, until its process is ended.

    What Freerun refuses, all ranks refuse alike, or the first alone after they parted, and it answers. Anything else
    leaves the others waiting in the middle of something: it ends this process, and with it the run. So does the end of
    the first rank, about which this one has nothing to say: whoever ended it, or finds it dead, does.
    """
    ready(f"rank {worker.ranks.rank}")
    while True:
        with suppress(FreerunError):
            try:
                request: Any = worker.ranks.say(None)
            except RuntimeError:
                raise SystemExit(1) from None
            worker.do(request)


def answer(worker: Worker, request: Received) -> list[bytes]:
    try:
        result = worker.do(worker.ranks.say(request.decoded()))
        return [request.number, b"ok", encoded(result)]
    except FreerunError as error:
        return [request.number, b"refused", msgspec.msgpack.encode((str(error), error.detail))]
    except Exception as error:
        return [
            request.number,
            b"failed",
            msgspec.msgpack.encode((f"{type(error).__name__}: {error}", traceback.format_exc())),
        ]
