"""Weights of 8 and 4 bits below an adapter: what they stand for, and that all who compute with them agree."""

from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.load import load_for_engine
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.quantised import QuantisedLinear, quantised, quantised_product, widened
from freerun.models.shape import AdapterShape
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.weights.common import CommonFile
from tests.engines.test_embedded import SAMPLING, recomputed, run
from tests.tiny import tiny_decoder
from tests.train.test_learner import random_batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("bits", "off"), [(8, 0.008), (4, 0.1)])
@pytest.mark.parametrize("width", [48, 64, 320])
def test_a_matrix_is_close_to_what_it_was(bits: int, off: float, width: int) -> None:
    weight = torch.randn(40, width, generator=torch.Generator().manual_seed(width)).to(DEVICE)
    weight[3] = 0
    codes, scale = quantised(weight, bits)
    assert codes.numel() * codes.itemsize == weight.numel() * bits // 8
    wide = widened(codes, scale, torch.float32)
    assert (wide - weight).norm() / weight.norm() < off
    assert wide[3].eq(0).all()
    again = quantised(wide, bits)
    torch.testing.assert_close(widened(*again, torch.float32), wide, atol=1e-6, rtol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_widens_as_torch_does(bits: int, dtype: torch.dtype) -> None:
    codes, scale = quantised(torch.randn(333, 832, device="cuda"), bits)
    torch.testing.assert_close(widened(codes, scale, dtype).cpu(), widened(codes.cpu(), scale.cpu(), dtype))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "outs", "width"), [(1, 48, 64), (17, 333, 832), (64, 5_120, 2_048)])
def test_a_few_rows_are_multiplied_as_many_are(bits: int, rows: int, outs: int, width: int) -> None:
    codes, scale = quantised(torch.randn(outs, width, device="cuda"), bits)
    x = torch.randn(rows, width, device="cuda").bfloat16()
    many = torch.cat([x, torch.zeros(100, width, device="cuda", dtype=x.dtype)])
    got = quantised_product(x, codes, scale, None).float()
    expected = x.double() @ widened(codes, scale, torch.bfloat16).double().T
    assert (got - expected).norm() / expected.norm() < 4e-3
    assert (got - quantised_product(many, codes, scale, None)[:rows]).norm() / expected.norm() < 4e-3


@pytest.mark.parametrize("bits", [8, 4])
def test_gradients_of_what_comes_in_compiled_too(bits: int) -> None:
    codes, scale = quantised(torch.randn(24, 64, device=DEVICE), bits)
    bias = torch.randn(24, device=DEVICE)
    x = torch.randn(5, 64, device=DEVICE, requires_grad=True)

    def squared(x: torch.Tensor) -> torch.Tensor:
        return quantised_product(x, codes, scale, bias).square().sum()

    torch.autograd.backward(squared(x))
    got, x.grad = x.grad, None
    wide = widened(codes, scale, torch.float32)
    torch.autograd.backward(torch.nn.functional.linear(x, wide, bias).square().sum())
    torch.testing.assert_close(got, x.grad)
    x.grad = None
    torch.autograd.backward(torch.compile(squared, backend="aot_eager", fullgraph=True)(x))
    torch.testing.assert_close(got, x.grad)


def folder(tmp_path: Path, **changes: Any) -> Path:
    save_decoder(tiny_decoder(3, **changes), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("bits", [8, 4])
def test_engine_and_trainer_agree_and_what_is_saved_is_what_was_trained(tmp_path: Path, bits: int) -> None:
    model = folder(tmp_path)
    train = {"lora": {"rank": 3, "bits": bits}, "lr": 3e-2, "kl": {"coef": 0.01}, "recompute": bits == 4}
    learner = Learner.from_folder(model, TrainConfig.model_validate(train), common=CommonFile(tmp_path))
    adapter, settings = AdapterShape(3, 6.0, bits), EngineConfig(cache_tokens=1024, dtype="float32")
    engine = EmbeddedEngine(load_for_engine(model, settings, adapter=adapter, common=CommonFile(tmp_path)), settings)
    assert isinstance(load_decoder(model, bits=bits).get_submodule("layers.0.qkv"), QuantisedLinear)
    before = learner.policy.tensors()
    for version in range(2):
        learner.step(random_batch(version, version))
    engine.update_weights(2, dict(learner.policy.part(adapter_alone=True)))
    engine.submit("a", [5, 6, 7], SAMPLING, 3)
    for answer in run(engine).values():
        with torch.no_grad():
            expected = recomputed(learner.decoder, [5, 6, 7], answer.tokens)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected.cpu(), atol=1e-4, rtol=1e-4)
    learner.save(tmp_path / "saved", like=model)
    answer = next(iter(run_again(engine).values()))
    saved = recomputed(load_decoder(tmp_path / "saved"), [5, 6, 7], answer.tokens)
    torch.testing.assert_close(torch.tensor(answer.logprobs), saved, atol=1e-3, rtol=1e-3)
    after = learner.policy.tensors()
    assert not torch.equal(before["layers.0.qkv.weight"], after["layers.0.qkv.weight"])
    assert torch.equal(before["embed.weight"], after["embed.weight"])


def run_again(engine: EmbeddedEngine) -> dict[tuple[str, int], Any]:
    engine.submit("b", [5, 6, 7], SAMPLING, 1)
    return run(engine)


def test_a_base_takes_the_bytes_that_a_plan_reckons_with(tmp_path: Path) -> None:
    model = folder(tmp_path, hidden_size=64, head_dim=16, intermediate_size=128)
    for bits in (16, 8, 4):
        decoder = load_decoder(model, torch.bfloat16, bits=bits)
        matrices = sum(parameter.nbytes for parameter in decoder.parameters() if parameter.dim() > 1)
        assert matrices == AdapterShape(3, 6.0, bits).base_bytes(decoder.shape, 2)


def test_what_it_cannot_be_used_with_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"train\.lora\.bits=8 rounds weights that do not learn: set train\.lora\.rank"
    ):
        TrainConfig.model_validate({"lora": {"bits": 8}})
    with pytest.raises(ConfigError, match=r"train\.lora\.bits=8 works with Freerun's own code"):
        load_decoder(folder(tmp_path), backend="transformers", bits=8)


@pytest.mark.parametrize("recompute", [True, "all"])
def test_a_mixture_of_experts_keeps_routers_and_experts_as_they_are(tmp_path: Path, recompute: Any) -> None:
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    model = folder(tmp_path, model_type="qwen3_moe", hidden_size=64, head_dim=16, **mixture)
    decoder = load_decoder(model, torch.bfloat16, bits=8)
    assert {name.rpartition(".")[2] for name in decoder.adaptable} == {"qkv", "out"}
    matrices = sum(parameter.nbytes for parameter in decoder.parameters() if parameter.dim() > 1)
    adapter = AdapterShape(3, 6.0, 8)
    assert matrices == adapter.base_bytes(decoder.shape, 2)
    learner = Learner.from_folder(
        model, TrainConfig.model_validate({"lora": {"rank": 3, "bits": 8}, "recompute": recompute})
    )
    learner.step(random_batch(0, 0))
    numbers = sum(tensor.numel() for _, tensor in learner.policy.part(adapter_alone=True))
    assert numbers == adapter.num_parameters(decoder.shape)
