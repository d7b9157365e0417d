"""Machines that are not here, to plan a run by."""

from freerun.config.preset import preset_gpu_gib
from freerun.config.tree import RunConfig
from freerun.machine.gpus import Gpu
from freerun.machine.host import processors
from freerun.machine.machines import Machine, this_machine

GPU_GIB = 80.0
"""The memory of an imagined GPU, where neither the user nor a preset says."""
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
    return imagined_machines(resources.machines, gpus_a_machine(config), gpu_gib_of(config))


def gpus_a_machine(config: RunConfig) -> int:
    return -(-(config.resources.gpus or 0) // config.resources.machines)


def gpu_gib_of(config: RunConfig) -> float:
    """The memory of the GPUs that the preset ran on."""
    return (preset_gpu_gib(config.preset) if config.preset else None) or GPU_GIB
