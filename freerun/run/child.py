"""A process of the run: `python -m freerun.run.child KIND SETTINGS`, started by `processes.py`.

Two pipes tie it to its parent. It says on one that it is ready, and where; or which of our own errors keeps it from
that. The other is its lifeline: nothing is ever written to it, and when it closes, because the parent ended in
whatever way, kill -9 included, the child ends too.
"""

import asyncio
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.core import FreerunError
from freerun.engines.config import EngineConfig
from freerun.machine.garbage import freeze_heap
from freerun.machine.processes import Refusal
from freerun.train.config import TrainConfig

ENGINE_KEY = "FREERUN_ENGINE_KEY"
"""What the engine asks of its clients. In the environment: everybody can read a command line."""


@dataclass(slots=True, frozen=True)
class EngineSettings:
    model: str
    engine: dict[str, object]


@dataclass(slots=True, frozen=True)
class TrainerSettings:
    model: str
    train: dict[str, object]
    temperature: float
    seed: int
    longest: int
    """Most tokens that an answer may have."""
    endpoint: str
    weights: str
    """The folder, in shared memory, where versions are published."""
    checkpoint: str | None = None
    """Where the trainer goes on from; without one it begins with the model."""
    rank: int = 0
    rendezvous: str = ""
    """The file by which ranks find each other."""
    memory_share: float | None = None
    """Of the GPU's memory: more than this it may not take."""


def run_engine(settings: EngineSettings) -> None:
    from freerun.engines.embedded.server import serve
    from freerun.weights.subscribe import AnySubscriber

    config = EngineConfig.model_validate(settings.engine)
    key = os.environ.pop(ENGINE_KEY, None)
    asyncio.run(serve(Path(settings.model), config, AnySubscriber(), ready, api_key=key))


def run_trainer(settings: TrainerSettings) -> None:
    from freerun.train.ranks import Ranks
    from freerun.train.trained import device_here
    from freerun.train.worker import TrainerProcess, follow, serve
    from freerun.weights.publish import publisher_for

    config = TrainConfig.model_validate(settings.train)
    device = device_here()
    if settings.memory_share and device == "cuda":
        from torch import cuda

        cuda.set_per_process_memory_fraction(min(settings.memory_share, 1.0))
    ranks = Ranks.join(settings.rank, config.ranks, settings.rendezvous, device)
    publisher = publisher_for(device, Path(settings.weights)) if ranks.is_first else None
    checkpoint = Path(settings.checkpoint) if settings.checkpoint else None
    worker = TrainerProcess(
        *(Path(settings.model), config, settings.temperature, settings.seed),
        *(publisher, checkpoint, settings.longest, ranks),
    )
    if ranks.is_first:
        serve(worker, settings.endpoint, ready)
    else:
        follow(worker, ready)


def ready(where: str) -> None:
    freeze_heap()
    with os.fdopen(READY_FD, "w") as pipe:
        pipe.write(where)


def refuse(error: FreerunError) -> None:
    """If it is ready already, its parent has stopped listening, and finds the error in the log."""
    with suppress(OSError), os.fdopen(READY_FD, "wb") as pipe:
        pipe.write(msgspec.json.encode(Refusal(type(error).__name__, error.message, error.detail)))


def follow_the_parent() -> None:
    def until_it_ends() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=until_it_ends, name="lifeline", daemon=True).start()


READY_FD = int(os.environ.get("FREERUN_READY_FD", "-1"))

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_the_parent()
    kind, settings = sys.argv[1:]
    try:
        if kind == "engine":
            run_engine(msgspec.json.decode(settings, type=EngineSettings))
        else:
            run_trainer(msgspec.json.decode(settings, type=TrainerSettings))
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, FreerunError):
            refuse(error)
        os._exit(1)  # at once: a thread that waits for another rank would hold it here
