"""The launcher `ray`: `python -m freerun.run.ray SETTINGS` has Ray start a node on each machine that a run wants.

Ray does nothing else: it reserves machines (a placement group), and starts an actor on each, whose only work is to run
`freerun node` and to end it with itself. From then on the controller and its nodes speak to each other.

It is a process of its own beside the controller, so that neither Ray's threads and signals nor the abort of a driver
whose Ray cluster is gone reach a run. It prints what the run's notes are to say, one line each, and ends with the
controller. It is the only file that imports ray.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from freerun.core import ConfigError, FreerunError
from freerun.machine.nodes.key import KEY
from freerun.machine.parent import announce_ready, announce_refusal, end_with_parent

NO_RAY = "launcher: ray needs Ray, which is not installed: pip install 'freerun[ray]'"
_SAY_AFTER_S = 2.0
"""How long machines may take to be reserved before the run's notes say what is waited for."""
_AGAIN_S = 10.0
"""The pause before a node that ended is started again."""
_WAIT_S, _CONNECT_S = 1.0, 5.0
_SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class RaySettings:
    machines: int
    gpus: int | None
    """Over all machines; None: all that they have."""
    host: str
    """Where nodes find the controller; empty: at the address by which Ray knows this machine."""
    port: int
    wait_s: float
    """How long machines may take to be reserved."""


class NodeKeeper:
    """The actor: runs a node on its machine, tied to it by the node's standard input."""

    def run(self, join: str, key: str) -> tuple[int, str]:
        """Until the node ends: its exit code, and the last line that it printed. The key is an argument because an
        actor's environment is shown in Ray's dashboard."""
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        with subprocess.Popen(
            [sys.executable, "-m", "freerun.cli.main", "node", "--join", join, "--end-with-stdin"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | {KEY: key},
            text=True,
        ) as node:
            assert node.stderr is not None
            last = ""
            for line in node.stderr:
                print(line, end="", file=sys.stderr)
                last = line.strip() or last
            return node.wait(), last


def start_nodes(settings: RaySettings, key: str) -> NoReturn:
    """Returns never: nodes that end are started again. Raises ConfigError when Ray is not there, or has no room."""
    ray = _connected()
    from ray.util import get_node_ip_address, placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": 1.0} | ({"GPU": float(gpus)} if (gpus := _gpus_each(ray, settings)) else {})
    group = placement_group([bundle] * settings.machines, strategy="STRICT_SPREAD")
    _reserve(ray, group, bundle, settings)
    join = f"{settings.host or get_node_ip_address()}:{settings.port}"
    keepers = [
        ray.remote(NodeKeeper)
        .options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        .remote()
        for index in range(settings.machines)
    ]
    print(f"Ray starts a node on {settings.machines} machine(s) for {join}", flush=True)
    announce_ready(join)
    _keep(ray, keepers, join, key, final_until_s=time.monotonic() + settings.wait_s)


def _connected() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(NO_RAY) from None
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS is {address}, which is for clients from outside: run the controller on a machine of the Ray "
            "cluster, with RAY_ADDRESS=HOST:6379 or none"
        )
    at = f" at {address}" if address else ""
    try:
        if address and address != "auto":
            _reach(address)
        ray.init(address="auto", log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray has many
        if "AuthToken" in "".join(traceback.format_exception(error)):
            raise ConfigError(
                f"the Ray cluster{at} does not take this run's token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH "
                "as on its machines"
            ) from None
        raise ConfigError(
            f"launcher: ray finds no Ray cluster{at} ({_first_line(error)}): run `ray start` on this machine, with "
            "--head or --address, or set RAY_ADDRESS"
        ) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return ray


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _gpus_each(ray: Any, settings: RaySettings) -> int:
    if settings.gpus is not None:
        return -(-settings.gpus // settings.machines)
    most = sorted((int(node["Resources"].get("GPU", 0)) for node in _alive(ray)), reverse=True)
    return most[settings.machines - 1] if len(most) >= settings.machines else 0


def _reserve(ray: Any, group: Any, bundle: dict[str, float], settings: RaySettings) -> None:
    """Wait for the machines. A group that cannot be had waits silently, so this says what is asked for and what there
    is: after a moment, and when time is up."""
    if group.wait(min(_SAY_AFTER_S, settings.wait_s)):
        return
    print(f"waits for machines of Ray: {_asked_and_available(ray, bundle, settings.machines)}", flush=True)
    if not group.wait(max(settings.wait_s - _SAY_AFTER_S, 0)):
        raise ConfigError(
            f"Ray did not give the run its machines in {settings.wait_s:.0f} s: "
            f"{_asked_and_available(ray, bundle, settings.machines)}; add machines to the Ray cluster, or lower "
            "resources.machines or resources.gpus"
        )


def _asked_and_available(ray: Any, bundle: dict[str, float], machines: int) -> str:
    there = [f"{node['NodeManagerAddress']} ({_amounts(node['Resources'])})" for node in _alive(ray)]
    free = _amounts(ray.available_resources())
    return (
        f"the run asks for {machines} machine(s) with {_amounts(bundle)} each; the cluster has {len(there)}: "
        f"{', '.join(there)}; free in all: {free}"
    )


def _amounts(resources: dict[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _keep(ray: Any, keepers: list[Any], join: str, key: str, final_until_s: float) -> NoReturn:
    """A node that fails at the beginning ends the run, with the cause; one that ends later is started again."""
    running = {keeper.run.remote(join, key): keeper for keeper in keepers}
    again: list[tuple[float, Any]] = []
    while True:
        if not running:
            time.sleep(_WAIT_S)
        for ref in ray.wait(list(running), timeout=_WAIT_S)[0] if running else []:
            keeper = running.pop(ref)
            try:
                code, said = ray.get(ref)
            except Exception as error:  # Ray's
                code, said = 1, f"Ray could not start it: {_first_line(error)}"
            if code and time.monotonic() < final_until_s:
                raise ConfigError(f"a node that Ray started has ended: {said.removeprefix('freerun: ')}")
            print(f"a node that Ray started has ended with code {code} ({said}) and is started again", flush=True)
            again.append((time.monotonic() + _AGAIN_S, keeper))
        while again and again[0][0] < time.monotonic():
            _, keeper = again.pop(0)
            running[keeper.run.remote(join, key)] = keeper


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


if __name__ == "__main__":
    end_with_parent()
    try:
        start_nodes(msgspec.json.decode(sys.argv[1], type=RaySettings), os.environ.pop(KEY))
    except FreerunError as error:
        announce_refusal(error)
        traceback.print_exc()
        sys.exit(1)  # Ray ends what belongs to a driver that has ended
