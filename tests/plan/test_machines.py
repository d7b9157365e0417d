"""Who runs on which of several machines. Machines are made up here; tests/run has real ones."""

import pytest

from freerun.core import ConfigError
from freerun.machine.machines import LOCAL, Machine
from freerun.plan.lengths import Lengths
from freerun.plan.placement import Placement, RunKind, place
from freerun.plan.plan import Plan, joined_by, make_plan, one_more
from tests.plan.test_placement import LARGE, MEDIUM, config, gpus, machine


def cluster(*counts: int, cores: int = 16) -> list[Machine]:
    """A machine with so many GPUs for each count."""
    given = iter(gpus(sum(counts)))
    return [machine([next(given) for _ in range(count)], f"m{i}", cores) for i, count in enumerate(counts)]


def where(placement: Placement) -> tuple[str, str]:
    """`m0:0 m0:1` for engines on the first machine's two GPUs, and the same for ranks."""

    def told(name: str, numbers: tuple[int, ...]) -> str:
        return f"{name}:{'+'.join(map(str, numbers))}" if numbers else name

    engines, ranks = (
        " ".join(told(at.machine, at.gpus) for at in places) for places in (placement.engines, placement.ranks)
    )
    return engines, ranks


def planned(machines: list[Machine], *overrides: str, evaluated: int = 0) -> Plan:
    return make_plan(
        config("launcher=nodes", *overrides), MEDIUM, Lengths(9, 99), evaluated=evaluated, machines=machines
    )


@pytest.mark.parametrize(
    ("counts", "overrides", "engines", "ranks"),
    [
        ((2, 2), [], "m0:0 m0:1", "m1:2 m1:3"),
        ((1, 1, 1), [], "m0:0 m1:1", "m2:2"),
        ((2, 2, 2), ["train.ranks=1"], "m0:0 m0:1 m1:2 m1:3", "m2:5"),
        ((2, 2, 2), ["train.ranks=4"], "m0:0 m0:1", "m1:2 m1:3 m2:4 m2:5"),
        ((4, 4), ["train.ranks=6"], "m0:0 m1:4", "m0:1 m0:2 m0:3 m1:5 m1:6 m1:7"),
        ((2, 4), ["train.ranks=5"], "m0:0", "m0:1 m1:2 m1:3 m1:4 m1:5"),
        ((2, 2), ["resources.gpus=2"], "m0:0", "m0:1"),
        ((2, 2), ["resources.gpus=3"], "m0:0 m0:1", "m1:2"),
        ((2, 2), ["resources.trainer_gpus=[0]", "resources.engine_gpus=[3,1]"], "m1:3 m0:1", "m0:0"),
        ((0, 2, 2), [], "m1:0 m1:1", "m2:2 m2:3"),
        ((4, 4), ["engine.kind=vllm", "engine.tensor_parallel=2"], "m0:0+1 m0:2+3", "m1:4 m1:5 m1:6 m1:7"),
        ((8,), ["engine.kind=vllm", "engine.tensor_parallel=4"], "m0:0+1+2+3", "m0:4 m0:5 m0:6 m0:7"),
        ((3, 3, 2), ["engine.kind=vllm", "engine.tensor_parallel=2"], "m0:0+1 m1:3+4", "m2:6 m2:7"),
        ((0, 0), [], "m0", "m1"),
        ((0,) * 5, [], "m0 m1 m2 m3", "m4"),
        ((0,) * 8, [], "m0 m1 m2 m3 m4 m5", "m6 m7"),
        ((0,) * 3, ["resources.engines=3"], "m0 m1 m0", "m2"),
        ((0,) * 3, ["train.ranks=2"], "m0", "m1 m2"),
        ((0,) * 3, ["train.ranks=4"], "m0", "m1 m1 m2 m2"),
        ((0,), ["train.ranks=2"], "m0", "m0 m0"),
        ((0,), ["train.context_parallel=2"], "m0", "m0 m0"),
        ((0,) * 8, ["train.context_parallel=4"], "m0 m1 m2 m3 m4 m5", "m6 m6 m7 m7"),
    ],
)  # fmt: skip
def test_machines_generate_or_train(counts: tuple[int, ...], overrides: list[str], engines: str, ranks: str) -> None:
    assert where(place(config("launcher=nodes", *overrides), cluster(*counts))) == (engines, ranks)


def test_the_paper_shares_out_its_machines() -> None:
    """1.5B on 16 nodes of 8; SEA's siblings on 1, 3 and 8."""

    def numbers(nodes: int, *overrides: str) -> tuple[int, int]:
        placement = place(config("launcher=nodes", *overrides), cluster(*[8] * nodes))
        return len(placement.engines), len(placement.ranks)

    assert numbers(16) == (96, 32)
    assert numbers(1) == (6, 2)
    assert numbers(3) == (16, 8)
    assert numbers(8, "engine.kind=sglang", "engine.tensor_parallel=4", "train.ranks=32") == (8, 32)
    assert numbers(10, "engine.kind=sglang", "engine.tensor_parallel=8", "train.ranks=48") == (4, 48)


def test_supervised_training_has_all_machines_but_the_evaluators() -> None:
    alone = place(config(), cluster(0, 0, 0), RunKind.SFT)
    assert where(alone) == ("", "m0 m1 m2")
    beside = place(config(), cluster(0, 0, 0), RunKind.SFT, evaluates=True)
    assert (where(beside)[1], [at.machine for at in beside.generating]) == ("m1 m2", ["m0"])
    beside = place(config(), cluster(2, 2), RunKind.SFT, evaluates=True)
    assert (where(beside)[1], beside.generating[0].gpus) == ("m1:2 m1:3", (0,))
    assert where(place(config(), cluster(2, 2), RunKind.SFT))[1] == "m0:0 m0:1 m1:2 m1:3"


@pytest.mark.parametrize(
    ("counts", "overrides", "says"),
    [
        ((2, 2), ["resources.machines=3"], "resources.machines is 3, but there are 2: join more"),
        ((2, 2), ["resources.gpus=5"], "resources.gpus is 5, but there are 4 GPUs on 2 machines"),
        ((0, 0), ["resources.gpus=5"], "there are 0 GPUs on 2 machines"),
        ((4, 4), ["engine.kind=vllm", "engine.tensor_parallel=8"], "no machine has so many GPUs for engines"),
        ((4,), ["engine.kind=vllm", "engine.tensor_parallel=4"], "leaves the trainer none of 4"),
        ((4, 8), ["train.ranks=9", "train.shard=machine"], "one machine of the trainer has 1 ranks and another 8"),
        ((4, 4), ["train.ranks=9"], "one a rank"),
        ((1, 3), ["train.context_parallel=2"], "3 rank(s), which is no multiple of train.context_parallel=2: set"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(counts: tuple[int, ...], overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(config("launcher=nodes", *overrides), cluster(*counts))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_processes_are_told_their_machine_and_see_only_its_gpus() -> None:
    plan = planned(cluster(2, 2), evaluated=4)
    assert [(one.process, one.machine, one.sees) for one in plan.everyone] == [
        ("engine 0", "m0", [0]),
        ("engine 1", "m0", [1]),
        ("trainer", "m1", [2]),
        ("trainer 1", "m1", [3]),
        ("evaluator", "m0", [0]),
    ]
    assert plan.train.ranks == 2
    assert plan.placement.environment([3]) == {"CUDA_VISIBLE_DEVICES": "GPU-3"}
    beside = place(config("launcher=nodes", "resources.trainer_gpus=[1]"), cluster(2, 2))
    assert [beside.engine_sees(at) for at in beside.engines] == [[2], [3]], "weights come from another machine"


def test_memory_is_told_by_machine() -> None:
    told = str(planned(cluster(1, 1)).memory).splitlines()
    assert told[0].startswith("m0: GPU 0 (H200, 140.0 GiB): engine 0 ")
    assert told[1].startswith("m1: GPU 1 (H200, 140.0 GiB): trainer ")
    small = [machine(gpus(1, free=8), "m0"), machine(gpus(1), "m1")]
    with pytest.raises(ConfigError, match=r"m0: GPU 0 .* has 4.2 GiB to give"):
        planned(small)


def test_an_engine_over_several_gpus_has_a_part_of_the_weights_on_each() -> None:
    def least(parallel: int) -> int:
        run = config("launcher=nodes", "engine.kind=sglang", f"engine.tensor_parallel={parallel}")
        plan = make_plan(run, LARGE, Lengths(9, 99), machines=cluster(parallel, 8))
        first = [share.need.least for share in plan.memory.shares if share.need.name == "engine 0"]
        assert len(first) == parallel
        assert len(set(first)) == 1
        return first[0]

    assert (least(1) - least(4)) / LARGE.num_parameters / 2 == pytest.approx(0.75, abs=0.02)


def test_judges_have_the_processors_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freerun.plan.judging.processors", lambda: 7)
    plan = planned(cluster(0, 0))
    assert (plan.reward.processes, plan.judging.workers) == (6, {}), "the controller has its machine to itself"
    with_ours = [machine([], LOCAL, 12), *cluster(0)]
    assert planned(with_ours).reward.processes == 10, "beside an engine"
    elsewhere = planned(cluster(0, 0, 0), "reward.where=machines", "resources.threads=2")
    assert elsewhere.judging.workers == {"m0": 14, "m1": 14}
    assert elsewhere.reward.processes == 28
    few = planned(cluster(0, 0, 0), "reward.where=machines", "reward.workers=3")
    assert (few.judging.workers, few.reward.processes) == ({"m0": 2, "m1": 1}, 3)
    assert planned(cluster(0), "reward.where=machines", "reward.workers=3").judging.workers == {"m0": 3}


def test_engines_that_run_already_are_driven_from_beside_the_controller() -> None:
    urls = "engine.urls=[http://a:1, http://b:1, http://c:1]"
    plan = planned(cluster(2, 2), "engine.kind=vllm", urls)
    assert [(one.machine, one.url, one.sees) for one in plan.engines] == [
        (LOCAL, f"http://{name}:1", []) for name in "abc"
    ]
    assert [rank.sees for rank in plan.ranks] == [[0], [1], [2], [3]], "all GPUs train"
    plan = planned(cluster(0, 0), "engine.kind=vllm", urls, evaluated=3)
    assert [one.url for one in plan.engines] == ["http://a:1", "http://b:1"]
    assert plan.evaluator
    assert plan.evaluator.url == "http://c:1"
    with pytest.raises(ConfigError, match=r"add a URL to engine.urls"):
        planned(cluster(0), "engine.kind=vllm", "engine.urls=[http://a:1]", evaluated=3)


def test_a_machine_that_joins_later_gets_engines_and_nothing_else_changes() -> None:
    plan = planned(cluster(0, 0))
    later = joined_by(plan, machine([], "late"))
    assert [(one.process, one.machine) for one in later.engines] == [("engine 0", "m0"), ("engine 1", "late")]
    assert (later.ranks, later.train) == (plan.ranks, plan.train)
    first, second, *_ = cluster(1, 1, 3)
    plan = planned([first, second], "engine.kind=vllm", "engine.memory_share=0.5")
    later = joined_by(plan, machine(gpus(3), "late"))
    assert [one.sees for one in later.engines] == [[0], [2], [3], [4]]
    assert later.engines[0] == plan.engines[0]
    assert [later.engine_settings(one).memory_share for one in later.engines] == [pytest.approx(0.5)] * 4
    assert later.placement.environment([3]) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert joined_by(plan, machine([], "late")).engines == plan.engines, "the run is on GPUs"
    wide = planned(cluster(2, 1), "engine.kind=vllm", "engine.tensor_parallel=2")
    assert [one.sees for one in joined_by(wide, machine(gpus(3), "late")).engines] == [[0, 1], [3, 4]]


def test_one_more_engine_goes_where_the_fewest_are_or_on_gpus_that_nobody_has() -> None:
    resources = config("launcher=nodes").resources
    plan = planned(cluster(0, 0, 0), "resources.engines=3")
    more = one_more(one_more(plan, resources), resources)
    assert [one.machine for one in plan.engines] == ["m0", "m1", "m0"]
    assert [(one.process, one.machine) for one in more.engines[3:]] == [("engine 3", "m1"), ("engine 4", "m0")]
    assert (more.ranks, more.train) == (plan.ranks, plan.train)

    plan = planned(cluster(8), "resources.engines=3")
    more = one_more(plan, resources)
    assert [one.sees[0] for one in more.engines] == [0, 1, 2, 3]
    assert more.engines[:3] == plan.engines, "their memory stays theirs"
    assert more.engine_settings(more.engines[3]).memory_share == pytest.approx(plan.engines[2].memory_share)
    named = config("launcher=nodes", "resources.engine_gpus=[1,2]").resources
    with pytest.raises(ConfigError, match=r"resources\.engines is more than 3, and there are no GPUs for one more"):
        one_more(plan, named)
    shared = planned(cluster(1))
    with pytest.raises(ConfigError, match="the run goes on with 1, and more can share GPUs once it is resumed"):
        one_more(shared, resources)
    wide = planned(cluster(8), "engine.kind=vllm", "engine.tensor_parallel=2", "resources.engines=2")
    assert one_more(wide, resources).engines[2].sees[:2] == [4, 5]
