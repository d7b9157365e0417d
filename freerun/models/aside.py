"""Tensors that wait in the machine's memory for the backward pass, instead of a GPU's.

Pinned memory is slow to get, and torch rounds each piece of it up to a power of two and keeps one of every size that
there ever was. So it is taken in pieces of one size, which are used again: the most that ever waited at a time is what
is taken. Copies go on the current stream, as whatever made a tensor and whatever needs it does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_PIECE = 2**26
_free: list[Tensor] = []
"""Pieces that nothing waits in."""


class _Waiting:
    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._dtype, self._device = tensor.shape, tensor.dtype, tensor.device
        self._pieces: list[Tensor] = []
        for part in torch.split(tensor.detach().contiguous().view(-1).view(torch.uint8), _PIECE):
            piece = _free.pop() if _free else torch.empty(_PIECE, dtype=torch.uint8, pin_memory=tensor.is_cuda)
            piece[: len(part)].copy_(part, non_blocking=True)
            self._pieces.append(piece)

    def back(self) -> Tensor:
        content = torch.empty(self._shape.numel() * self._dtype.itemsize, dtype=torch.uint8, device=self._device)
        for part, piece in zip(torch.split(content, _PIECE), self._pieces, strict=True):
            part.copy_(piece[: len(part)], non_blocking=True)
        return content.view(self._dtype).view(self._shape)

    def __del__(self) -> None:
        """With the graph that needed it, whether that had a backward pass or not. What was still to be copied comes
        before whatever is copied next."""
        _free.extend(self._pieces)


@contextmanager
def waiting_aside(tensor: Tensor) -> Iterator[None]:
    """Where that one is saved in the block, it is aside. Others are saved as ever."""

    def pack(saved: Tensor) -> Tensor | _Waiting:
        is_it = saved.data_ptr() == tensor.data_ptr() and saved.shape == tensor.shape
        return _Waiting(saved) if is_it else saved

    with saved_tensors_hooks(pack, lambda packed: packed.back() if isinstance(packed, _Waiting) else packed):
        yield
