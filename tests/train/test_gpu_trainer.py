"""The trainer on a GPU: the same loss as on a CPU, and the same with and without each thing that makes it faster."""

import random
from typing import Any

import pytest
import torch

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.machine.device import Device
from freerun.models.attention import LONG, GpuPackedAttention, PackedAttention
from freerun.models.decoder import Decoder, Recompute
from freerun.train import budget
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.tiny import tiny_decoder

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SHAPE: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                         "intermediate_size": 256, "max_position_embeddings": 16_384}  # fmt: skip


def decoder(device: str = "cuda") -> Decoder:
    return tiny_decoder(1, std=0.05, **SHAPE).to(device)


def batch(version: int, longest: int = 200) -> Batch:
    dice = random.Random(version)

    def sample() -> Sample:
        length = dice.randrange(4, longest)
        return Sample([dice.randrange(2, 48) for _ in range(length)], [False] * 2 + [True] * (length - 2),
                      [-3.8] * length, [version] * length, FinishReason.STOP, reward=dice.random())  # fmt: skip

    return Batch(version, [Group(i, Task("", "", []), [sample() for _ in range(4)], version) for i in range(4)])


def trained(
    device: Device = "cuda", steps: int = 3, compile: bool = False, **config: Any
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Where three steps lead, and what the last one reported."""
    settings = TrainConfig(lr=1e-3, micro_batch_tokens=700, **config).on(device, compile=compile)
    learner = Learner(decoder(device), settings)
    for version in range(steps):
        result = learner.step(batch(version))
    return {name: p.detach().cpu().clone() for name, p in learner.policy._owner.named_parameters()}, result.metrics


def off(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How differently the weights moved, relative to how far."""
    start = {f"decoder.{name}": p.detach() for name, p in decoder("cpu").named_parameters()}
    moved = sum((other[name] - start[name]).norm() ** 2 for name in start) ** 0.5
    return float(sum((mine[name] - other[name]).norm() ** 2 for name in start) ** 0.5 / moved)


def test_float32_is_what_a_cpu_gives() -> None:
    (ours, _), (theirs, _) = trained(dtype="float32"), trained("cpu")
    assert off(ours, theirs) < 0.02


def test_bf16_over_float32_weights_with_and_without_what_makes_it_faster() -> None:
    theirs, exact = trained("cpu")
    plain, metrics = trained()
    assert metrics["loss"] == pytest.approx(exact["loss"], abs=0.01)
    assert metrics["entropy"] == pytest.approx(exact["entropy"], rel=0.01)
    assert off(plain, theirs) < 0.35, "Adam makes signs of small gradients, and bf16 turns some of them"
    again: list[tuple[bool, Recompute]] = [(True, False), (False, True), (True, True), (True, "all"), (True, "offload")]
    for compiled, recompute in again:
        other, report = trained(compile=compiled, recompute=recompute)
        assert report["loss"] == pytest.approx(metrics["loss"], abs=5e-3)
        assert report["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=0.03)
        assert off(other, plain) < 0.35


def test_engine_and_trainer_agree_in_bf16() -> None:
    from freerun.engines.base import Sampling
    from freerun.engines.config import EngineConfig
    from freerun.engines.embedded.engine import EmbeddedEngine

    low = decoder().bfloat16()
    low.inv_freq = decoder().inv_freq
    engine = EmbeddedEngine(low, EngineConfig(cache_tokens=16_384))
    engine.submit("a", [5, 6, 7, 8], Sampling(max_new_tokens=200, seed=1, ignore_eos=True), 8)
    samples = []
    while engine.has_work:
        for _, c in engine.step():
            samples.append(Sample([5, 6, 7, 8, *c.tokens], [False] * 4 + [True] * 200, [0.0] * 4 + c.logprobs,
                                  [-1] * 4 + c.versions, c.finish, reward=float(c.index % 2)))  # fmt: skip
    metrics = Learner(decoder(), TrainConfig()).step(Batch(0, [Group(0, Task("", "", []), samples, 0)]))
    assert metrics.metrics["engine_mismatch"] < 0.01


def test_long_sequences_among_short_ones() -> None:
    lengths = [3, LONG + 77, 500, 20, LONG, 1]
    q, k, v = (torch.randn(sum(lengths), heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2))
    got = GpuPackedAttention(lengths, q.device)(0, q, k, v)
    expected = PackedAttention(lengths, q.device)(0, q.float(), k.float(), v.float())
    assert (got.float() - expected).norm() / expected.norm() < 0.01


def test_a_shared_prefix_short_and_long() -> None:
    lengths = [300, 20, LONG + 5, 7, 1, LONG, 40]
    prefixes: list[list[range]] = [
        [], [range(250)], [], [range(320, 330)], [range(250), range(300, 310)], [range(250)], [range(320, 320 + LONG)]
    ]  # fmt: skip

    def read(kind: type, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(0)
        qkv = [torch.randn(sum(lengths), heads, 64, device="cuda").bfloat16() for heads in (4, 2, 2)]
        q, k, v = (x.to(dtype).requires_grad_() for x in qkv)
        out = kind(lengths, q.device, prefixes)(0, q, k, v)
        torch.autograd.backward((out * torch.linspace(-1, 1, 64, device="cuda").to(dtype)).sum())
        return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]

    for got, expected in zip(
        read(GpuPackedAttention, torch.bfloat16), read(PackedAttention, torch.float32), strict=True
    ):
        assert (got.float() - expected).norm() / expected.norm() < 0.01


def test_the_budget_is_found() -> None:
    learner = Learner(decoder(), TrainConfig())
    assert learner._passes.tokens >= 2048


def test_the_budget_is_what_was_tried_where_more_does_not_fit() -> None:
    learner = Learner(decoder(), TrainConfig())
    tokens, peak = budget._peak(learner.policy, torch.device("cuda"), 8, [508] * 4)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2 * peak) / total)
    try:
        assert learner._passes.tokens == tokens
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_pass_that_does_not_fit_is_cut_and_done_again() -> None:
    learner = Learner(decoder(), TrainConfig(micro_batch_tokens=1_000_000))
    learner.step(batch(0))
    torch.cuda.empty_cache()
    long = Batch(1, [group for copy in range(300) for group in batch(1).groups])
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 600 * 2**20) / total)
    try:
        result = learner.step(long)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "did not fit into memory" in result.warnings[0]
    assert learner.version == 2


def test_offloaded_state_is_in_the_machines_memory_and_stays_there() -> None:
    """The same steps to rounding; after loading it, too."""
    (ours, _), (theirs, _) = trained(dtype="float32", optimizer_state="offload"), trained(dtype="float32")
    assert off(ours, theirs) < 1e-3
    learner = Learner(decoder(), TrainConfig(lr=1e-3, optimizer_state="offload").on("cuda", compile=False))
    learner.step(batch(0))
    learner.load_state(learner.state())
    states = learner.state()["optimizer"].values()
    assert {tensor.device.type for state in states for tensor in state.values()} == {"cpu"}
    assert {parameter.device.type for parameter in learner.policy.parameters} == {"cuda"}
