"""What waits aside for the backward pass comes back as it was, and its room is used again."""

import gc

import torch

from freerun.models import aside
from freerun.models.aside import waiting_aside

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def squared(x: torch.Tensor) -> torch.Tensor:
    with waiting_aside(x):
        return (x * x).sum()


def test_it_comes_back_and_its_room_is_used_again() -> None:
    aside._free.clear()
    for size in (5, 3, 5):
        x = torch.randn(size, 4, device=DEVICE, requires_grad=True)
        torch.autograd.backward(squared(x))
        torch.testing.assert_close(x.grad, 2 * x.detach())
        gc.collect()
    assert len(aside._free) == 2, "the most that waited at a time: the product saves it twice"


def test_more_than_a_piece() -> None:
    aside._free.clear()
    rows = aside._PIECE // 4 // 1024 + 3
    x = torch.randn(rows, 1024, device=DEVICE).requires_grad_()
    torch.autograd.backward(squared(x))
    torch.testing.assert_close(x.grad, 2 * x.detach())
    assert len(aside._free) == 4
    aside._free.clear()


def test_what_had_no_backward_pass_gives_its_room_back() -> None:
    aside._free.clear()
    loss = squared(torch.randn(5, 4, device=DEVICE, requires_grad=True))
    assert not aside._free
    del loss
    gc.collect()
    assert len(aside._free) == 2
