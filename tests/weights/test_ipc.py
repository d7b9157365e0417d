"""What CUDA IPC carries; that it carries it is tested on a GPU, by `freerun doctor` and by runs."""

import pytest
import torch

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.ipc import NONE, Flat, _check


def test_a_version_in_one_stretch_of_memory() -> None:
    tensors = {
        "a": torch.randn(3, 5).bfloat16(),
        "b": torch.randn(7),
        "scalar": torch.tensor(4.0, dtype=torch.float64),
        "c": torch.randn(1000, 3).bfloat16(),
    }
    flat = Flat.like(tensors)
    assert flat.version == NONE
    flat.fill(tensors)
    flat.version = 12
    assert flat.version == 12
    copies = flat.copied("cpu").tensors
    flat.fill({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert copies.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(copies[name], tensor)
        assert copies[name].dtype == tensor.dtype
        assert copies[name].data_ptr() % 16 == 0
    assert flat.version == 12, "the version is beside the tensors, not among them"


def test_a_version_that_was_overwritten_is_refused() -> None:
    flat = Flat.like({"a": torch.zeros(3)})
    flat.version = 6
    _check(flat, WeightsHandle("ipc", 6, ""))
    with pytest.raises(WeightsError, match="version 4 is gone: its place holds version 6"):
        _check(flat, WeightsHandle("ipc", 4, ""))
