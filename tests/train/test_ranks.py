"""Two ranks learn what one learns alone. One pair of real processes does every lesson; this one does them too."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from freerun.core import WeightsError
from freerun.train.checkpoint import CheckpointWriter, load_checkpoint
from freerun.train.checkpoint_folder import CheckpointFolder
from freerun.train.config import TrainConfig
from freerun.train.how_sampled import HowSampled
from freerun.train.learner import Learner
from freerun.train.ranks import ALONE, Ranks
from freerun.train.worker import follow
from freerun.weights.base import of_parts
from freerun.weights.shm import ShmPublisher
from freerun.weights.subscribe import AnySubscriber
from tests.architectures import random_decoder
from tests.tiny import tiny_decoder, tiny_folder
from tests.train.processes import together
from tests.train.test_learner import random_batch
from tests.train.test_members import batches

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

CRITIC = {"objective": "ppo", "advantages": "gae", "lr": 1e-2}
LESSONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "decoupled_ppo": ({}, {}),
    "clipped": ({"clip_grad": 1e-3, "eps": 1e-3, "micro_batch_tokens": 30}, {"tie_word_embeddings": False}),
    "gspo": ({"objective": "gspo", "recompute": True, "corrections": [{"name": "icepop", "low": 0.05, "high": 20.0},
              {"name": "geometric", "low": 0.3, "high": 3.0}]}, {}),
    "critic": (CRITIC, {}),
    "critic untied": (CRITIC, {"tie_word_embeddings": False}),
    "kl in loss": ({"minibatches": 1, "kl": {"coef": 0.1}, "entropy": {"coef": 0.01}}, {}),
    "kl in reward": ({"objective": "dapo", "kl": {"coef": 0.1, "apply_to": "reward"}}, {}),
    "distill": ({"objective": "distill", "teacher": "a/model"}, {}),
    "lora": ({"lora": {"rank": 3}}, {}),
    "offloaded": ({"optimizer_state": "offload"}, {}),
    "8 bits": ({"optimizer_state": "8bit"}, {"intermediate_size": 389}),
    "8 bits, lora": ({"optimizer_state": "8bit", "lora": {"rank": 17}}, {"intermediate_size": 300}),
    "gemma2": ({"recompute": True}, {"family": "gemma2"}),
    "gpt_oss": ({"lora": {"rank": 2}}, {"family": "gpt_oss"}),
    "deepseek_v3": ({}, {"family": "deepseek_v3"}),
}  # fmt: skip
"""What differs from the defaults in each: training, model; a `family` is transformers' code for it."""
KINDS = ("32bit", "8bit")
"""Of the optimizer's state, in checkpoints."""
HOW = HowSampled(top_k=20, top_p=0.9, keeps_cache=True)
"""For what it changes: how drift is measured, and taken apart."""
LOW: tuple[dict[str, Any], dict[str, Any]] = ({"dtype": "bfloat16", "corrections": ["token"]}, {})
"""Without a mask, which rounding would tip one way or the other."""


def lesson(config: dict[str, Any], model: dict[str, Any], ranks: Ranks, dtype: torch.dtype) -> dict[str, Any]:
    """Three steps, the second on minibatches of two sequences and of one, so that a rank has none; then scoring; then
    a supervised step; then preference pairs, in the end fewer than ranks."""
    train = TrainConfig.model_validate({"lr": 1e-2, "minibatches": 2, **config})
    decoder = random_decoder(**model, dtype=dtype) if "family" in model else tiny_decoder(dtype=dtype, **model)
    learner = Learner(decoder, train, longest=12, ranks=ranks, how=HOW)
    few = random_batch(0, 1, groups=2, size=2)
    given = (random_batch(0, 0), few, random_batch(2, 2))
    for sample in (sample for batch in given for sample in batch.samples):
        sample.teacher_logprobs = 0.5 * sample.behavior_logprobs
    results = [learner.step(batch) for batch in given]
    metrics = [result.metrics for result in results]
    scores = learner.score(random_batch(9).samples)
    metrics.append(learner.sft(random_batch(8).samples).metrics)
    if train.dtype == "auto":  # sums over answers, of two pairs even, are not the same to bf16's rounding
        metrics += [learner.dpo(random_batch(7).samples[:count], 0.3).metrics for count in (10, 2)]
    before = [torch.from_numpy(np.concatenate(result.before_logprobs or [])) for result in results if ranks.is_first]
    return {"metrics": metrics, "scores": scores, "tensors": learner.policy.tensors(), "before": before}


def branching(ranks: Ranks) -> dict[str, Any]:
    """Members in several branches, rewarded by turn, a critic and minibatches."""
    train = TrainConfig.model_validate({**CRITIC, "minibatches": 2, "average": "sequence", "micro_batch_tokens": 60})
    learner = Learner(tiny_decoder(dtype=torch.float64), train, ranks=ranks)
    learner.step(batches(1, returns=True)[1])
    return learner.policy.tensors()


def student(seed: int, ranks: Ranks, bits: str = "32bit") -> Learner:
    """With a critic, whose last bias has a single number: one of two ranks has no share in it."""
    config = TrainConfig.model_validate({**CRITIC, "optimizer_state": bits})
    return Learner(tiny_decoder(seed, intermediate_size=128), config, ranks=ranks)


def learned(learner: Learner, versions: range) -> dict[str, torch.Tensor]:
    for version in versions:
        learner.step(random_batch(version, version))
    return learner.policy.tensors()


def saved(learner: Learner, folder: Path, ranks: Ranks) -> None:
    """Checkpoints of two versions; training goes on while they are written."""
    writer = CheckpointWriter(2, ranks)
    for version in (1, 2):
        learned(learner, range(version, version + 1))
        writer.begin(learner, folder, "{}")
    learned(learner, range(3, 4))
    writer.finish()


def resumed(checkpoint: Path, ranks: Ranks, bits: str = "32bit") -> dict[str, torch.Tensor]:
    learner = student(99, ranks, bits)
    load_checkpoint(checkpoint, learner, ranks)
    return learned(learner, range(learner.version, 5))


def published(learner: Learner, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """What an engine gets of a version whose parts the ranks published, and how many bytes each had."""
    publisher = ShmPublisher(folder, ranks.rank)
    handle = of_parts(ranks.each(lambda: publisher.publish(7, learner.policy.part())))
    fetched = AnySubscriber().fetch(handle)
    refused = ""
    try:
        ranks.each(lambda: publisher.publish(7 + ranks.rank, {}))  # the first has published a version 7 already
    except WeightsError as error:
        refused = str(error)
    sizes = [Path(part.location).stat().st_size for part in handle.parts]
    return {"fetched": fetched, "whole": learner.policy.tensors(), "sizes": sizes, "refused": refused}


def rank(number: int, folder: Path) -> None:
    """What each of the pair does."""
    torch.set_num_threads(1)
    ranks = Ranks.join(number, 2, f"file://{folder}/rendezvous", "cpu")
    results = {name: lesson(*how, ranks, torch.float64) for name, how in LESSONS.items()}
    halves = Ranks(number, 2, context=2)
    results |= {f"{name}, in halves": lesson(*how, halves, torch.float64) for name, how in LESSONS.items()}
    results["low, in halves"] = lesson(*LOW, halves, torch.float32)
    results["branches, in halves"] = branching(halves)
    results["low"] = lesson(*LOW, ranks, torch.float32)
    results["branches"] = branching(ranks)
    first = student(0, ranks)
    learned(first, range(1))
    results["published"] = published(first, folder, ranks)
    for bits in KINDS:
        results[f"unbroken, {bits}"] = learned(student(0, ranks, bits), range(5))
        first = student(0, ranks, bits)
        learned(first, range(1))
        saved(first, folder / f"by two, {bits}", ranks)
        results[f"resumed, {bits}"] = resumed(folder / f"by two, {bits}" / "step-3", ranks, bits)
    results["resumed by two"] = resumed(folder / "by one" / "step-3", ranks)
    adapted = Learner(tiny_decoder(), TrainConfig.model_validate({"lora": {"rank": 2}, "lr": 1e-2}), ranks=ranks)
    adapted.step(random_batch(0))
    adapted.save(folder / "adapted", folder / "model")
    if ranks.is_first:
        torch.save(results, folder / "results")
    torch.distributed.destroy_process_group()  # an interpreter that ends while its threads run is aborted now and then


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder that the pair worked in, and its results. In it, checkpoints that one made alone."""
    folder = tmp_path_factory.mktemp("pair")
    tiny_folder(folder / "model")
    one = student(0, ALONE)
    learned(one, range(1))
    saved(one, folder / "by one", ALONE)
    together(rank, 2, folder)
    return folder, torch.load(folder / "results")


def assert_close(ours: dict[str, torch.Tensor], others: dict[str, torch.Tensor], atol: float) -> None:
    assert ours.keys() == others.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(others[name], tensor, atol=atol, rtol=atol)


@pytest.mark.parametrize("name", LESSONS)
def test_two_ranks_learn_what_one_does(pair: tuple[Path, dict[str, Any]], name: str) -> None:
    """Whether they have different sequences, or halves of the same ones."""
    one = lesson(*LESSONS[name], ALONE, torch.float64)
    for two in (pair[1][name], pair[1][f"{name}, in halves"]):
        assert_same_lesson(name, one, two)


def assert_same_lesson(name: str, one: dict[str, Any], two: dict[str, Any]) -> None:
    exact = 1e-5 if "family" in LESSONS.get(name, ({}, {}))[1] else 1e-9  # transformers has norms in float32
    assert_close(one["tensors"], two["tensors"], exact)
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        for figure in {*mine, *theirs}:  # ranks may have a beginning each
            if figure in ("tokens_per_s", "computed_tokens") or figure.startswith(("expert_", "router_")):
                mine.pop(figure, None), theirs.pop(figure, None)
        assert theirs == pytest.approx(mine, rel=1e-5, abs=1e-6)
    for step, same_step in zip(one["before"], two["before"], strict=True):
        torch.testing.assert_close(same_step, step, atol=1e-6, rtol=1e-6, equal_nan=True)
    for row, same in zip(one["scores"], two["scores"], strict=True):
        assert same == pytest.approx(row, abs=exact)
    first, few, *_ = one["metrics"]
    assert first["grad_norm"] > 0.01
    if name == "gspo":
        assert 0 < first["kept_share"] < 0.9
        assert few["kept_share"] == 0, "a step that teaches nothing is one too"
    else:
        assert few["grad_norm"] > 0.01


def test_each_rank_publishes_a_part_of_a_version(pair: tuple[Path, dict[str, Any]]) -> None:
    found, alone = pair[1]["published"], student(0, ALONE)
    learned(alone, range(1))
    assert_close(alone.policy.tensors(), found["fetched"], 1e-4)
    assert_close(found["whole"], found["fetched"], 0.0)
    assert dict(alone.policy.part()).keys() == found["whole"].keys(), "one rank alone has it all"
    small, large = sorted(found["sizes"])
    assert small > 0.4 * (small + large)
    assert found["refused"] == "versions only go up: 7 cannot follow 7", "each rank hears what one of them refused"


def test_two_ranks_learn_the_same_from_branches(pair: tuple[Path, dict[str, Any]]) -> None:
    alone = branching(ALONE)
    assert_close(alone, pair[1]["branches"], 1e-9)
    assert_close(alone, pair[1]["branches, in halves"], 1e-9)


@pytest.mark.parametrize("how", ["low", "low, in halves"])
def test_low_precision_is_the_same_to_its_rounding(pair: tuple[Path, dict[str, Any]], how: str) -> None:
    one, two = lesson(*LOW, ALONE, torch.float32), pair[1][how]
    assert {tensor.dtype for tensor in two["tensors"].values()} == {torch.bfloat16}
    start = dict(tiny_decoder().named_parameters())
    off, moved = (
        sum((tensor.float() - other[name].float()).square().sum().item() for name, tensor in two["tensors"].items())
        for other in (one["tensors"], start)
    )
    assert off < 0.01 * moved
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=0.05, abs=0.01)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=0.05)


@pytest.mark.parametrize("bits", KINDS)
def test_a_checkpoint_of_two_ranks_goes_on_bit_for_bit(pair: tuple[Path, dict[str, Any]], bits: str) -> None:
    folder, results = pair
    assert list(CheckpointFolder(folder / f"by two, {bits}").finished()) == [2, 3]
    assert not list((folder / f"by two, {bits}").glob("*.unfinished"))
    unbroken, again = (results[f"{how}, {bits}"] for how in ("unbroken", "resumed"))
    assert all(torch.equal(again[name], tensor) for name, tensor in unbroken.items())


@pytest.mark.parametrize("bits", KINDS)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(pair: tuple[Path, dict[str, Any]], bits: str) -> None:
    """To rounding: in 8 bits the other one of two codes, now and then."""
    folder, results = pair
    alone, close = learned(student(0, ALONE, bits), range(5)), 1e-4 if bits == "32bit" else 1e-3
    assert_close(alone, results[f"unbroken, {bits}"], close)
    assert_close(alone, resumed(folder / f"by two, {bits}" / "step-3", ALONE, bits), close)
    if bits == "32bit":
        assert_close(alone, results["resumed by two"], close)


def test_an_adapter_is_saved_whole(pair: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    one = Learner(tiny_decoder(), TrainConfig.model_validate({"lora": {"rank": 2}, "lr": 1e-2}))
    one.step(random_batch(0))
    one.save(tmp_path / "adapted", pair[0] / "model")
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert_close(load_file(tmp_path / "adapted" / file), load_file(pair[0] / "adapted" / file), 1e-5)


@dataclass
class Noting:
    ranks: Ranks
    done: Path

    def do(self, request: tuple[str, Any]) -> None:
        self.done.touch()


def first_that_ends(number: int, folder: Path) -> None:
    """The other one is told to do something, and then waits for one that is not there any more."""
    ranks = Ranks.join(number, 2, f"file://{folder}/rendezvous", "cpu")
    done = folder / "done"
    if number == 0:
        ranks.say(("anything", None))
        while not done.exists():
            os.sched_yield()
        os._exit(0)

    with pytest.raises(SystemExit, match=r"^1$"):
        follow(Noting(ranks, done), lambda said: None)
    os._exit(0)  # what torch would still tidy up is gone


def test_a_rank_whose_first_one_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    together(first_that_ends, 2, tmp_path)
