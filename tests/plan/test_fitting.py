"""Whether a run fits machines that are not here, and what would."""

import pytest

from freerun.core import ConfigError
from freerun.models.published import shape_to_plan_by
from freerun.plan.fitting import Fitting, fit
from freerun.plan.imagined import imagined_machines, machines_to_plan_by
from freerun.plan.lengths import Lengths
from freerun.plan.memory import Demand, plan_memory
from freerun.plan.placement import place
from freerun.plan.plan import make_plan
from freerun.plan.update import update_in_words
from tests.plan.test_placement import LARGE, MEDIUM, config, machine

LENGTHS = Lengths(1_024, 8_192)


def fitted(model: str, machines: int, gpus: int, *overrides: str, gpu_gib: float = 80.0) -> Fitting:
    run = config("launcher=nodes", "engine.kind=sglang", *overrides)
    return fit(run, shape_to_plan_by(model)[0], LENGTHS, 0, imagined_machines(machines, gpus, gpu_gib))


def test_what_fits_has_a_plan() -> None:
    fitting = fitted("Qwen/Qwen3-8B", 4, 8)
    assert fitting.plan
    assert (len(fitting.plan.engines), len(fitting.plan.ranks)) == (24, 8)
    assert fitting.would == []


def test_what_does_not_fit_is_told_with_what_would() -> None:
    given = ("engine.tensor_parallel=4", "train={micro_batch_tokens: 32768, recompute: true, context_parallel: 4}")
    fitting = fitted("Qwen/Qwen3-32B", 2, 8, *given)
    assert fitting.plan is None
    assert fitting.why_not.startswith("machine 2: GPU 8")
    assert (len(fitting.placement.engines), len(fitting.placement.ranks)) == (2, 8)
    by_setting, by_length, by_model = fitting.would
    changes = by_setting.removeprefix("it fits with ").split()
    assert fitted("Qwen/Qwen3-32B", 2, 8, *given, *changes).plan, "what it says is so"
    assert by_length.startswith("it fits with train.micro_batch_tokens=null rollout.max_new_tokens=")
    largest = by_model.removeprefix("the largest model that fits is ").split(",")[0]
    assert fitted(largest, 2, 8, *given).plan


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ConfigError, match="one a rank"):
        fitted("Qwen/Qwen3-8B", 1, 4, "train.ranks=8")


def test_sequences_that_ranks_share_need_less_of_each() -> None:
    def of_a_rank(*overrides: str) -> int:
        run = config("launcher=nodes", "train.micro_batch_tokens=8192", *overrides)
        plan = make_plan(run, LARGE, LENGTHS, machines=imagined_machines(2, 8, 140))
        return next(share.need.least for share in plan.memory.shares if share.need.name == "trainer 1")

    assert of_a_rank("train.context_parallel=4") < of_a_rank("train.context_parallel=2") < of_a_rank()
    assert of_a_rank("train.optimizer_state=offload") < of_a_rank()
    run = config("launcher=nodes", "train.context_parallel=8")
    with pytest.raises(ConfigError, match="does not divide the model's 12 heads"):
        make_plan(run, MEDIUM, LENGTHS, machines=imagined_machines(2, 8))


def test_machines_hold_copies_where_the_weights_are_shared_out_within_each() -> None:
    def of_a_rank(shard: str) -> int:
        run = config("launcher=nodes", "train.ranks=16", f"train.shard={shard}", "train.micro_batch_tokens=9216")
        plan = make_plan(run, LARGE, LENGTHS, machines=imagined_machines(3, 8, 140))
        return next(share.need.least for share in plan.memory.shares if share.need.name == "trainer 1")

    assert of_a_rank("machine") - of_a_rank("all") == pytest.approx(18 * LARGE.num_parameters / 16, rel=0.01)


def test_an_optimizer_in_the_machines_memory_must_fit_there() -> None:
    run = config("train.optimizer_state=offload", "train.ranks=1")
    train, engine = run.train.on("cpu", ranks=1), run.engine.on("cpu")
    needed = 8 * LARGE.num_parameters
    for spare, fits in ((1, True), (-1, False)):
        there = machine([])
        there = type(there)(there.name, there.address, there.processors, needed + spare)
        placement = place(run, [there])
        demand = Demand(LARGE, LENGTHS, engine, train, 0)
        if fits:
            plan_memory(demand, placement)
        else:
            with pytest.raises(ConfigError, match=r"one has .* of memory, and train\.optimizer_state=offload needs"):
                plan_memory(demand, placement)


def test_machines_are_imagined_as_the_configuration_says() -> None:
    given = machines_to_plan_by(config("launcher=nodes", "resources={machines: 3, gpus: 10}"))
    assert [(one.name, len(one.gpus)) for one in given] == [("machine 1", 4), ("machine 2", 4), ("machine 3", 4)]
    assert machines_to_plan_by(config("preset=sea-8b"))[0].gpus[0].total == 140 * 2**30
    (this,) = machines_to_plan_by(config())
    assert this.name == "local"


def test_what_an_update_moves() -> None:
    def told(machines: int, gpus: int, *overrides: str, launcher: str = "nodes") -> list[str]:
        run, there = (
            config(f"launcher={launcher}", "train.recompute=true", *overrides),
            imagined_machines(machines, gpus, 200),
        )
        plan = make_plan(run, LARGE, LENGTHS, machines=there)
        assert plan.way is not None
        return list(update_in_words(plan.way, LARGE, plan.placement))

    (apart,) = told(4, 8)
    assert apart.endswith("GiB a version (bfloat16) to 3 machine(s): 42.3 GiB a step between machines, by NCCL"), apart
    assert told(4, 8, "engine.kind=vllm")[0].endswith("by TCP, once a machine")
    assert told(1, 2, launcher="local")[0].endswith("by CUDA IPC, within the machine")
    assert told(1, 8, launcher="local")[0].endswith("by shared memory, within the machine"), "ranks have a share each"
    assert told(1, 8)[0].endswith("by NCCL, within the machine"), "others may join"
    assert "(float32)" in told(3, 0)[0]
    assert "weights.deltas" in told(4, 8, "weights.deltas=true")[1]
