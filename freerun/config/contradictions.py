"""What cannot hold between settings of machines, engines and weights, each in one line that names the fix."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from freerun.rewards.plain import TEACHER
from freerun.train.losses import find_objective

if TYPE_CHECKING:
    from freerun.config.tree import RunConfig


def across_machines(config: "RunConfig") -> str | None:
    """The first contradiction, None if there is none."""
    return next((wrong for found in (_machines, _engines, _weights) for wrong in found(config)), None)


def about_rewards(config: "RunConfig") -> str | None:
    """Whether the rewards are a teacher's, where there is none, or where somebody must judge."""
    if TEACHER not in [part.name for part in config.reward.parts]:
        return None
    if len(config.reward.parts) > 1:
        return "reward.judge: teacher is no judge to add others to: leave it out, or the others"
    if not find_objective(config.train.objective).taught:
        return "reward.judge is teacher, but nobody teaches: set train.objective=distill, or choose another judge"
    if config.evaluate.every or config.sft.until is not None:
        return (
            "held-out answers need a judge, and reward.judge is teacher, who reads only what is trained on: set "
            "reward.judge, or unset evaluate.every and sft.until"
        )
    return None


def _machines(config: "RunConfig") -> Iterator[str]:
    resources = config.resources
    if config.launcher == "local" and resources.machines > 1:
        yield f"resources.machines is {resources.machines}, but launcher is local: set launcher=nodes or launcher=ray"
    if config.launcher == "local" and config.reward.where == "machines":
        yield "reward.where is machines, but launcher is local, so there is only this one: unset one of them"
    if resources.gpus and resources.gpus < resources.machines:
        yield (
            f"resources.gpus is {resources.gpus}, fewer than resources.machines={resources.machines}, so that some "
            "would have nothing to do: raise it, or lower resources.machines"
        )


def _engines(config: "RunConfig") -> Iterator[str]:
    engine = config.engine
    if engine.kind == "embedded":
        if engine.tensor_parallel > 1:
            yield (
                f"engine.tensor_parallel is {engine.tensor_parallel}, but the embedded engine is on one GPU: set "
                "engine.kind=vllm or engine.kind=sglang, or unset it"
            )
        if engine.python:
            yield "engine.python is the Python of vLLM or SGLang: set engine.kind, or unset it"
    elif engine.on_update == "auto":
        yield (
            f"engine.on_update is auto, which {engine.kind} cannot do for single answers: set "
            "engine.on_update=recompute or keep"
        )
    if engine.weights == "fp8":
        if engine.kind != "embedded":
            yield f"engine.weights=fp8 is for the embedded engine, and engine.kind is {engine.kind}: unset one of them"
        if config.train.lora.rank:
            yield "engine.weights=fp8 and train.lora do not go together: unset one of them"
    if not engine.urls:
        return
    for url in engine.urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            yield f"engine.urls: {url!r} is no URL of an engine, such as http://10.0.0.7:8000"
    if len(set(engine.urls)) < len(engine.urls):
        yield "engine.urls names an engine twice: remove one"
    if config.resources.engines:
        yield "resources.engines is for engines that the run starts, and engine.urls has others that run: unset it"
    is_narrow = engine.weights != "same"
    asked = {"tensor_parallel": engine.tensor_parallel > 1, "python": engine.python, "weights": is_narrow}
    for key in (key for key, value in asked.items() if value):
        yield f"engine.{key} is for engines that the run starts, and engine.urls has others that run: unset it"


def _weights(config: "RunConfig") -> Iterator[str]:
    weights = config.weights
    if weights.way == "files" and not weights.folder:
        yield "weights.way is files, but there is no folder for them: set weights.folder to one that machines share"
    if weights.folder and weights.way != "files":
        yield f"weights.folder is for weights.way=files, and weights.way is {weights.way}: set it, or unset the folder"
    if weights.way in ("ipc", "shm") and config.resources.machines > 1:
        yield (
            f"weights.way is {weights.way}, which stays within a machine, and resources.machines is "
            f"{config.resources.machines}: set weights.way=auto"
        )
