"""Machines that are not here, to plan a run by."""

from freerun.config.tree import RunConfig
from freerun.machine.gpus import Gpu
from freerun.machine.host import processors
from freerun.machine.machines import Machine, this_machine

GPU_GIB = 80.0
"""The memory of an imagined GPU, unless told."""
_MACHINE_BYTES = 2**40


def imagined_machines(machines: int, gpus: int, gpu_gib: float = GPU_GIB) -> list[Machine]:
    """So many machines with so many empty GPUs each."""
    size = int(gpu_gib * 2**30)
    return [
        Machine(
            *(f"machine {number}", f"machine-{number}", processors(), _MACHINE_BYTES),
            [Gpu(f"GPU-{number}-{index}", "GPU", size, size) for index in range(gpus)],
        )
        for number in range(1, machines + 1)
    ]


def machines_to_plan_by(config: RunConfig) -> list[Machine]:
    """This one, or those that the configuration waits for, imagined: `resources.gpus` divided evenly among them."""
    resources = config.resources
    if config.launcher == "local" and resources.gpus is None:
        return [this_machine()]
    return imagined_machines(resources.machines, -(-(resources.gpus or 0) // resources.machines))
