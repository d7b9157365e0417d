"""Plans for mixtures of experts: all experts take memory, those of a token take time and leave activations."""

import pytest

from freerun.engines.config import EngineConfig
from freerun.engines.embedded import memory
from freerun.models.published import shape_to_plan_by
from freerun.train import needs
from freerun.train.config import TrainConfig

SHAPE, _ = shape_to_plan_by("Qwen/Qwen3-30B-A3B-Thinking-2507")
DENSE, _ = shape_to_plan_by("Qwen/Qwen3-32B")


def test_all_experts_are_held_and_a_few_compute() -> None:
    train = TrainConfig().on("cuda", ranks=1)
    weights = needs.standing_bytes(SHAPE, train)
    assert weights / SHAPE.num_parameters == pytest.approx(18, rel=0.05)
    assert SHAPE.active_parameters < SHAPE.num_parameters / 8
    engine = EngineConfig(max_running=64).on("cuda")
    assert memory.working_bytes(SHAPE, 2, engine, 2 * SHAPE.num_parameters) > 2 * SHAPE.num_parameters


def test_activations_are_those_of_a_tokens_experts() -> None:
    """At least what the backward pass keeps: in each layer what its 8 experts made first, and the residual stream."""
    train = TrainConfig().on("cuda", ranks=1)
    per_token = needs.bytes_per_token(SHAPE, train)
    kept = 2 * 48 * (2 * 8 * 768 + 4 * 2048)
    assert kept < per_token < 4 * kept
    assert per_token < needs.bytes_per_token(DENSE, train)
    recomputed = needs.bytes_per_token(SHAPE, TrainConfig(recompute=True).on("cuda", ranks=1))
    assert 2 * 3 * 8 * 2048 < recomputed < per_token / 2
