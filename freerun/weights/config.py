"""The `weights` section: how new weights get from the trainer to the engines."""

from typing import Literal

from freerun.core.section import Section, knob


class WeightsConfig(Section):
    way: Literal["auto", "ipc", "shm", "nccl", "tcp", "files"] = knob(
        "auto",
        "auto: CUDA IPC between GPUs of a machine, shared memory within a machine, NCCL between GPUs of several "
        "machines, TCP else. files: through weights.folder.",
    )
    deltas: bool = knob(False, "Send only what has changed since the version before; for slow links.")
    folder: str | None = knob(None, "With way: files, a folder that trainer and engines share.")
