"""What a run's processes are told, worked out from configuration and machine before any of them starts."""

import subprocess
import sys

import pytest

from freerun.core import ConfigError, Task
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig, ResolvedEngineConfig
from freerun.engines.embedded.memory import cache_for, longest_in
from freerun.engines.embedded.served import ServedEngine
from freerun.plan.lengths import lengths_of
from freerun.plan.placement import RunKind
from freerun.train.config import ResolvedTrainConfig, TrainConfig
from tests.plan.test_placement import MEDIUM, config, gpus, planned
from tests.tiny import tiny_decoder


def test_nothing_is_left_to_work_out_on_a_cpu() -> None:
    plan = planned(config(), MEDIUM, [])
    assert (plan.engine.device, plan.engine.dtype) == ("cpu", "float32")
    assert (plan.engine.block_tokens, plan.engine.step_tokens, plan.engine.burst) == (16, 2_048, 1)
    assert plan.engine.cache_tokens == 65_536
    assert (plan.train.device, plan.train.dtype, plan.train.compile) == ("cpu", "float32", False)
    assert plan.train.micro_batch_tokens == 8_192
    assert plan.reward.workers


def test_on_a_gpu_only_what_depends_on_free_memory_is_left() -> None:
    plan = planned(config(), MEDIUM, gpus(1))
    assert (plan.engine.device, plan.engine.dtype) == ("cuda", "bfloat16")
    assert (plan.engine.block_tokens, plan.engine.step_tokens, plan.engine.burst) == (64, 8_192, 4)
    assert plan.engine.cache_tokens is None
    assert (plan.train.device, plan.train.dtype, plan.train.compile) == ("cuda", "bfloat16", True)
    assert plan.train.micro_batch_tokens is None
    (engine,) = plan.engines
    assert plan.engine_settings(engine).memory_share == plan.memory.share("engine 0")


def test_what_the_user_says_stands() -> None:
    given = ("engine.dtype=float32", "engine.cache_tokens=9000", "train.dtype=float32", "train.micro_batch_tokens=700")
    plan = planned(config(*given, "resources.threads=3"), MEDIUM, gpus(1))
    assert (plan.engine.device, plan.engine.dtype, plan.engine.cache_tokens) == ("cuda", "float32", 9_000)
    assert (plan.train.device, plan.train.dtype, plan.train.micro_batch_tokens) == ("cuda", "float32", 700)
    assert plan.threads == 3


def test_benchmarks_and_tests_may_decide_what_is_no_setting() -> None:
    engine = EngineConfig().on("cuda", block_tokens=8, step_tokens=100, burst=16)
    assert (engine.block_tokens, engine.step_tokens, engine.burst) == (8, 100, 16)
    assert not TrainConfig().on("cuda", 10**9, compile=False).compile


def test_what_is_resolved_stays_as_it_is() -> None:
    engine, train = EngineConfig().on("cuda"), TrainConfig().on("cuda", 10**9)
    assert engine.on("cuda") == engine
    assert train.on("cuda", 10**9) == train
    assert ResolvedEngineConfig.model_validate(engine.plain()) == engine, "as a process gets it"
    assert ResolvedTrainConfig.model_validate(train.plain()) == train


def test_the_engine_goes_first_on_a_gpu_it_shares_with_the_trainer() -> None:
    plan = planned(config(), MEDIUM, gpus(1), evaluated=4)
    assert plan.evaluator
    first = [(one.process, one.goes_first) for one in (*plan.engines, *plan.ranks, plan.evaluator)]
    assert first == [("engine 0", True), ("trainer", False), ("evaluator", False)]
    crowded = planned(config("resources.engines=2"), MEDIUM, gpus(1))
    assert {one.goes_first for one in (*crowded.engines, *crowded.ranks)} == {True}, "so none before another"


@pytest.mark.parametrize(
    ("override", "kind", "says"),
    [
        ("rollout.max_new_tokens=40000", RunKind.TRAIN, "exceeds the model's 32768 positions"),
        ("rollout.max_new_tokens=40000", RunKind.EVALUATE, "exceeds the model's 32768 positions"),
        ("rollout.max_new_tokens=40000", RunKind.SFT, None),
        ("engine.cache_tokens=100", RunKind.TRAIN, "too few for the longest prompt and answer: raise it to"),
    ],
)
def test_what_cannot_be_is_refused_by_whoever_needs_it(override: str, kind: RunKind, says: str | None) -> None:
    if says is None:
        planned(config(override), MEDIUM, [], kind)
        return
    with pytest.raises(ConfigError, match=says):
        planned(config(override), MEDIUM, [], kind)


@pytest.mark.parametrize("longest", [9, 31, 32, 33, 47, 48, 100])
def test_the_plan_and_the_engine_agree_on_what_fits(longest: int) -> None:
    """Exactly as much cache as the plan asks for is enough, and a token less is not."""
    needed = cache_for(longest, block_tokens=16, burst=1)
    assert longest_in(needed, 16, 1) >= longest > longest_in(needed - 1, 16, 1)
    run = config(f"rollout.max_new_tokens={longest - 3}", f"engine.cache_tokens={needed}")
    plan = planned(run, tiny_decoder().shape, [], prompt=3)
    engine = ServedEngine(tiny_decoder(), plan.engine)
    assert engine.longest >= longest
    engine.submit("a", [3, 4, 5], Sampling(max_new_tokens=longest - 3, ignore_eos=True), 1)
    while engine.has_work:
        engine.step()
    too_few = config(f"rollout.max_new_tokens={longest - 3}", f"engine.cache_tokens={needed - 1}")
    with pytest.raises(ConfigError, match=f"raise it to {needed}"):
        planned(too_few, tiny_decoder().shape, [], prompt=3)


def test_lengths_are_those_of_the_tasks() -> None:
    run = config("rollout.max_new_tokens=7")
    assert lengths_of(run, [Task("a", "", [1] * 5), Task("b", "", [1] * 9)], tiny_decoder().shape).sequence == 16
    assert lengths_of(run, [], tiny_decoder().shape).prompt == run.data.max_prompt_tokens


def test_a_plan_needs_no_torch() -> None:
    code = "import sys, freerun.plan.plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
