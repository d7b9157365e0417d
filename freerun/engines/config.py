"""The engine's knobs."""

from dataclasses import dataclass
from typing import Literal

from freerun.core.section import Section, knob

OnUpdate = Literal["recompute", "keep", "finish"]
"""What becomes of the answers that are running when new weights come."""


@dataclass(slots=True, frozen=True)
class Tuning:
    """What an engine decides for itself. Benchmarks and tests may decide otherwise; a run's file cannot."""

    block_tokens: int | None = None
    """Tokens in one block of the cache; None: 16 on a CPU, 64 on a GPU."""
    step_tokens: int | None = None
    """Most tokens in one forward pass, longer prompts being read in several; None: 2,048 on a CPU, 8,192 on a GPU."""
    burst: int = 4
    """Most tokens decoded on a GPU before the host looks at them; fewer where a token takes long."""

    def tokens_in_a_block(self, on_gpu: bool) -> int:
        return self.block_tokens or (64 if on_gpu else 16)

    def tokens_in_a_step(self, on_gpu: bool) -> int:
        return self.step_tokens or (8_192 if on_gpu else 2_048)


TUNING = Tuning()


class EngineConfig(Section):
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
        "New weights: rebuild the cache of running answers with them, keep what the old ones made, or let running "
        "answers finish first, while no other begins.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "Type of the engine's weights and cache; auto: bfloat16 on a GPU, float32 on a CPU."
    )

    @property
    def share(self) -> float:
        return 0.9 if self.memory_share is None else self.memory_share
