"""Layers of transformers' code, compiled: nothing in the way but their attention and experts, and the same numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from freerun.models.attention import PackedAttention
from freerun.models.borrowed import BorrowedDecoder
from freerun.models.borrowed_compiled import compile_layers
from freerun.models.decoder import Recompute
from tests.architectures import random_decoder

DENSE = (
    *("gemma2", "gemma3_text", "phi3", "glm4", "cohere2", "starcoder2", "stablelm", "gpt_neox", "gpt2", "opt"),
    *("mistral", "olmo2"),
)
MIXTURES = ("deepseek_v3", "gpt_oss", "mixtral")
PASSES = ([7, 12, 3], [20, 5], [64])


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """What others have compiled counts as theirs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def arranged(family: str, recompute: Recompute, backend: Any, monkeypatch: pytest.MonkeyPatch) -> BorrowedDecoder:
    monkeypatch.setattr("freerun.models.borrowed.compile_layers", partial(compile_layers, backend=backend))
    decoder = random_decoder(family)
    decoder.arrange(True, recompute)
    return decoder


def computed(decoder: BorrowedDecoder, lengths: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss of a packed pass, and its gradient."""
    tokens = torch.cat([torch.arange(length) % 40 + 2 for length in lengths])
    positions = torch.cat([torch.arange(length) for length in lengths])
    logits = decoder.logits(decoder(tokens, positions, PackedAttention(lengths)))
    loss = logits.float().log_softmax(-1)[:, 5].mean()
    torch.autograd.backward(loss)
    gradient = {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
    decoder.zero_grad()
    return loss.detach(), gradient


def breaks() -> dict[str, int]:
    return dict(torch._dynamo.utils.counters["graph_break"])


def assert_computes_as(plain: BorrowedDecoder, compiled: BorrowedDecoder) -> None:
    for lengths in PASSES:
        (loss, gradient), (ours, same) = computed(plain, lengths), computed(compiled, lengths)
        torch.testing.assert_close(ours, loss, atol=1e-5, rtol=1e-5)
        assert same.keys() == gradient.keys()
        for name, expected in gradient.items():
            torch.testing.assert_close(same[name], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", [*DENSE, *MIXTURES])
def test_nothing_but_attention_and_experts_is_left_out_and_the_numbers_are_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = arranged(family, False, "eager", monkeypatch)
    assert_computes_as(random_decoder(family), compiled)
    assert compiled.notes == []
    assert all("torch.compiler.disable" in reason for reason in breaks())
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["ok"] == frames["total"] <= 10, "parts of a layer of either kind, for all layers and lengths"


@pytest.mark.parametrize(("family", "recompute"), [("gemma2", True), ("mixtral", "offload")])
def test_computed_twice_it_is_the_same(family: str, recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = arranged(family, recompute, "aot_eager", monkeypatch)
    assert_computes_as(random_decoder(family), compiled)
    assert compiled.notes == []


def test_what_does_not_compile_is_computed_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise ValueError("no kernel\nfor this")

    compiled = arranged("gemma2", False, refuses, monkeypatch)
    assert_computes_as(random_decoder("gemma2"), compiled)
    (note,) = compiled.notes
    assert note.startswith(
        "Gemma2DecoderLayer is not compiled, and so slower: BackendCompilerFailed: backend='refuses'"
    )
    assert "no kernel for this" in note
    assert "\n" not in note
