"""Plans for engines whose weights are of 8 bits: less memory for them, and which models have none."""

import pytest

from freerun.core import ConfigError
from freerun.models.published import shape_to_plan_by
from freerun.plan.plan import Plan
from tests.plan.test_placement import MEDIUM, config, gpus, planned

FP8 = "engine.weights=fp8"


def standing(plan: Plan, name: str) -> int:
    (share,) = (share for share in plan.memory.shares if share.need.name == name)
    return share.need.least


@pytest.mark.parametrize("machines", [1, 2])
def test_an_engine_needs_less_by_half_of_its_layers(machines: int) -> None:
    wide, narrow = planned(config(), MEDIUM, gpus(machines)), planned(config(FP8), MEDIUM, gpus(machines))
    saved = standing(wide, "engine 0") - standing(narrow, "engine 0")
    inside = MEDIUM.num_parameters - MEDIUM.vocab_size * MEDIUM.hidden
    assert 0.94 * inside < saved < inside, "a byte of every number, less the scales, but for the attention's output"
    assert standing(wide, "trainer") == standing(narrow, "trainer")
    assert narrow.engine_settings(narrow.engines[0]).weights == "fp8"


def test_mixtures_of_experts_are_refused() -> None:
    mixture, _ = shape_to_plan_by("Qwen/Qwen3-30B-A3B-Thinking-2507")
    with pytest.raises(ConfigError, match=r"engine\.weights=fp8 does not know mixtures of experts"):
        planned(config(FP8), mixture, gpus(8))
