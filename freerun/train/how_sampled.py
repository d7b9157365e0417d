"""How engines sampled, beyond the temperature: what the trainer needs to know to tell where drift comes from.

Importable without torch.
"""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class HowSampled:
    top_k: int = 0
    """Only the k likeliest tokens could be sampled; 0: all."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability could be; of those that `top_k` left."""
    keeps_cache: bool = False
    """Answers went on with the cache that older weights had made (`engine.on_update: keep`, or some under `auto`)."""

    @property
    def cuts_off(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0


ALL = HowSampled()
"""Every token could be sampled, by one version's weights and caches."""
