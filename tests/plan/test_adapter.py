"""What is planned where an adapter is trained: what versions are, who has the base, how much memory that takes."""

import pytest

from freerun.core import ConfigError
from freerun.engines.embedded.memory import working_bytes
from freerun.machine.gpus import Gpu
from freerun.models.shape import AdapterShape
from freerun.plan.plan import Plan
from tests.plan.test_placement import MEDIUM, config, gpus, planned

LORA = "train.lora.rank=16"
GIB = 2**30


def bases(plan: Plan) -> dict[str, str]:
    return {one.process: one.base for one in plan.everyone}


def standing(plan: Plan, name: str) -> int:
    (share,) = (share for share in plan.memory.shares if share.need.name == name)
    return share.need.least


def test_the_base_is_on_one_gpu_once() -> None:
    adapted, full = planned(config(LORA), MEDIUM, gpus(1)), planned(config(), MEDIUM, gpus(1))
    assert bases(adapted) == {"engine 0": "lent", "trainer": "lent"}
    assert bases(full) == {"engine 0": "own", "trainer": "own"}
    assert adapted.adapter == AdapterShape(16, 32.0)
    assert adapted.way is not None
    assert adapted.way.adapter
    base = 2 * MEDIUM.num_parameters
    saved = standing(full, "engine 0") - standing(adapted, "engine 0")
    assert base - 2**28 < saved < base, "but for the adapter, all of it"
    engine = adapted.engine_settings(adapted.engines[0])
    assert engine.fetched_in_place
    beside = working_bytes(MEDIUM, 2, engine.model_copy(update={"fetched_in_place": False}), 1_000)
    assert working_bytes(MEDIUM, 2, engine, 1_000) == beside - 1_000


def test_engines_on_other_gpus_have_their_own() -> None:
    plan = planned(config(LORA), MEDIUM, gpus(4))
    assert set(bases(plan).values()) == {"own"}
    assert not plan.engine_settings(plan.engines[0]).fetched_in_place


def test_on_a_cpu_it_is_a_file_and_engines_of_other_makers_get_merged_weights() -> None:
    plan = planned(config(LORA), MEDIUM, [])
    assert set(bases(plan).values()) == {"file"}
    given = planned(config(LORA, "engine.urls=[http://one:8000]"), MEDIUM, [])
    assert given.adapter is None
    assert given.way is not None
    assert not given.way.adapter
    assert set(bases(given).values()) == {"own"}


def test_fewer_bits_take_less_and_say_where_they_do_not_work() -> None:
    sizes = [
        standing(planned(config(LORA, f"train.lora.bits={bits}"), MEDIUM, gpus(1)), "trainer") for bits in (16, 8, 4)
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    for other in ("engine.urls=[http://one:8000]", "train.ranks=2"):
        with pytest.raises(ConfigError, match=r"train\.lora\.bits=8 works with one trainer rank"):
            planned(config(LORA, "train.lora.bits=8", other), MEDIUM, gpus(2))


def test_a_run_takes_no_more_of_a_gpu_than_it_may() -> None:
    large = [Gpu("GPU-0", "GPU", 140 * GIB, 139 * GIB)]
    plan = planned(config(LORA, "resources.gpu_memory=24"), MEDIUM, large)
    assert plan.memory.taken(0) <= 24 * GIB
    assert plan.engine.step_tokens == 2_048, "as on a small one"
    assert planned(config(LORA), MEDIUM, large).memory.taken(0) > 24 * GIB
    with pytest.raises(ConfigError, match="to give"):
        planned(config("resources.gpu_memory=3"), MEDIUM, large)


def test_what_is_computed_again_takes_less() -> None:
    sizes = [
        standing(
            planned(config(LORA, f"train.recompute={how}", "rollout.max_new_tokens=4000"), MEDIUM, gpus(1)), "trainer"
        )
        for how in ("false", "true", "all", "offload")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4
