"""What to know of a run before it begins, though nothing of it is wrong: a line each, for its notes and `--dry-run`."""

from freerun.machine.device import choose_device
from freerun.run.prepare import Prepared


def notes_of(prepared: Prepared) -> list[str]:
    found = [prepared.held_out_warning, untold_experts(prepared), prepared.unused_warning]
    return [note for note in found if note]


def untold_experts(prepared: Prepared) -> str | None:
    """Where the engine does not say which experts tokens went through, though the trainer would go by that."""
    config = prepared.config
    if config.engine.kind != "vllm" or config.engine.urls or not prepared.shape.experts:
        return None
    has_gpu = None if config.launcher == "local" else bool(config.resources.gpus)
    if not config.train.replay_router or choose_device(has_gpu) == "cuda":
        return None
    return (
        "vLLM tells on GPUs alone which experts tokens went through, so the trainer's router chooses: "
        "train.replay_router has no effect"
    )
