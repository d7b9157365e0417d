"""Weights of 8 bits on a GPU: kernels against float64, the fused pass against the decoder, swaps in mid-answer under
CUDA graphs. Skipped without a GPU that multiplies in FP8."""

import random
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.attention import packed_attention
from freerun.models.fp8 import Fp8Linear, Rounded, round_layers, rounded
from freerun.models.fp8_tiling import Product, Tiling, Tilings
from freerun.models.own import OwnDecoder
from tests.tiny import tiny_decoder

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("needs a GPU", allow_module_level=True)

from freerun.engines.embedded import fp8
from freerun.engines.embedded.fused import DeviceCache, PrefillAttention, tile_tokens
from freerun.engines.embedded.prefill_layout import PrefillBatch, PrefillCapacity
from freerun.engines.embedded.sequence import Chunk
from freerun.models.fp8_gpu import product

SHAPE = {"vocab_size": 512, "hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 2048}
MATRICES = [(64, 96), (576, 960), (1536, 2048), (8960, 1536), (1536, 17920), (3072, 1024)]
"""Inputs and outputs: the models' that it is for, and a tiny one's."""


def decoder(seed: int, dtype: torch.dtype = torch.bfloat16) -> OwnDecoder:
    return tiny_decoder(seed, dtype=dtype, **SHAPE).cuda()


def in_fp8(seed: int, dtype: torch.dtype = torch.bfloat16) -> OwnDecoder:
    model = decoder(seed, dtype)
    round_layers(model)
    return model


def off(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


def test_rows_are_rounded_as_on_a_cpu() -> None:
    for width in (48, 576, 8960):
        x = (torch.randn(37, width) * torch.logspace(-6, 6, 37)[:, None]).bfloat16()
        x[5] = 0
        got, expected = rounded(x.cuda()), rounded(x)
        assert torch.equal(got.codes.float().cpu(), expected.codes.float())
        assert torch.equal(got.scales.cpu(), expected.scales)


@pytest.mark.parametrize(("ins", "outs"), MATRICES)
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_any_number_of_rows(ins: int, outs: int, bias: bool) -> None:
    """However they are cut up."""
    base, tilings = nn.Linear(ins, outs, bias=bias, device="cuda", dtype=torch.bfloat16), Tilings()
    layer = Fp8Linear(base, tilings)
    weight = rounded(base.weight.detach()).wide.double()
    for rows in (1, 7, 16, 17, 33, 64, 100, 256, 300, 1025):
        x = rounded(torch.randn(rows, ins, device="cuda"))
        expected = F.linear(x.wide.double(), weight, None if base.bias is None else base.bias.double())

        def error(tiling: Tiling, x: Rounded = x, expected: torch.Tensor = expected) -> float:
            found = off(product(layer, x, tiling).float().sum(0), expected)
            assert found < 4e-3, tiling
            return found

        tilings.choose(Product.of(rows, outs, ins), error, may_split=True)
        assert off(layer.multiply(x), expected) < 4e-3
        assert off(layer.multiply_in_parts(x).sum(0), expected) < 4e-3


@pytest.mark.parametrize("width", [64, 576, 1536])
@pytest.mark.parametrize("parts", [0, 1, 4])
def test_norm_and_gate_are_rounded(width: int, parts: int) -> None:
    norm = nn.RMSNorm(width, eps=1e-6).cuda().bfloat16()
    norm.weight.data.normal_()
    residual, delta = torch.randn(37, width, device="cuda"), torch.randn(max(parts, 1), 37, width, device="cuda")
    added = residual + delta.sum(0) if parts else residual.clone()
    expected = F.rms_norm(added.double(), (width,), norm.weight.double(), 1e-6)
    got = fp8.add_norm_rounded(residual, delta if parts else None, norm)
    torch.testing.assert_close(residual, added)
    assert off(got.wide, expected) < 0.04
    assert off(got.wide, rounded(expected.float()).wide.double()) < 2e-3, "but for those between two codes"
    gate_up = torch.randn(37, 2 * width, dtype=torch.bfloat16, device="cuda")
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert off(fp8.silu_mul_rounded(gate_up).wide, rounded((F.silu(gate) * up).float()).wide.double()) < 2e-3


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_fused_pass_is_the_decoder(family: str) -> None:
    model = tiny_decoder(1, dtype=torch.float32, **SHAPE, model_type=family).cuda()
    round_layers(model)
    tokens = torch.randint(0, 512, (70,), generator=torch.Generator().manual_seed(0)).cuda()
    chunks = [Chunk([0] * 70, 0, [7, 2, 5, 1, 3])]
    batch = PrefillBatch(PrefillCapacity.just_for(chunks, tile_tokens(model.shape)), idle_block=0, chunks=chunks)
    attend = PrefillAttention(DeviceCache(model.shape, 9, 16, torch.float32), model.inv_freq.cuda(), batch)
    with torch.no_grad():
        got = fp8.fused(model).forward(tokens, attend)
        expected = model(tokens, torch.arange(70, device="cuda"), packed_attention([70], tokens.device, torch.float32))
    assert off(got, expected.double()) < 0.03


def logprobs(model: OwnDecoder, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """By one packed pass."""
    sequence = torch.tensor(prompt + tokens, device="cuda")
    attend = packed_attention([len(sequence)], sequence.device, model.embed.weight.dtype)
    with torch.no_grad():
        hidden = model(sequence, torch.arange(len(sequence), device="cuda"), attend)
        found = model.logits(hidden[len(prompt) - 1 : -1]).float().log_softmax(-1)
    return found.gather(1, sequence[len(prompt) :, None])[:, 0].cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_swapped_mid_answer_many_times(dtype: torch.dtype) -> None:
    """Each token's log-probability is far closer to its version, rounded, than to the wide one."""
    versions = [decoder(seed, dtype) for seed in range(4)]
    config = EngineConfig(cache_tokens=16_384, max_running=24).on("cuda", burst=4, step_tokens=100, block_tokens=16)
    engine = EmbeddedEngine(in_fp8(0, dtype), config)
    places = {name: parameter.data_ptr() for name, parameter in engine._decoder.named_parameters()}
    dice = random.Random(0)
    prompts = {str(i): [dice.randrange(2, 512) for _ in range(dice.randrange(1, 150))] for i in range(8)}
    for id, prompt in prompts.items():
        sampling = Sampling(max_new_tokens=dice.randrange(20, 300), seed=int(id), ignore_eos=True)
        engine.submit(id, prompt, sampling, 4)
    done, steps = dict[tuple[str, int], EndedAnswer](), 0
    while engine.has_work:
        done |= {(id, answer.index): answer for id, answer in engine.step()}
        steps += 1
        if steps % 12 == 0 and engine.version < 3:
            engine.update_weights(engine.version + 1, dict(versions[engine.version + 1].named_parameters()))
    assert engine.version == 3
    assert places == {name: parameter.data_ptr() for name, parameter in engine._decoder.named_parameters()}
    narrow, apart, apart_wide = [in_fp8(seed, dtype) for seed in range(4)], [], []
    for (id, _), answer in done.items():
        for version in set(answer.versions):
            at = [i for i, v in enumerate(answer.versions) if v == version]
            got = torch.tensor(answer.logprobs)[at]
            apart.append((got - logprobs(narrow[version], prompts[id], answer.tokens)[at]).abs())
            apart_wide.append((got - logprobs(versions[version], prompts[id], answer.tokens)[at]).abs())
    # numbers between two codes are rounded to either, by the order of sums: and that is passed on by every layer
    assert torch.cat(apart).mean() < torch.cat(apart_wide).mean() * (0.2 if dtype is torch.float32 else 0.6)


def test_an_answer_does_not_depend_on_the_burst() -> None:
    sampling = Sampling(max_new_tokens=50, seed=9, ignore_eos=True)
    answers = []
    for burst in (3, 8):
        engine = EmbeddedEngine(in_fp8(2), EngineConfig(cache_tokens=8192).on("cuda", burst=burst), guesses=False)
        engine.submit("x", [3, 4, 5], sampling, 3)
        while engine.has_work:
            answers += [(answer.index, tuple(answer.tokens)) for _, answer in engine.step()]
    assert len(answers) == 6
    assert len(set(answers)) == 3


def test_rounded_weights_take_half_of_the_memory() -> None:
    wide = tiny_decoder(0, dtype=torch.bfloat16, hidden_size=1024, intermediate_size=4096, num_hidden_layers=4).cuda()
    before = torch.cuda.memory_allocated()
    inside = sum(parameter.nbytes for layer in wide.layers for parameter in layer.parameters())
    narrow = deepcopy(wide)
    del wide
    round_layers(narrow)
    assert torch.cuda.memory_allocated() < before - 0.45 * inside
