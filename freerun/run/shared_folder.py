"""Do the trainer's machines see the run's folder? They write its checkpoints there, and this machine reads them."""

import json
from collections.abc import Callable
from secrets import token_hex

from freerun.machine.nodes.cluster import NodeHost
from freerun.observe.folder import RunFolder
from freerun.plan.plan import Plan
from freerun.run.hosts import Hosts


async def note_unshared(hosts: Hosts, folder: RunFolder, plan: Plan, note: Callable[[str], None]) -> None:
    """Say so, once, where one does not: the run can do without, and can only be resumed with the same machines."""
    seen, secret = folder.path.absolute() / f".seen-{token_hex(8)}", token_hex()
    unshared = []
    try:
        seen.write_text(secret)
        for name in dict.fromkeys(rank.machine for rank in plan.ranks):
            host = await hosts.host(name)
            if isinstance(host, NodeHost) and json.loads(await host.ask("path", str(seen)))["text"] != secret:
                unshared.append(name)
    finally:
        seen.unlink(missing_ok=True)
    if unshared:
        note(
            f"{folder.path} is not shared with the trainer's machine {' and '.join(unshared)}: checkpoints stay there, "
            "and this run can be resumed with the same machines only; put `runs` into a folder that the controller's "
            "and the trainer's machines share"
        )
