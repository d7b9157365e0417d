"""Moments in 8 bits: their codes against a formulation in float64, number by number; learning with them as without."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from freerun.train.config import ResolvedTrainConfig, TrainConfig
from freerun.train.models import PolicyModel
from freerun.train.moments import Adam, empty_moments, has_blocks, mean_of, take_step, thresholds, variance_of
from freerun.train.needs import standing_bytes
from freerun.train.optimizer import AdamW, EightBitAdamW
from freerun.train.ranks import ALONE
from freerun.train.trained import Trained
from tests.tiny import tiny_decoder
from tests.train.test_offload import SHAPE

ADAM: dict[str, Any] = {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-5}


def gradients(*shape: int, steps: int, seed: int = 0) -> list[Tensor]:
    """Of sizes that differ by orders of magnitude; a column without any, and a row."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps + 1)]
    sizes = drawn.pop().mul(2).exp()
    sizes[..., 3], sizes[1] = 0.0, 0.0
    return [gradient * sizes for gradient in drawn]


class Plain:
    """AdamW with moments in 8 bits, a block at a time, in float64, by tables."""

    MEANS = np.array([math.copysign((code / 127) ** 2, code) for code in range(-127, 128)])
    VARIANCES = np.array([(code / 255) ** 8 for code in range(256)])

    def __init__(self, weight: np.ndarray, block: int = 256) -> None:
        self.weight, self.block, self.step = weight.copy(), block, 0
        self.mean, self.variance = np.zeros_like(weight), np.zeros_like(weight)

    def take(self, gradient: np.ndarray, lr: float, weight_decay: float, betas: Any, eps: float) -> None:
        self.step += 1
        mean = betas[0] * self.mean + (1 - betas[0]) * gradient
        variance = betas[1] * self.variance + (1 - betas[1]) * gradient**2
        unbiased = mean / (1 - betas[0] ** self.step), variance / (1 - betas[1] ** self.step)
        self.weight -= lr * weight_decay * self.weight + lr * unbiased[0] / (np.sqrt(unbiased[1]) + eps)
        for row in np.ndindex(self.weight.shape[:-1]):
            for start in range(0, self.weight.shape[-1], self.block):
                at = (*row, slice(start, start + self.block))
                self.mean[at], self.variance[at] = self._nearest(mean[at]), self._up_or_down(variance[at])

    def _nearest(self, mean: np.ndarray) -> np.ndarray:
        """The code whose root is nearest."""
        scale = np.float32(np.abs(mean).max())
        roots = np.sign(self.MEANS) * np.sqrt(np.abs(self.MEANS))
        shares = mean / max(scale, 1e-38)
        wanted = np.sign(shares) * np.sqrt(np.abs(shares))
        found: np.ndarray = self.MEANS[np.abs(roots - wanted[:, None]).argmin(1)] * scale
        return found

    def _up_or_down(self, variance: np.ndarray) -> np.ndarray:
        scale = np.float32(variance.max())
        found = np.zeros_like(variance)
        for place, number in enumerate(variance / max(scale, 1e-38)):
            threshold = (place * 12_664_746 + self.step * 9_560_334) % 2**24 / 2**24
            below = min(int(np.searchsorted(self.VARIANCES, number, "right")) - 1, 254)
            low, high = self.VARIANCES[below : below + 2]
            code = below + int((number - low) / (high - low) > threshold)
            found[place] = self.VARIANCES[max(code, int(number > 0))] * scale
        return found


@pytest.mark.parametrize("shape", [(5, 300), (4, 256), (3, 70), (2, 3, 513)])
def test_steps_are_those_of_a_plain_formulation(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    plain, moments = Plain(weight.numpy()), empty_moments(weight)
    for step, gradient in enumerate(gradients(*shape, steps=6), start=1):
        plain.take(gradient.numpy(), lr=1e-2, **ADAM)
        take_step(weight, gradient, moments, Adam(lr=1e-2, step=step, **ADAM))
        torch.testing.assert_close(weight, torch.from_numpy(plain.weight), atol=1e-12, rtol=0)
    rows = [part.flatten(0, -2) for part in moments]
    for found, expected in (
        (mean_of(rows[0], rows[1], torch.float64), plain.mean),
        (variance_of(rows[2], rows[3], torch.float64), plain.variance),
    ):
        torch.testing.assert_close(found.view(shape), torch.from_numpy(expected), atol=0, rtol=1e-12)


def test_a_variance_is_right_in_the_mean_and_follows_gradients_that_grow() -> None:
    """Rounded to the nearest code, one that moves by a thousandth in a step would stay where it is."""
    weight = torch.zeros(8, 256)
    moments, exact = empty_moments(weight), torch.zeros(8, 256)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 1001):
        size = 1.0 if step < 500 else torch.arange(256) / 64 + 0.2
        gradient = torch.randn(8, 256, generator=generator) * size
        take_step(weight, gradient, moments, Adam(0.0, 0.0, (0.9, 0.999), 1e-8, step))
        exact = 0.999 * exact + 0.001 * gradient.square()
    found = variance_of(moments.variance, moments.variance_scale)
    ratio = (found / exact).sqrt()
    assert ratio.mean() == pytest.approx(1.0, abs=0.02)
    assert ratio.std() < 0.1


def test_nothing_that_has_a_gradient_has_no_variance() -> None:
    """However small it is beside others of its block."""
    gradient = torch.full((2, 256), 1e-12)
    gradient[:, 0], gradient[:, 1] = 1.0, 0.0
    weight = torch.zeros(2, 256)
    moments = empty_moments(weight)
    take_step(weight, gradient, moments, Adam(1.0, 0.0, (0.9, 0.95), 1e-8, 1))
    variance = variance_of(moments.variance, moments.variance_scale)
    assert (variance[:, 2:] > 0).all()
    assert not variance[:, 1].any()
    assert not moments.mean[:, 1].any()


def test_thresholds_are_spread_over_places_and_steps() -> None:
    along = thresholds(7, 512)
    assert torch.equal(along[:256], along[256:])
    for spread in (along[:256], torch.stack([thresholds(step, 1)[0] for step in range(256)])):
        assert (spread.sort().values - torch.arange(256) / 256).abs().max() < 0.02


def test_what_is_small_or_narrow_or_a_vector_stays_as_it_is() -> None:
    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in ((64, 64), (63, 64), (9000,), (4096, 8), (2, 64, 64))]
    assert [has_blocks(weight.shape) for weight in weights] == [True, False, False, False, True]
    optimizer = EightBitAdamW([{"params": weights}], lr=1e-2)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    kinds = [{tensor.dtype for tensor in optimizer.state[weight].values()} for weight in weights]
    few = {torch.float32, torch.int8, torch.uint8}
    assert kinds == [few, {torch.float32}, {torch.float32}, {torch.float32}, few]


def lesson(decoder: Decoder, seed: int, kind: Any, steps: int) -> tuple[list[float], Tensor]:
    """Say five letters in reverse order, other ones in each step: losses, and the weights in the end."""
    config = TrainConfig(optimizer_state=kind, lr=3e-3, weight_decay=0.1).on("cpu")
    trained = Trained(PolicyModel(decoder, 1.0), config, ALONE)
    generator, losses = torch.Generator().manual_seed(seed), list[float]()
    for _ in range(steps):
        letters = torch.randint(2, 12, (32, 5), generator=generator)
        tokens = torch.cat([letters, torch.zeros(32, 1, dtype=torch.int64), letters.flip(1)], dim=1)
        hidden = decoder(tokens.flatten(), torch.arange(11).repeat(32), PackedAttention([11] * 32))
        logits = decoder.logits(hidden).view(32, 11, -1)[:, 5:-1]
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 6:].flatten())
        torch.autograd.backward(loss)
        losses.append(loss.item())
        trained.clip()
        trained.apply(config.lr)
    return losses, torch.cat([parameter.detach().flatten() for parameter in trained.parameters])


def student(seed: int) -> Decoder:
    return tiny_decoder(seed, std=0.1, hidden_size=64, intermediate_size=128)


def test_it_learns_as_with_32_bits() -> None:
    start = torch.cat([parameter.detach().flatten() for parameter in student(0).parameters()])
    (usual, theirs), (losses, ours) = (lesson(student(0), 0, kind, 50) for kind in ("32bit", "8bit"))
    assert usual[-1] < 0.8 * usual[0]
    assert losses[-1] == pytest.approx(usual[-1], rel=0.02)
    assert (ours - theirs).norm() < 0.05 * (theirs - start).norm()


def test_the_plan_counts_two_bytes_a_weight_and_the_scales() -> None:
    usual, few = (on_gpu(optimizer_state=kind) for kind in ("32bit", "8bit"))
    spared = standing_bytes(SHAPE, usual) - standing_bytes(SHAPE, few)
    assert spared == pytest.approx((8 - 2 - 2 * 4 / 256) * SHAPE.num_parameters, abs=8)
    weight = torch.nn.Parameter(torch.zeros(512, 1024))
    for kind, each in ((AdamW, 8), (EightBitAdamW, 2 + 8 / 256)):
        weight.grad = torch.ones_like(weight)
        optimizer = kind([weight])
        optimizer.step()
        taken = sum(tensor.nbytes for name, tensor in optimizer.state[weight].items() if name != "step")
        assert taken == each * weight.numel()


def on_gpu(**train: Any) -> ResolvedTrainConfig:
    return TrainConfig(**train).on("cuda")
