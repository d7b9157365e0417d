"""The environment that makes each process of a run use what the plan gives it of this machine's GPUs.

Where generation and training share a GPU they use it at the same time, by MPS; where there is no MPS they take turns.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from freerun.machine.gpus import are_untold
from freerun.machine.mps import Mps, MpsRefused
from freerun.plan.plan import Assignment, Plan
from freerun.run.hosts import Hosts


@asynccontextmanager
async def gpu_environments(
    plan: Plan, hosts: Hosts, note: Callable[[str], None]
) -> AsyncIterator[Mapping[str, dict[str, str]]]:
    """By the names of processes. Says what was decided, and what it costs where something is missing."""
    if text := str(plan.memory):
        note(text)
    if not plan.placement.gpus and not hosts.apart and are_untold():
        note(
            "the driver does not tell how much memory this GPU has (MIG, or the machine's own), so it is not divided: "
            "set engine.memory_share, such as 0.3, or engine and trainer may not both fit"
        )
    async with AsyncExitStack() as stack:
        mps: Mps | None = None
        if plan.placement.shared:
            try:
                if hosts.apart:
                    raise MpsRefused("it is not started on other machines")
                mps = await stack.enter_async_context(Mps(hosts.scratch / "mps"))
            except MpsRefused as why:
                note(
                    f"no MPS ({why}): engine and trainer take turns on the GPU, which cost up to two fifths of what "
                    "both did where we measured it"
                )

        def environment(assignment: Assignment) -> dict[str, str]:
            shared = mps.environment(high_priority=assignment.goes_first) if mps and assignment.sees else {}
            return plan.placement.environment(assignment.sees) | shared

        yield {assignment.process: environment(assignment) for assignment in plan.everyone}
