"""`freerun bench controller --namespaces`: the same controller when engines and trainer are on other machines.

Each machine is a network namespace (`namespaces.py`): one for the controller, one for the trainer, which is reached by
TCP, and several for engines, which are forked on each from one process. The same work on loopback, in the same run,
with as many processes, is what it is compared with.
"""

import json
from dataclasses import asdict

from rich.console import Console

from freerun.bench.controller import Measured, Site, Work, measure, show
from freerun.bench.namespaces import in_network, machines
from freerun.machine.machines import LOOPBACK
from freerun.machine.scratch import scratch_folder

LOCAL, APART = "loopback", "namespaces"


async def bench_controller_on_machines(work: Work, places: int, json_only: bool) -> dict[str, Measured]:
    """On loopback, and with the engines on so many machines."""
    console = Console(stderr=json_only, highlight=False)
    names = [f"engines-{place}" for place in range(places)]
    with (
        console.status("streams scripted answers between machines"),
        machines("controller", "trainer", *names) as (controller, trainer, *others),
        scratch_folder() as scratch,
    ):
        local = Site([(LOOPBACK, None)] * places)
        apart = Site([(one.address, one.pid) for one in others], (trainer.address, trainer.pid))
        measured = {LOCAL: await measure(LOCAL, work, scratch, {}, local)}
        with in_network(controller.pid):
            measured[APART] = await measure(APART, work, scratch, {}, apart)
    show(work, measured, console)
    ratio, by_core = _ratio(measured, "tokens_per_s"), _ratio(measured, "tokens_per_core_s")
    console.print(
        f"{work.engines} engines on {places} machines: {ratio:.2f} of the tokens/s on loopback, {by_core:.2f} by core"
    )
    runs = [asdict(one) for one in measured.values()]
    record = {"bench": "controller on machines", **asdict(work), "machines": places, "runs": runs}
    print(json.dumps(record | {"ratio": ratio, "ratio_by_core": by_core}))
    return measured


def _ratio(measured: dict[str, Measured], figure: str) -> float:
    return float(getattr(measured[APART], figure) / getattr(measured[LOCAL], figure))
