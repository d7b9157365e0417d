"""`freerun doctor --cluster RUN.yaml`: the machines that a run asks for, and every link between them, found by trying.

It listens as the run would, with the same key, and waits for the same nodes; they leave when it is done. Nothing of the
run is started.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from freerun.commands.doctor import Finding
from freerun.config.tree import RunConfig
from freerun.core import ConfigError, MachineLost
from freerun.machine.nodes.agent import own_packages
from freerun.machine.nodes.cluster import NodeHost
from freerun.machine.nodes.questions import LONGEST_TEXT, Questions
from freerun.models.hub import find_model
from freerun.run.hosts import hosts_of

_APART_S = 2.0
"""By how much clocks may differ before times in logs and in shared folders mislead."""
_PULLED = 64 * 2**20
_SLOW_S = 30.0
"""How long a version of the weights may take."""
_MOST_LINKS = 30
"""With more links than so many, only the slowest and those that do not work are told."""
_HERE = "the controller"


async def examine_cluster(config: RunConfig, say: Callable[[str], None]) -> AsyncIterator[Finding]:
    """`say` is told who joins, and who is refused and why."""
    if config.launcher == "local":
        raise ConfigError("launcher is local, so that there is no cluster to try: set launcher=nodes or launcher=ray")
    count = config.resources.machines
    say(f"waits {config.cluster.wait_s:.0f} s for {count} machine(s) to join at {config.cluster.listen}")
    async with hosts_of(config, say) as hosts:
        found = [await hosts.host(machine.name) for machine in await hosts.machines()]
        nodes = [node for node in found if isinstance(node, NodeHost)]
        try:
            for finding in _machines(config, nodes):
                yield finding
            for node in nodes:
                yield await _clock(node)
                yield await _memory(config, node)
            async for finding in _links(config, nodes):
                yield finding
            async for finding in _paths(config, nodes):
                yield finding
        except MachineLost as lost:
            yield Finding(False, f"{lost}: look at what `freerun node` says there")


def _machines(config: RunConfig, nodes: list[NodeHost]) -> Iterator[Finding]:
    for node in nodes:
        machine = node.machine
        names = sorted({gpu.name for gpu in machine.gpus})
        gpus = f", {len(machine.gpus)} GPU(s) ({', '.join(names)})" if machine.gpus else ", no GPU"
        size = f"{machine.processors} processors, {machine.memory / 2**30:.0f} GiB{gpus}"
        yield Finding(True, f"machine {machine.name} at {machine.address}: {size}")
    total = sum(len(node.machine.gpus) for node in nodes)
    if config.resources.gpus is not None:
        enough = total >= config.resources.gpus
        fix = "" if enough else "; lower it, or add machines (on each, CUDA_VISIBLE_DEVICES says which are offered)"
        yield Finding(enough, f"resources.gpus is {config.resources.gpus}, and all machines have {total}{fix}")
    ours = own_packages()
    for package in sorted(ours.keys() | {name for node in nodes for name in node.packages}):
        others = {node.machine.name: node.packages.get(package, "none") for node in nodes}
        different = {name: version for name, version in others.items() if version != ours.get(package, "none")}
        if not different:
            yield Finding(True, f"{package} {ours[package]} on every machine")
            continue
        told = ", ".join(f"{version} on {name}" for name, version in different.items())
        here = ours.get(package, "none")
        yield Finding(False, f"{package}: {here} on {_HERE}, {told}: install the same on every machine")


async def _clock(node: NodeHost) -> Finding:
    sent_s = time.time()
    theirs_s = float(await node.ask("clock"))
    back_s = time.time()
    apart_s, trip_s = theirs_s - (sent_s + back_s) / 2, back_s - sent_s
    trip = f"a question takes {trip_s * 1e3:.1f} ms"
    if abs(apart_s) <= _APART_S + trip_s / 2:
        return Finding(
            True, f"the clock of {node.machine.name} agrees within {abs(apart_s) + trip_s / 2:.3f} s; {trip}"
        )
    ahead = "ahead of" if apart_s > 0 else "behind"
    return Finding(
        False, f"the clock of {node.machine.name} is {abs(apart_s):.0f} s {ahead} {_HERE}'s: set both by NTP; {trip}"
    )


async def _memory(config: RunConfig, node: NodeHost) -> Finding:
    """Two versions of the weights must fit into a machine's shared memory, unless they come by other ways."""
    free, folder = json.loads(await node.ask("shared memory"))
    needed = 2 * _version_bytes(config)
    enough = free > needed
    fix = f", less than two versions of the weights ({needed / 1e9:.1f} GB): containers need --shm-size"
    return Finding(enough, f"{free / 1e9:.1f} GB free in {folder} of {node.machine.name}{'' if enough else fix}")


@dataclass(frozen=True)
class _Link:
    puller: str
    source: str
    reach_s: float = 0.0
    rate: float = 0.0
    """Bytes a second."""
    fault: str = ""


async def _links(config: RunConfig, nodes: list[NodeHost]) -> AsyncIterator[Finding]:
    """The controller reaches every node, and every node every other, each of which listens on a free port."""
    links = [await _tried(None, node) for node in nodes]
    for shift in range(1, len(nodes)):  # in turns in which each sends to one and takes from one
        pairs = zip(nodes, nodes[shift:] + nodes[:shift], strict=True)
        links += await asyncio.gather(*(_tried(puller, source) for puller, source in pairs))
    links.sort(key=lambda link: (link.rate, link.puller))
    told = [link for link in links if link.fault] + [link for link in links if not link.fault][:_MOST_LINKS]
    for link in told:
        yield _finding(link, _version_bytes(config))
    if len(told) < len(links):
        yield Finding(True, f"{len(links) - len(told)} more links work, and are faster")


async def _tried(puller: NodeHost | None, source: NodeHost) -> _Link:
    """From nobody: from here."""
    here, there = puller.machine.name if puller else _HERE, source.machine.name
    where = f"{source.machine.address}:{await source.ask('open port')}"
    try:
        reach_s = float(await _asked(puller, "reach", where))
        return _Link(here, there, reach_s, float(await _asked(puller, "pull", f"{where} {_PULLED}")))
    except ConfigError as error:
        return _Link(here, there, fault=error.message.rpartition(": ")[2])


async def _asked(node: NodeHost | None, what: str, argument: str) -> str:
    if node is not None:
        return await node.ask(what, argument)
    if (said := await Questions("").answer(what, argument)).startswith("!"):
        raise ConfigError(f"{_HERE}: {said[1:]}")
    return said


def _finding(link: _Link, version_bytes: int) -> Finding:
    if link.fault:
        return Finding(
            False,
            f"{link.puller} cannot reach {link.source} ({link.fault}): open all ports between the machines, or give "
            f"{link.source} another of its addresses by `freerun node --address`",
        )
    takes_s = version_bytes / max(link.rate, 1.0)
    rate, reach = f"{link.rate / 2**20:,.0f} MiB/s", f"{link.reach_s * 1e3:.1f} ms"
    speed = f"{link.puller} takes {rate} from {link.source}, which it reaches in {reach}"
    if takes_s <= _SLOW_S:
        return Finding(True, speed)
    return Finding(
        False, f"{speed}: new weights ({version_bytes / 1e9:.1f} GB) take {takes_s:.0f} s; set weights.deltas=true"
    )


async def _paths(config: RunConfig, nodes: list[NodeHost]) -> AsyncIterator[Finding]:
    model = find_model(config.model.path).folder.absolute()
    for node in nodes:
        name, same = node.machine.name, await _same_text(node, model / "config.json")
        fix = f"is not on {name}, or another one is: copy it there, to the same path, or share its folder"
        yield Finding(same, f"the model {model} {f'is on {name}' if same else fix}")
    for file in config.reward.files if config.reward.where == "machines" else []:
        for node in nodes:
            name, there = node.machine.name, json.loads(await node.ask("path", str(file.absolute())))["exists"]
            fix = f"is not on {name}: put it there, to the same path, or set reward.where=controller"
            yield Finding(there, f"the judge {file.absolute()} {f'is on {name}' if there else fix}")
    runs = Path(config.runs).absolute()
    without = ", or checkpoints stay on the trainer's machines, and only they can resume the run"
    async for finding in _shared(runs, nodes, "runs", without):
        yield finding
    if config.weights.folder is not None:
        folder = Path(config.weights.folder).absolute()
        async for finding in _shared(
            folder, nodes, "weights.folder", " between trainer and engines, or set weights.way=tcp"
        ):
            yield finding


async def _same_text(node: NodeHost, file: Path) -> bool:
    """As far as a short file goes; of a long one, that it is there."""
    there = json.loads(await node.ask("path", str(file)))
    long = file.is_file() and file.stat().st_size > LONGEST_TEXT
    return bool(there["exists"] and (long or (file.is_file() and there["text"] == file.read_text(errors="replace"))))


async def _shared(folder: Path, nodes: list[NodeHost], setting: str, without: str) -> AsyncIterator[Finding]:
    """A file that is written here, with a word that nobody else knows, is looked for there."""
    token, existed = secrets.token_hex(), folder.is_dir()
    file = folder / f".freerun-doctor-{token[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(token)
    except OSError as error:
        yield Finding(False, f"{folder} ({setting}) cannot be written here: {error.strerror}")
        return
    try:
        for node in nodes:
            name, seen = node.machine.name, json.loads(await node.ask("path", str(file)))["text"] == token
            fix = f"is not the same folder on {name}: share it{without}"
            yield Finding(seen, f"{folder} ({setting}) {f'is shared with {name}' if seen else fix}")
    finally:
        file.unlink(missing_ok=True)
        if not existed:
            with suppress(OSError):
                folder.rmdir()


def _version_bytes(config: RunConfig) -> int:
    """As large as the model's files."""
    return sum(file.stat().st_size for file in find_model(config.model.path).folder.glob("*.safetensors"))
