"""Moments in 8 bits on a GPU: the kernel does what plain torch does, and leaves no wide tensor behind."""

import pytest
import torch

from freerun.train.moments import Adam, empty_moments, take_step
from tests.train.test_gpu_trainer import off, trained
from tests.train.test_moments import ADAM, gradients

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


@pytest.mark.parametrize("shape", [(64, 4096), (7, 300), (3, 16), (2, 40, 513)])
def test_it_steps_as_plain_torch(shape: tuple[int, ...]) -> None:
    """Codes are the same but where rounding tips one to its neighbour."""
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plain, there = start.clone(), start.cuda()
    theirs, ours = empty_moments(plain), empty_moments(there)
    for step, gradient in enumerate(gradients(*shape, steps=5), start=1):
        take_step(plain, gradient.float(), theirs, Adam(lr=1e-2, step=step, **ADAM))
        take_step(there, gradient.float().cuda(), ours, Adam(lr=1e-2, step=step, **ADAM))
    assert (there.cpu() - plain).norm() < 1e-4 * (plain - start).norm()
    for ours_codes, codes in ((ours.mean, theirs.mean), (ours.variance, theirs.variance)):
        apart = (ours_codes.cpu().int() - codes.int()).abs()
        assert apart.max() <= 1
        assert apart.float().mean() < 1e-3
    torch.testing.assert_close(ours.mean_scale.cpu(), theirs.mean_scale, atol=0, rtol=1e-5)
    torch.testing.assert_close(ours.variance_scale.cpu(), theirs.variance_scale, atol=0, rtol=1e-5)


def test_a_step_needs_no_memory_of_its_own() -> None:
    weight, gradient = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    moments = empty_moments(weight)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    take_step(weight, gradient, moments, Adam(lr=1e-3, step=1, **ADAM))
    assert torch.cuda.max_memory_allocated() == before


def test_it_learns_as_with_32_bits() -> None:
    (ours, few), (theirs, usual) = trained(optimizer_state="8bit"), trained()
    assert few["loss"] == pytest.approx(usual["loss"], abs=0.01)
    assert off(ours, theirs) < 0.1
