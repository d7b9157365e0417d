"""`freerun chaos run.yaml`: a real run, parts of which are killed, stopped and starved, and whose disk is filled, at
random moments; and what came of its promises.

The run is a `freerun train` in a process of its own. Whenever it ends too early, `freerun resume` goes on with it: what
a supervisor of a cluster does. When all strikes are done it comes to its end, and its own events say whether each task
was trained on, and none twice. The same run undisturbed says what all that has cost.

What is struck when depends on the seed; on which step that falls, and which worker a part has then, does not.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from freerun.bench.chaos_run import SupervisedRun, undisturbed
from freerun.bench.chaos_schedule import PartKind, What, schedule
from freerun.bench.chaos_storm import Storm
from freerun.bench.chaos_strikes import Striker
from freerun.bench.chaos_verdict import Pace, Verdict, violations
from freerun.bench.run_log import Audited
from freerun.bench.small_disk import small_disk
from freerun.bench.small_disk import unavailable as no_small_disk
from freerun.config.load import load_config
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.observe.folder import RunFolder

E = TypeVar("E", bound=StrEnum)
_DISK_FACTOR, _DISK_MIB = 4, 64
"""The small disk has room for so many times what the undisturbed run left, and so much more."""


@dataclass(frozen=True)
class Asked:
    file: Path
    overrides: Sequence[str]
    kills: int
    every_s: float
    seed: int
    whats: Sequence[What]
    kinds: Sequence[PartKind]
    reference: Path | None = None


def asked_for(
    file: Path,
    overrides: Sequence[str],
    kills: int,
    every_s: float,
    seed: int,
    what: str,
    parts: str,
    reference: Path | None,
) -> Asked:
    """`what` and `parts` are lists with commas."""
    whats, kinds = _named("--what", what, What), _named("--parts", parts, PartKind)
    return Asked(file, overrides, kills, every_s, seed, whats, kinds, reference)


def _named(option: str, said: str, known: type[E]) -> list[E]:
    names = [name.strip() for name in said.split(",") if name.strip()]
    for name in names:
        if name not in list(known):
            raise ConfigError(f"{option} {name}: it is one of {', '.join(known)}")
    return [one for one in known if one in names]


async def chaos(asked: Asked) -> Verdict:
    config, _ = load_config(asked.file, list(asked.overrides))
    if config.launcher != "local":
        raise ConfigError("chaos strikes processes of this machine: set launcher to local")
    whats, kinds = _possible(asked, config)
    made = RunFolder.create(Path(config.runs), f"{config.name}-chaos").path.absolute()
    settings = [str(asked.file), *asked.overrides]
    reference, used_mib = await _reference(asked, config, settings, made)
    with ExitStack() as stack:
        disk, runs = None, made
        if What.DISK in whats:
            disk = stack.enter_context(small_disk(made / "disk", _DISK_FACTOR * used_mib + _DISK_MIB))
            runs = disk.folder
        run = SupervisedRun.of(config, settings, runs, "struck", made)
        strikes = schedule(asked.seed, asked.kills, asked.every_s, whats, kinds)
        storm = Storm(run, strikes, Striker(disk))
        wall_s = await storm.to_the_end()
        verdict = _verdict(storm, config, reference, wall_s)
        if disk:
            shutil.copytree(run.folder.path, made / "struck")
    (made / "chaos.json").write_text(json.dumps(verdict.record(), indent=1))
    print(f"look at {made}")
    return verdict


def _possible(asked: Asked, config: RunConfig) -> tuple[list[What], list[PartKind]]:
    """Without what cannot be done here, which is said."""
    whats, kinds = list(asked.whats), list(asked.kinds)
    if What.DISK in whats and (why := no_small_disk()):
        print(f"disk: left out, this {why}")
        whats.remove(What.DISK)
    if PartKind.AGENT in kinds and not config.rollout.is_agent:
        kinds.remove(PartKind.AGENT)
    if not whats or (not kinds and set(whats) != {What.DISK}):
        raise ConfigError("nothing of what --what and --parts name can be done to this run")
    return whats, kinds


async def _reference(asked: Asked, config: RunConfig, settings: Sequence[str], made: Path) -> tuple[Pace, int]:
    """How the same run does undisturbed, and the MiB that it takes on the disk."""
    if asked.reference:
        return Pace.of_earlier(asked.reference), _mib(asked.reference)
    run = SupervisedRun.of(config, settings, made, "undisturbed", made)
    print("first the same run undisturbed", flush=True)
    pace = Pace.of(run.folder, await undisturbed(run))
    print(f"undisturbed: {pace.steps} steps in {pace.wall_s:.0f} s", flush=True)
    return pace, _mib(run.folder.path)


def _mib(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 2**20 + 1


def _verdict(storm: Storm, config: RunConfig, reference: Pace, wall_s: float) -> Verdict:
    run = storm.run
    return Verdict(
        storm.struck,
        Audited.of(run.folder.path),
        violations(run.folder, config),
        Pace.of(run.folder, wall_s),
        reference,
        storm.memory,
        run.starts,
        storm.hung,
        storm.left,
        storm.early,
    )
