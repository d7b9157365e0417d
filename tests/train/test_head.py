"""The chunked head against plain torch in float64: values and gradients, whatever the size of the chunks."""

import pytest
import torch

from freerun.train import head
from freerun.train.head import logprobs_and_entropy


def inputs(count: int, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 16, generator=generator).to(device, dtype).requires_grad_()
    weight = torch.randn(301, 16, generator=generator).to(device, dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 301, (count,), generator=generator).to(device)


def loss(logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    """Something that weighs every token differently."""
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype, device=logprobs.device)
    return (weights * logprobs.exp()).sum() + 0.3 * (weights.square() * entropy).sum()


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logp = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    return torch.stack([logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)])


@pytest.mark.parametrize("chunk", [301, 301 * 7, 2**22])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients(chunk: int, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head._CHUNK, "cpu", chunk)
    hidden, weight, targets = inputs(23, torch.float64)
    expected = plain(hidden, weight, targets, temperature)
    wanted = torch.autograd.grad(loss(*expected), (hidden, weight))
    got = logprobs_and_entropy(hidden, weight, targets, temperature)
    torch.testing.assert_close(torch.stack(got), expected)
    for mine, theirs in zip(torch.autograd.grad(loss(*got), (hidden, weight)), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    hidden, weight, targets = inputs(5, torch.float32)
    logprobs, _ = logprobs_and_entropy(hidden, weight.detach(), targets, 1.0)
    torch.autograd.backward(logprobs.sum())
    expected = torch.autograd.grad(plain(hidden, weight, targets, 1.0)[0].sum(), hidden)[0]
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, expected, atol=1e-5, rtol=1e-5)


def test_no_trained_tokens() -> None:
    hidden, weight, targets = inputs(0, torch.float32)
    logprobs, entropy = logprobs_and_entropy(hidden, weight, targets, 1.0)
    assert (len(logprobs), len(entropy)) == (0, 0)
    torch.autograd.backward(logprobs.sum())
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_on_a_gpu(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head._CHUNK, "cuda", 301 * 40)
    hidden, weight, targets = inputs(101, dtype, "cuda")
    expected = plain(hidden, weight, targets, 0.8)
    wanted = torch.autograd.grad(loss(*expected), (hidden, weight))
    got = logprobs_and_entropy(hidden, weight, targets, 0.8)
    torch.testing.assert_close(torch.stack(got).double(), expected, atol=1e-4, rtol=1e-4)
    for mine, theirs in zip(torch.autograd.grad(loss(*got), (hidden, weight)), wanted, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < tolerance
