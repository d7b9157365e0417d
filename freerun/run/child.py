"""An engine, a trainer rank or the judges of a run, as a process: `python -m freerun.run.child KIND SETTINGS`.

`machine/processes.py` starts it, and `machine/parent.py` ties it to its parent: it ends when that does.
"""

import asyncio
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from freerun.core import FreerunError
from freerun.engines.config import ResolvedEngineConfig
from freerun.engines.listening import Where
from freerun.machine.device import choose_device
from freerun.machine.garbage import freeze_heap
from freerun.machine.machines import LOCAL
from freerun.machine.parent import RUN_KEY, announce_ready, announce_refusal, end_with_parent
from freerun.machine.preloaded import PRELOADED, fork_children
from freerun.models.shape import AdapterShape, Backend
from freerun.rewards.machines.server import JudgeSettings, serve_judges
from freerun.train.config import ResolvedTrainConfig
from freerun.train.how_sampled import HowSampled
from freerun.weights.way import Base, WeightsWay

if TYPE_CHECKING:
    from freerun.models.checkpoint import Common
    from freerun.weights.common import Lender

_FIRST = (
    *("freerun.train.worker", "freerun.weights.publish", "freerun.weights.subscribe"),
    "freerun.engines.embedded.server",
)
"""What engines and trainers import, and once for all of them."""
_LATER = ("freerun.train.checkpoint", *(["torch._dynamo"] if Path("/dev/nvidiactl").exists() else []))
"""What trainers import as they go; on a GPU they compile."""
SERVER_KEY = "FREERUN_ENGINE_KEY"
"""The one with the key of the engines that were given by URL."""


@dataclass(slots=True, frozen=True)
class EngineSettings:
    model: str
    engine: dict[str, object]
    host: str
    """The address to listen on."""
    scratch: str
    """A folder in shared memory that the run's processes on this machine share."""
    backend: Backend = "auto"
    adapter: AdapterShape | None = None
    """What new versions are, where the engine computes with an adapter itself."""
    base: Base = "own"


@dataclass(slots=True, frozen=True)
class TrainerSettings:
    model: str
    train: dict[str, object]
    temperature: float
    seed: int
    longest: int
    """The most tokens that an answer may have."""
    endpoint: str
    host: str
    """The address at which other machines, or only this one, reach it."""
    scratch: str
    """A folder in shared memory that the run's processes on this machine share: versions are published there."""
    weights: WeightsWay
    how: HowSampled
    checkpoint: str | None = None
    """What the trainer continues from; without one it begins with the model."""
    backend: Backend = "auto"
    rank: int = 0
    rendezvous: str = ""
    """The URL by which ranks find each other: see torch's `init_process_group`."""
    memory_share: float | None = None
    """How much of the GPU's memory it may take."""
    base: Base = "own"
    machine: str = LOCAL
    """The name of the machine that it is on."""


@dataclass(slots=True, frozen=True)
class TeacherSettings:
    model: str
    host: str
    """The address to listen on."""
    memory_share: float | None = None
    """How much of the GPU's memory it may take."""


def run_engine(settings: EngineSettings) -> None:
    from freerun.weights.subscribe import AnySubscriber, of_run

    config = ResolvedEngineConfig.model_validate(settings.engine)
    key, model, scratch = os.environ.pop(RUN_KEY, None), Path(settings.model), Path(settings.scratch)
    subscriber = AnySubscriber(of_run(scratch, key, settings.host))
    if config.kind == "embedded":
        from freerun.engines.embedded.server import serve

        asyncio.run(
            serve(
                *(model, config, subscriber, ready, settings.host),
                api_key=key,
                backend=settings.backend,
                adapter=settings.adapter,
                common=_common(settings.base, scratch),
            )
        )
    else:
        from freerun.engines.external.serve import serve_front

        server_key = os.environ.pop(SERVER_KEY, None)
        asyncio.run(serve_front(model, config, subscriber, ready, settings.host, scratch, key, server_key))


def run_trainer(settings: TrainerSettings) -> None:
    from freerun.train.ranks import Ranks
    from freerun.train.worker import TrainerProcess, follow, serve
    from freerun.weights.publish import publisher_for

    config = ResolvedTrainConfig.model_validate(settings.train)
    device, key = config.device, os.environ.pop(RUN_KEY, None)
    if settings.memory_share and device == "cuda":
        from torch import cuda

        cuda.set_per_process_memory_fraction(min(settings.memory_share, 1.0))
    ranks = Ranks.join(
        *(settings.rank, config.ranks, settings.rendezvous, device),
        *(settings.host, settings.machine, config.shard, config.context_parallel),
    )
    scratch = Path(settings.scratch)
    lender = _lender(scratch) if settings.base == "lent" else None
    publisher = publisher_for(settings.weights, ranks.rank, scratch, settings.host, key, device)
    checkpoint = Path(settings.checkpoint) if settings.checkpoint else None
    worker = TrainerProcess(
        *(Path(settings.model), config, settings.temperature, settings.seed),
        *(publisher, checkpoint, settings.longest, ranks),
        how=settings.how,
        backend=settings.backend,
        adapter_alone=settings.weights.adapter,
        common=None if lender else _common(settings.base, scratch),
        lender=lender,
    )
    if ranks.is_first:
        serve(worker, settings.endpoint, ready, key)
    else:
        follow(worker, ready)


def run_teacher(settings: TeacherSettings) -> None:
    from freerun.engines.scoring.server import serve_scores

    _keep_to(settings.memory_share)
    where, folder = Where(settings.host), Path(settings.model)
    asyncio.run(serve_scores(folder, ready, where, folder.name, api_key=os.environ.pop(RUN_KEY, None)))


def _common(base: Base, scratch: Path) -> "Common | None":
    """Where this process has the weights that do not change, if not in memory of its own."""
    from freerun.weights.common import Borrower, CommonFile

    return {"own": None, "file": CommonFile(scratch), "lent": Borrower(scratch)}[base]


def _lender(scratch: Path) -> "Lender":
    from freerun.weights.common import Lender

    return Lender(scratch)


def run_judge(settings: JudgeSettings) -> None:
    _keep_to(settings.memory_share)
    with open(1, "wb", buffering=0, closefd=False) as log:
        asyncio.run(serve_judges(settings, os.environ.pop(RUN_KEY), ready, log))


def _keep_to(memory_share: float | None) -> None:
    if memory_share and choose_device() == "cuda":
        from torch import cuda

        cuda.set_per_process_memory_fraction(min(memory_share, 1.0))


def ready(where: str) -> None:
    freeze_heap()
    announce_ready(where)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (role := sys.argv[1:])[0] == PRELOADED:
        list(map(import_module, _FIRST))
        role = fork_children(int(role[1]), _LATER)
    end_with_parent()
    kind, settings = role
    try:
        if kind == "engine":
            run_engine(msgspec.json.decode(settings, type=EngineSettings))
        elif kind == "judge":
            run_judge(msgspec.json.decode(settings, type=JudgeSettings))
        elif kind == "teacher":
            run_teacher(msgspec.json.decode(settings, type=TeacherSettings))
        else:
            run_trainer(msgspec.json.decode(settings, type=TrainerSettings))
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, FreerunError):
            announce_refusal(error)
        os._exit(1)  # at once: a thread that waits for another rank would hold it here
