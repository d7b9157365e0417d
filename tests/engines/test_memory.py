"""The cache's size, worked out beforehand; the GPU's memory is told by a stand-in, the arithmetic is ours."""

import pytest
import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.engines.embedded import memory
from tests.tiny import tiny_decoder

GB = 2**30


class OnAGpu:
    """A decoder that says it is on a GPU."""

    def __init__(self) -> None:
        self._decoder = tiny_decoder()
        self.shape = self._decoder.shape
        weight = type("Weight", (), {"is_cuda": True, "element_size": lambda self: 2})()
        self.embed = type("Embed", (), {"weight": weight})


def tokens(monkeypatch: pytest.MonkeyPatch, free: float, total: float, ours: float, **config: object) -> int:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GB), int(total * GB)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(ours * GB))
    return memory.cache_tokens(OnAGpu(), EngineConfig.model_validate(config).on("cuda"))  # type: ignore[arg-type]


def test_a_cpu_has_a_plain_default() -> None:
    assert memory.cache_tokens(tiny_decoder(), EngineConfig().on("cpu")) == 65_536
    assert memory.cache_tokens(tiny_decoder(), EngineConfig(cache_tokens=100).on("cpu")) == 100


def test_a_gpu_gives_its_share_less_weights_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tokens(monkeypatch, free=76, total=80, ours=3)
    shape = OnAGpu().shape
    work = memory.working_bytes(shape, 2, EngineConfig().on("cuda"), 2 * shape.num_parameters)
    assert alone == (int(0.9 * 80 * GB) - 3 * GB - work) // memory.bytes_per_token(shape, 2)
    assert tokens(monkeypatch, free=76, total=80, ours=3, memory_share=0.45) < 0.5 * alone
    beside_others = tokens(monkeypatch, free=20, total=80, ours=3)
    assert beside_others == (20 * GB - work) // memory.bytes_per_token(shape, 2)


def test_what_cannot_fit_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for config, says in (
        ({"cache_tokens": 10**12}, "engine.cache_tokens=1,000,000,000,000 is too many"),
        ({}, "smaller model"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            tokens(monkeypatch, free=0.5, total=80, ours=3, **config)
        assert "\n" not in str(caught.value)
