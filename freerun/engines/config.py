"""The engine's settings."""

from typing import Literal

from freerun.core.section import Section, knob
from freerun.machine.device import Device

OnUpdate = Literal["recompute", "keep", "auto", "finish"]
"""What becomes of the answers that are running when new weights come."""


EngineKind = Literal["embedded", "vllm", "sglang"]


Weights = Literal["same", "fp8"]


class EngineConfig(Section):
    kind: EngineKind = knob("embedded", "Freerun's own engine, or vLLM or SGLang, each in an environment of its own.")
    urls: tuple[str, ...] = knob(
        (), "Engines that run already, by URL, instead of ones that the run starts; their key is FREERUN_ENGINE_KEY."
    )
    tensor_parallel: int = knob(1, "GPUs (or CPU processes) that one vLLM or SGLang engine is spread over.", ge=1)
    python: str | None = knob(
        None, "The Python in whose environment vLLM or SGLang is installed; empty: engines/KIND/bin/python."
    )
    max_running: int = knob(64, "Answers decoded together.", ge=1)
    cache_tokens: int | None = knob(
        None, "Tokens the key/value cache holds; empty: 65,536 on a CPU, what fits memory_share on a GPU.", ge=1
    )
    memory_share: float | None = knob(
        None,
        "Share of the GPU's memory that the engine may fill, weights included; empty: 0.9 for one that has the GPU to "
        "itself, what it needs and the others leave in a run.",
        gt=0,
        le=1,
    )
    on_update: OnUpdate = knob(
        "recompute",
        "New weights: rebuild the cache of running answers with them (recompute), keep what the old ones made, choose "
        "for each answer by what either costs (auto), or let running answers finish first, while no other begins.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "Type of the engine's weights and cache; auto: bfloat16 on a GPU, float32 on a CPU."
    )

    weights: Weights = knob(
        "same",
        "What the large matrices of layers are kept and multiplied in: the same type as all else, or fp8, 8 bits, "
        "which samples faster, from a distribution that is a little off. Log-probabilities are those of what was "
        "sampled from, so training corrects for it.",
    )

    def on(
        self, device: Device, *, block_tokens: int | None = None, step_tokens: int | None = None, burst: int = 4
    ) -> "ResolvedEngineConfig":
        """With a value for everything that the device decides. Benchmarks and tests may decide otherwise what is no
        setting of a run."""
        gpu = device == "cuda"
        chosen = {
            "device": device,
            "dtype": ("bfloat16" if gpu else "float32") if self.dtype == "auto" else self.dtype,
            "block_tokens": block_tokens or (64 if gpu else 16),
            "step_tokens": step_tokens or (8_192 if gpu else 2_048),
            "burst": burst if gpu else 1,
            "cache_tokens": self.cache_tokens or (None if gpu else 65_536),
            "memory_share": 0.9 if self.memory_share is None else self.memory_share,
        }
        return ResolvedEngineConfig(**(dict(self) | chosen))


class ResolvedEngineConfig(EngineConfig):
    """What the engine works with. `cache_tokens` may still be empty: how much fits a GPU is seen when the weights are
    there."""

    device: Device
    dtype: Literal["float32", "bfloat16"]
    block_tokens: int
    """Tokens in one block of the cache."""
    step_tokens: int
    """Most tokens in one forward pass; longer prompts are read in several."""
    burst: int
    """Most tokens decoded on a GPU before the host looks at them; fewer where a token takes long."""
    memory_share: float
    spare_bytes: int = 2**30
    """Bytes of the GPU that are left to what the allocator and the kernels keep."""
    fetched_in_place: bool = False
    """New weights are read where the trainer has put them, on this GPU: there is no copy of them while they wait."""

    def on(
        self, device: Device, *, block_tokens: int | None = None, step_tokens: int | None = None, burst: int = 4
    ) -> "ResolvedEngineConfig":
        """It is resolved already."""
        return self
