"""What each process of a run gets of this machine's GPUs: which one, how much of its memory, and who goes first.

Where generation and training meet on a GPU they use it at the same time, by MPS; where there is no MPS they take turns.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from freerun.config.tree import RunConfig
from freerun.machine.gpus import are_untold, visible_gpus
from freerun.machine.mps import Mps, MpsRefused
from freerun.plan.memory import MemoryPlan, plan_memory
from freerun.plan.placement import Placement, place, rank_name
from freerun.rewards.config import RewardConfig
from freerun.run.prepare import Prepared


@dataclass(frozen=True)
class GpuAssignment:
    environment: dict[str, str] = field(default_factory=dict)
    share: float | None = None
    """Of its GPU's memory; None without a GPU."""


@dataclass(frozen=True)
class GpuAssignments:
    engines: list[GpuAssignment]
    ranks: list[GpuAssignment]
    evaluator: GpuAssignment | None

    def judging(self, config: RunConfig) -> RewardConfig:
        """The judge, with workers for the processors that are left: one is the controller's."""
        return judging(config, len(self.engines) + bool(self.evaluator), len(self.ranks))


def judging(config: RunConfig, engines: int, ranks: int) -> RewardConfig:
    return config.reward.beside((engines + ranks) * config.resources.threads + 1)


def plan(prepared: Prepared, generates: bool = True, evaluates: bool = True) -> tuple[Placement, MemoryPlan]:
    """Who sits where, before anybody does. What cannot fit is a ConfigError."""
    config = prepared.config
    placement = place(config, visible_gpus(), generates)
    answers = len(prepared.held_out) * config.evaluate.samples if evaluates else 0
    return placement, plan_memory(config, prepared.shape, placement, answers)


@asynccontextmanager
async def assigned_gpus(
    prepared: Prepared, folder: Path, generates: bool, evaluates: bool, note: Callable[[str], None]
) -> AsyncIterator[GpuAssignments]:
    """`folder` is private to the run. Says what was decided, and what it costs where something is missing."""
    placement, memory_plan = plan(prepared, generates, evaluates)
    if text := str(memory_plan):
        note(text)
    if not placement.gpus and are_untold():
        note(
            "the driver does not tell how much memory this GPU has (MIG, or the machine's own), so it is not divided: "
            "set engine.memory_share, such as 0.3, or engine and trainer may not both fit"
        )
    async with AsyncExitStack() as stack:
        mps: Mps | None = None
        if placement.shared:
            try:
                mps = await stack.enter_async_context(Mps(folder / "mps"))
            except MpsRefused as why:
                note(
                    f"no MPS ({why}): engine and trainer take turns on the GPU, which cost up to two fifths of what "
                    "both did where we measured it"
                )

        def seat(name: str, sees: list[int], first: bool) -> GpuAssignment:
            both = mps.environment(high_priority=first) if mps and sees else {}
            return GpuAssignment(placement.environment(sees) | both, memory_plan.share(name))

        def beside(name: str, sees: list[int]) -> GpuAssignment:
            return seat(name, sees, first=placement.several_engines(sees))

        yield GpuAssignments(
            [seat(f"engine {i}", placement.engine_sees(gpu), True) for i, gpu in enumerate(placement.engines)],
            [beside(rank_name(rank), [] if gpu is None else [gpu]) for rank, gpu in enumerate(placement.ranks)],
            beside("evaluator", placement.engine_sees(placement.evaluator)) if evaluates else None,
        )
