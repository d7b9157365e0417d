"""Cables of a run's machines are cut and mended: the second and third part of `freerun bench cluster`.

One run on four machines lives through all of it: the cable of an engine's machine, that of the trainer's with
`cluster.trainer_lost: end`, and again, resumed, with `wait`.
"""

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.bench.cluster_run import MachineRun, engine_ready_s, finished
from freerun.bench.namespaces import machines
from freerun.bench.run_log import Audited
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_steps

ORPHANS_S = 10.0
"""After so long, nothing may be left of a run that has ended, or was cut off."""
_SOON_S = 180.0
"""The longest wait for anything: other programs may use the machine, too."""
_A_FEW = 5
_SETTINGS = ("control.steps=100000", "train.decay_steps=0", "evaluate.every=0", f"train.save_every={_A_FEW}")
"""Without an end of its own, and with checkpoints to go on from."""


@dataclass(frozen=True)
class EngineCut:
    """What came of cutting the cable of an engine's machine. Seconds."""

    noticed_s: float
    """Until the run said that the machine is lost."""
    steps_meanwhile: int
    """Done with the other engine, before the cable was mended."""
    left: dict[str, list[int]]
    """Processes that were still on that machine ten seconds after the cut."""
    back_s: float
    """From the mended cable until the engine was asked again; its start is in it."""
    late_s: float
    """From the moment at which the engine could be asked until it had the newest version and was."""


@dataclass(frozen=True)
class TrainerCut:
    noticed_s: float
    ended_s: float
    """Until the run had ended, all its processes included."""
    cause: str
    """What it said last."""
    left: dict[str, list[int]]
    """Processes on every machine ten seconds after the cut, nodes aside."""


@dataclass(frozen=True)
class Cuts:
    engine: EngineCut
    trainer: TrainerCut
    waited_s: float
    """With `trainer_lost: wait`: from the mended cable until the next step was done."""
    stalest: int
    """The oldest trained token, in versions."""
    audit: Audited


async def cut_cables(folder: Path, settings: Sequence[str]) -> Cuts:
    with machines("controller", "one", "two", "three") as places:
        async with MachineRun(places, [*settings, *_SETTINGS], folder, "cut") as run:
            async with run.train() as process:
                step = await run.steps(_A_FEW, process, _SOON_S)
                engine = await _cut_engine(run, process, step)
                await run.steps(_A_FEW, process, _SOON_S)
                trainer = await _cut_trainer(run, process)
            waited_s = await _resume(run)
    stalest = max(step.staleness_max for step in read_steps(RunFolder(run.run).metrics))
    return Cuts(engine, trainer, waited_s, stalest, Audited.of(run.run))


async def _cut_engine(run: MachineRun, process: Process, step: int) -> EngineCut:
    machine = run.who("engine")[-1]
    machine.cut()
    cut_s = time.monotonic()
    noticed_s = await run.noted(["machine ", f"({machine.address}) is lost"], process, _SOON_S) - cut_s
    meanwhile = await run.steps(_A_FEW, process, _SOON_S) - step
    await asyncio.sleep(max(0.0, cut_s + ORPHANS_S - time.monotonic()))
    left = run.left([machine])
    machine.mend()
    mended_s = time.monotonic()
    ready_s = await engine_ready_s(machine, _SOON_S)
    back_s = await run.noted(["engine ", "joins, with version"], process, _SOON_S)
    return EngineCut(noticed_s, meanwhile, left, back_s - mended_s, back_s - ready_s)


async def _cut_trainer(run: MachineRun, process: Process) -> TrainerCut:
    """With `trainer_lost: end`."""
    (machine,) = run.who("trainer")
    machine.cut()
    cut_s = time.monotonic()
    noticed_s = await run.noted(["machine ", f"({machine.address}) is lost"], process, _SOON_S) - cut_s
    await asyncio.wait_for(process.wait(), _SOON_S)
    ended_s = time.monotonic() - cut_s
    await asyncio.sleep(max(0.0, cut_s + ORPHANS_S - time.monotonic()))
    left = run.left(run.machines)
    machine.mend()
    return TrainerCut(noticed_s, ended_s, run.last_words(), left)


async def _resume(run: MachineRun) -> float:
    """The run goes on, loses its trainer again, waits for it, and comes to its end."""
    async with run.resume("cluster.trainer_lost=wait") as process:
        await run.steps(_A_FEW, process, _SOON_S)
        (machine,) = run.who("trainer")
        machine.cut()
        await run.said("the run goes on from step", process, _SOON_S)
        machine.mend()
        mended_s = time.monotonic()
        await run.steps(1, process, _SOON_S)
        waited_s = time.monotonic() - mended_s
        last = await run.steps(_A_FEW, process, _SOON_S)
        process.terminate()
        await process.wait()
    async with run.resume(f"control.steps={last + 2 * _A_FEW}") as process:
        await finished(process, run.printed)
    return waited_s
