"""The engine's knobs."""

from typing import Literal

from freerun.core.section import Section, knob


class EngineConfig(Section):
    max_running: int = knob(64, "Answers decoded together.", ge=1)
    cache_tokens: int | None = knob(
        None, "Tokens the key/value cache holds; empty: 65,536 on a CPU, what fits memory_share on a GPU.", ge=1
    )
    memory_share: float = knob(0.9, "Share of the GPU's memory that the engine may fill, weights included.", gt=0, le=1)
    block_tokens: int | None = knob(None, "Tokens in one block of the cache; empty: 16 on a CPU, 64 on a GPU.", ge=1)
    burst: int = knob(8, "Tokens decoded on a GPU before the host looks at them.", ge=1)
    step_tokens: int = knob(2_048, "Most tokens in one forward pass; longer prompts are read in pieces.", ge=1)
    on_update: Literal["recompute", "keep"] = knob(
        "recompute", "New weights: rebuild the cache of running answers with them, or keep what the old ones made."
    )
    device: Literal["auto", "cpu", "cuda"] = knob("auto", "Where the engine runs; auto: on a GPU if there is one.")
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "Type of the engine's weights and cache; auto: bfloat16 on a GPU, float32 on a CPU."
    )
    threads: int = knob(1, "CPU threads of the engine process.", ge=1)
