"""Who gets which GPU and how much of it. The arithmetic is tested here, on made-up GPUs; tests/run/test_one_gpu.py
runs it on a real one."""

import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from freerun.config.load import load_config
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.machine.gpus import Gpu, UnknownMemory, are_untold, chosen, name_by_uuid, visible_gpus
from freerun.machine.machines import Machine
from freerun.models.shape import Shape, shape_of
from freerun.plan.lengths import Lengths
from freerun.plan.memory import MemoryPlan
from freerun.plan.placement import Place, Placement, RunKind
from freerun.plan.placement import place as place_over_machines
from freerun.plan.plan import Plan, make_plan
from freerun.rewards.config import RewardConfig

GB = 2**30
LISTED = [
    Gpu("GPU-aaa", "NVIDIA H200", 143_771 * 2**20, 143_000 * 2**20),
    Gpu("GPU-abb", "NVIDIA H200", 143_771 * 2**20, 1_000 * 2**20),
    Gpu("GPU-ccc", "X", 81_559 * 2**20, 81_000 * 2**20),
]
SHARED = [UnknownMemory("GPU-aaa")]


def gpus(count: int, free: float = 139.0) -> list[Gpu]:
    return [Gpu(f"GPU-{i}", "H200", 140 * GB, int(free * GB)) for i in range(count)]


def machine(on: list[Gpu], name: str = "one", cores: int = 16) -> Machine:
    return Machine(name, "127.0.0.1", cores, 256 * GB, on)


def config(*overrides: str) -> RunConfig:
    return load_config(None, ["model.path=m", "data.source=d", *overrides])[0]


def shape(layers: int, hidden: int, heads: int, kv: int, ffn: int) -> Shape:
    return shape_of(
        {"model_type": "qwen3", "vocab_size": 151_936, "hidden_size": hidden, "num_hidden_layers": layers,
         "head_dim": 128, "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
         "tie_word_embeddings": True, "max_position_embeddings": 32_768}
    )  # fmt: skip


def place(run: RunConfig, on: list[Gpu], kind: RunKind = RunKind.TRAIN, evaluates: bool = False) -> Placement:
    return place_over_machines(run, [machine(on)], kind, evaluates)


def numbers(places: list[Place]) -> list[tuple[int, ...]]:
    return [place.gpus for place in places]


def planned(
    run: RunConfig, model: Shape, on: list[Gpu], kind: RunKind = RunKind.TRAIN, evaluated: int = 0, prompt: int = 1024
) -> Plan:
    return make_plan(run, model, Lengths(prompt, run.rollout.max_new_tokens), kind, evaluated, [machine(on)])


def memory_of(run: RunConfig, model: Shape, on: list[Gpu], evaluated: int = 0) -> MemoryPlan:
    return planned(run, model, on, evaluated=evaluated).memory


MEDIUM = shape(28, 1536, 12, 2, 8960)
LARGE = shape(36, 4096, 32, 8, 12288)


def test_cuda_visible_devices_is_read_as_cuda_reads_it() -> None:
    def seen(names: str | None) -> list[str]:
        return [gpu.uuid for gpu in chosen(LISTED, names)]

    assert seen(None) == ["GPU-aaa", "GPU-abb", "GPU-ccc"]
    assert seen("2,0") == ["GPU-ccc", "GPU-aaa"]
    assert seen("GPU-ab") == ["GPU-abb"]
    assert seen("0,7,1") == ["GPU-aaa"]
    assert seen("") == []
    assert chosen(LISTED, "1")[0].free == 1000 * 2**20
    assert chosen(SHARED, None) == []
    assert [gpu.uuid for gpu in chosen([*SHARED, *LISTED], "1")] == ["GPU-aaa"], "one without a memory has its number"


def test_judges_get_the_processors_that_the_rest_of_a_run_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(cores: int, *overrides: str) -> int:
        run = config(*overrides)
        return make_plan(run, MEDIUM, Lengths(9, 9), machines=[machine([], cores=cores)]).reward.processes

    assert workers(2) == 1
    assert workers(16) == 13, "one engine, one trainer, the controller"
    assert workers(16, "resources.threads=3", "resources.engines=2", "train.ranks=2") == 3
    assert workers(192) == 32
    assert workers(16, "reward.workers=5") == 5
    monkeypatch.setattr("freerun.rewards.config.processors", lambda: 16)
    assert RewardConfig().processes == 16, "a judge alone"


class Driver:
    """The few functions of NVML that are asked, on a machine with these GPUs; `None`: on one without a driver."""

    class NVMLError(Exception): ...

    def __init__(self, gpus: Sequence[Gpu | UnknownMemory] | None) -> None:
        self._gpus, self._is_open = gpus, False

    def nvmlInit(self) -> None:
        if self._gpus is None:
            raise self.NVMLError
        self._is_open = True

    def nvmlShutdown(self) -> None:
        assert self._is_open
        self._is_open = False

    def nvmlDeviceGetCount(self) -> int:
        assert self._is_open
        return len(self._gpus or ())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu | UnknownMemory:
        assert self._is_open
        assert self._gpus is not None
        return self._gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu | UnknownMemory) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu | UnknownMemory) -> Gpu:
        if isinstance(gpu, UnknownMemory):
            raise self.NVMLError
        return gpu


def driver_says(gpus: Sequence[Gpu | UnknownMemory] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(Any, Driver(gpus)))


@pytest.mark.parametrize(
    ("listed", "names", "untold"),
    [
        (LISTED, None, False),
        (LISTED, "1", False),
        (LISTED, "", False),
        (LISTED, "MIG-1234", True),
        (SHARED, None, True),
        (None, None, False),
        (LISTED, "-1", False),
        (LISTED, "NoDevFiles", False),
        (LISTED, "7", False),
        ([], None, False),
        (SHARED, "0", True),
        (SHARED, "1", False),
    ],
)
def test_gpus_whose_memory_nobody_tells_are_noticed(
    listed: list[Gpu | UnknownMemory] | None, names: str | None, untold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver_says(listed, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert are_untold() == untold


@pytest.mark.parametrize(
    ("given", "then"),
    [("2,0", "GPU-ccc,GPU-aaa"), ("1", "GPU-abb"), ("GPU-ab", "GPU-ab"), ("7", "7"), ("", ""), (None, None)],
)
def test_gpus_that_were_given_by_number_go_by_name(
    given: str | None, then: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver_says(LISTED, monkeypatch)
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    before = visible_gpus()
    name_by_uuid()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == then
    assert visible_gpus() == before


def test_one_gpu_is_shared() -> None:
    placement = place(config(), gpus(1), evaluates=True)
    assert numbers(placement.engines) == numbers(placement.ranks) == [(0,)]
    assert placement.evaluator == placement.engines[0]
    assert placement.shared
    assert placement.environment(placement.engine_sees(placement.engines[0])) == {}
    assert not placement.several_engines([0]), "the one engine goes first"


@pytest.mark.parametrize(("there", "engines"), [(2, 1), (3, 2), (4, 3), (5, 3), (8, 6)])
def test_three_quarters_generate_and_the_rest_trains(there: int, engines: int) -> None:
    for run in (config(), config(f"resources.gpus={there}")):
        placement = place(run, gpus(there if run.resources.gpus is None else 9))
        assert numbers(placement.engines) == [(gpu,) for gpu in range(engines)]
        assert numbers(placement.ranks) == [(gpu,) for gpu in range(engines, there)]
        assert not placement.shared


def test_the_trainer_takes_the_last_and_engines_the_others() -> None:
    placement = place(config("train.ranks=2"), gpus(5))
    assert numbers(placement.ranks) == [(3,), (4,)]
    assert numbers(placement.engines) == [(0,), (1,), (2,)]
    assert not placement.shared
    assert placement.environment([3]) == {"CUDA_VISIBLE_DEVICES": "GPU-3"}
    assert placement.environment(placement.engine_sees(placement.engines[1])) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    alone = place(config("train.ranks=1"), gpus(3))
    seen = alone.environment(alone.engine_sees(alone.engines[1]))
    assert seen == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, "weights come from there"
    one_of_two = place(config("resources.gpus=1"), gpus(2))
    assert one_of_two.environment([0]) == {"CUDA_VISIBLE_DEVICES": "GPU-0"}


def test_resources_decide() -> None:
    placement = place(
        config("resources.engines=3", "resources.engine_gpus=[2,0]", "resources.trainer_gpus=[2]"), gpus(3)
    )
    assert numbers(placement.engines) == [(2,), (0,), (2,)]
    assert placement.several_engines([2]), "so nobody goes first there"
    assert not placement.several_engines([0, 2])
    assert not placement.several_engines([])
    assert numbers(placement.ranks) == [(2,)]
    assert placement.shared
    assert numbers(place(config(), []).ranks) == [()]
    assert not place(config(), []).shared
    assert numbers(place(config("resources.engine_gpus=[0,1]"), gpus(4)).ranks) == [(2,), (3,)], "what engines leave"
    assert numbers(place(config("resources.trainer_gpus=[0]"), gpus(4)).engines) == [(1,), (2,), (3,)]
    assert place(config("train.ranks=2"), gpus(2), RunKind.EVALUATE).ranks == []
    assert numbers(place(config(), gpus(2), RunKind.EVALUATE).engines) == [(0,)]
    for overrides, says in (
        (["resources.engine_gpus=[2]"], "names GPU 2, but there are 2"),
        (["resources.gpus=1", "resources.trainer_gpus=[1]"], "names GPU 1, but there are 1"),
        (["resources.gpus=3"], "resources.gpus is 3, but there are 2 GPUs here"),
        (["train.ranks=3"], "one a rank"),
        (["resources.trainer_gpus=[1,1]"], "one a rank"),
        (["train.ranks=2", "resources.trainer_gpus=[1,1]"], "one a rank"),
        (["train.context_parallel=2"], "no multiple of train.context_parallel=2"),
    ):
        with pytest.raises(ConfigError, match=says):
            place(config(*overrides), gpus(2))


def test_supervised_training_has_all_gpus_but_the_evaluators() -> None:
    alone = place(config(), gpus(4), RunKind.SFT)
    assert (alone.engines, numbers(alone.ranks)) == ([], [(0,), (1,), (2,), (3,)])
    assert not alone.shared
    beside = place(config(), gpus(4), RunKind.SFT, evaluates=True)
    assert (numbers(beside.generating), numbers(beside.ranks)) == ([(0,)], [(1,), (2,), (3,)])
    assert place(config(), gpus(1), RunKind.SFT, evaluates=True).shared


def test_memory_is_divided_before_anything_loads() -> None:
    run = config("engine.max_running=512", "rollout.max_new_tokens=8192")
    memory_plan = memory_of(run, MEDIUM, gpus(1))
    trainer, engine = memory_plan.share("trainer") or 0, memory_plan.share("engine 0") or 0
    assert 0.5 < trainer + engine < 0.99
    assert trainer * 140 > 20 * MEDIUM.num_parameters / GB  # weights, optimizer, two versions to publish
    assert "GPU 0 (H200, 140.0 GiB): trainer" in str(memory_plan)
    assert "GiB for weights and optimizer" in str(memory_plan)
    beside = memory_of(run, MEDIUM, gpus(1), evaluated=256)
    assert (beside.share("evaluator") or 0) > 0
    assert (beside.share("trainer") or 0) < trainer


def test_what_was_asked_for_is_what_they_get() -> None:
    run = config("engine.memory_share=0.3", "train.micro_batch_tokens=4096")
    memory_plan = memory_of(run, MEDIUM, gpus(1))
    assert memory_plan.share("engine 0") == pytest.approx(0.3)
    assert (memory_plan.share("trainer") or 0) < 0.45


def test_nobody_without_a_gpu_has_a_share() -> None:
    memory_plan = memory_of(config(), MEDIUM, [], evaluated=1)
    assert memory_plan.share("trainer") is None
    assert str(memory_plan) == ""


def test_a_gpu_that_nobody_uses_may_be_full() -> None:
    full = Gpu("GPU-1", "H200", 140 * GB, 0)
    run = config("resources.engine_gpus=[0]", "resources.trainer_gpus=[0]")
    memory_plan = memory_of(run, MEDIUM, [*gpus(1), full])
    assert {share.need.gpu for share in memory_plan.shares} == {0}


def test_float32_takes_more() -> None:
    run = config("train.micro_batch_tokens=8192")
    wide = config("train.micro_batch_tokens=8192", "train.dtype=float32")
    shares = [memory_of(each, MEDIUM, gpus(1)).share("trainer") or 0 for each in (run, wide)]
    assert shares[1] > 1.2 * shares[0]


def test_what_cannot_fit_is_refused_with_the_settings_to_change() -> None:
    run = config()
    with pytest.raises(ConfigError, match=r"set train.recompute=true or train.lora.rank=16") as caught:
        memory_of(run, LARGE, gpus(1))
    assert "\n" not in str(caught.value)
    lora = config("train.lora.rank=16")
    memory_of(lora, LARGE, gpus(1))
    with pytest.raises(ConfigError, match="GPU 0"):
        memory_of(run, MEDIUM, gpus(1, free=20))


def test_whoever_fetches_weights_from_a_gpu_takes_a_little_of_it() -> None:
    def least(count: int) -> int:
        """GiB of the trainer's GPU without which the run is refused, with so many engines on other GPUs."""
        run = config("train.micro_batch_tokens=2048", "train.ranks=1")
        for free in range(1, 139):
            given = [*gpus(count), *gpus(1, free)]
            try:
                memory_of(run, MEDIUM, given)
            except ConfigError:
                continue
            return free
        raise AssertionError

    assert least(7) - least(1) == 6


def test_a_run_without_gpus_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_says(None, monkeypatch)
    assert visible_gpus() == []


def test_this_machine_has_the_gpus_that_torch_finds() -> None:
    """Through the real library, whether or not there is a driver."""
    assert len(visible_gpus()) == torch.cuda.device_count()
