"""What samples begin with is computed once, and nobody learns anything else for it."""

import random
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from freerun.bench.conversations import AGENTS, Agents, counted
from freerun.core import FinishReason, Sample
from freerun.models import attention
from freerun.models.attention import GpuPackedAttention, PackedAttention
from freerun.train.models import PolicyModel
from freerun.train.packing import Packed, dealt, pack, shared_out
from freerun.train.prefixes import bundles, distinct_tokens, first_trained, shared_ranges
from tests.tiny import tiny_decoder


@st.composite
def trees(draw: st.DrawFn) -> list[Sample]:
    """Lines that leave one another anywhere, over few different tokens, trained anywhere or nowhere."""
    lines: list[list[int]] = [draw(st.lists(st.integers(2, 4), min_size=1, max_size=12))]
    for _ in range(draw(st.integers(0, 9))):
        trunk = lines[draw(st.integers(0, len(lines) - 1))]
        kept = trunk[: draw(st.integers(0, len(trunk)))]
        lines.append(kept + draw(st.lists(st.integers(2, 4), min_size=1, max_size=8)))
    return [
        Sample(line, draw(st.lists(st.booleans(), min_size=len(line), max_size=len(line))), [-0.5] * len(line),
               [0] * len(line), FinishReason.STOP)
        for line in lines
    ]  # fmt: skip


def common_by_hand(one: Any, other: Any) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def sequences(packed: Packed) -> list[list[int]]:
    """The rows of each sequence, its prefix included."""
    ends = accumulate(packed.lengths)
    own = [range(end - length, end) for end, length in zip(ends, packed.lengths, strict=True)]
    return [
        [row for rows in [*prefix, mine] for row in rows] for prefix, mine in zip(packed.prefixes, own, strict=True)
    ]


@settings(deadline=None)
@given(trees())
def test_each_takes_over_all_that_it_may(samples: list[Sample]) -> None:
    packed = pack(samples)
    for place, (rows, sample) in enumerate(zip(sequences(packed), samples, strict=True)):
        assert packed.tokens_T[rows].tolist() == sample.tokens.tolist()
        assert packed.positions_T[rows].tolist() == list(range(len(rows)))
        known = max((common_by_hand(sample.tokens, before.tokens) for before in samples[:place]), default=0)
        assert sum(map(len, packed.prefixes[place])) == min(known, first_trained(sample))
    found = [
        (place, rows[at - 1], sample.tokens[at])
        for place, (rows, sample) in enumerate(zip(sequences(packed), samples, strict=True))
        for at in range(1, len(sample.tokens))
        if sample.loss_mask[at]
    ]
    assert list(zip(packed.sequence_A.tolist(), packed.rows_A.tolist(), packed.targets_A, strict=True)) == found


@settings(deadline=None)
@given(trees())
def test_different_tokens_are_counted_by_what_comes_before(samples: list[Sample]) -> None:
    beginnings = {tuple(s.tokens[:length].tolist()) for s in samples for length in range(1, len(s.tokens) + 1)}
    assert distinct_tokens(samples) == len(beginnings)


@settings(deadline=None)
@given(trees(), st.integers(1, 400))
def test_bundles_hold_every_sample_once_and_say_what_they_take(samples: list[Sample], capacity: int) -> None:
    found = bundles(samples, capacity)
    assert sorted(i for bundle in found for i in bundle.samples) == list(range(len(samples)))
    for bundle in found:
        inside = sorted((samples[i] for i in bundle.samples), key=first_trained)
        shared = [sum(map(len, prefix)) for prefix in shared_ranges(inside)]
        whole = sum(len(sample.tokens) for sample in inside)
        assert whole - sum(shared) * 3 / 4 <= bundle.load <= whole - sum(length * 3 // 4 for length in shared)
        assert bundle.load <= capacity or len(inside) == 1
        assert len(inside) == 1 or any(shared), "nothing to share, nothing to stay together for"


@settings(deadline=None)
@given(trees(), st.integers(20, 200), st.integers(1, 3))
def test_ranks_have_every_sample_once(samples: list[Sample], capacity: int, ranks: int) -> None:
    shares = shared_out(samples, capacity, ranks)
    assert sorted(i for share in shares for micro in share for i in micro) == list(range(len(samples)))
    assert len({len(share) for share in shares}) == 1


def test_who_trains_a_token_comes_before_who_is_given_it() -> None:
    """Else it would be computed twice: once as it is given, once as it is trained."""
    fork = Sample([5, 6, 7, 8, 9], [False] * 4 + [True], [0.0] * 5, [-1] * 4 + [0], FinishReason.STOP)
    trunk = Sample([5, 6, 7, 3], [False, True, True, True], [0.0] * 4, [-1, 0, 0, 0], FinishReason.STOP)
    assert len(pack([fork, trunk]).tokens_T) == 8
    (((first, second),),) = shared_out([fork, trunk], 100)
    packed = pack([[fork, trunk][first], [fork, trunk][second]])
    assert packed.tokens_T.tolist() == [5, 6, 7, 3, 8, 9]
    assert packed.prefixes == [[], [range(3)]]


def test_bundles_still_fill_micro_batches_evenly() -> None:
    """Groups that are large against a micro-batch, and two ranks."""
    samples = [s for group in Agents("", groups=12, turns=3, forks=1).made() for s in group.samples]
    loads = [bundle.load for bundle in bundles(samples, sum(b.load for b in bundles(samples, 1 << 20)) // 8)]
    for together in zip(*dealt(loads, 1 << 20, 2), strict=True):
        used = [sum(loads[i] for i in micro) for micro in together]
        assert max(used) <= 1.1 * min(used)


MODEL = PolicyModel(tiny_decoder(seed=1, std=0.3, dtype=torch.float64), temperature=1.0)


def learned(micros: list[list[Sample]], factors: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient; each trained token has a factor of its own."""
    MODEL.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for samples in micros:
        scores = MODEL(pack(samples))
        wanted_A = scores.logprobs_A + 0.1 * scores.entropy_A
        total = total + (torch.cat([factors[id(s)] for s in samples]) * wanted_A).sum()
    torch.autograd.backward(total)
    gradients = [p.grad.flatten() for p in MODEL.parameters() if p.grad is not None]
    return total.detach(), torch.cat(gradients).clone()


@settings(max_examples=25, deadline=None)
@given(trees(), st.integers(0, 1000), st.integers(10, 200))
def test_a_tree_teaches_what_separate_sequences_do(samples: list[Sample], seed: int, capacity: int) -> None:
    samples = [sample for sample in samples if sample.loss_mask[1:].any()]
    if not samples:
        return
    dice = torch.Generator().manual_seed(seed)
    counts = {id(s): int(s.loss_mask[1:].sum()) for s in samples}
    factors = {of: torch.randn(count, generator=dice, dtype=torch.float64) for of, count in counts.items()}
    (micros,) = shared_out(samples, capacity)
    together = learned([[samples[i] for i in places] for places in micros], factors)
    alone = learned([[sample] for sample in samples], factors)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("agents", AGENTS, ids=lambda agents: agents.name)
def test_nothing_is_computed_twice(agents: Agents) -> None:
    found = counted(agents, capacity=32_768)
    print(
        f"{agents.name}: {found.distinct} different tokens; computed {found.ratio:.3f} times, sample by sample "
        f"{found.by_sample / found.distinct:.2f}, one sample a turn {found.by_turn / found.distinct:.2f} times"
    )
    assert found.distinct <= found.computed <= 1.1 * found.distinct
    assert found.by_turn > 3 * found.computed


LENGTHS = [30, 4, 25, 3, 1, 40, 12]
PREFIXES = [[], [range(25)], [], [range(25), range(30, 33)], [range(34, 44)], [range(20)], [range(25), range(30, 34)]]


def plain_varlen(q: Tensor, k: Tensor, v: Tensor, q_bounds: Tensor, k_bounds: Tensor, *_: Any, **__: Any) -> Tensor:
    """What torch says its kernel does, with the mask aligned to the end; it takes key/value heads as they are."""
    reads = []
    for (q0, q1), (k0, k1) in zip(
        *([*zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)] for bounds in (q_bounds, k_bounds)),
        strict=True,
    ):
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        one, keys, values = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        read = torch.nn.functional.scaled_dot_product_attention(one, keys, values, seen, enable_gqa=True)
        reads.append(read[0].transpose(0, 1))
    return torch.cat(reads)


@pytest.mark.parametrize("long", [20, 35, 1_000])
def test_a_gpu_would_gather_the_same_rows(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are torch's; here it is about what they are given, for sequences of either kind."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen)
    monkeypatch.setattr(attention, "LONG", long)

    def read(kind: type) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (torch.randn(sum(LENGTHS), heads, 8).requires_grad_() for heads in (4, 2, 2))
        out = kind(LENGTHS, torch.device("cpu"), PREFIXES)(0, q, k, v)
        torch.autograd.backward((out * torch.linspace(-1, 1, 8)).sum())
        return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]

    for got, expected in zip(read(GpuPackedAttention), read(PackedAttention), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_long_prefix_before_few_tokens_is_not_attended_again() -> None:
    kinds = [
        type(stretch).__name__
        for stretch in GpuPackedAttention(
            [attention.LONG, 50, attention.LONG], torch.device("cpu"), [[], [range(4000)], [range(4000)]]
        )._stretches
    ]
    assert kinds == ["_Long", "_Short", "_Long"]


def test_hundreds_that_leave_a_long_conversation_one_after_another() -> None:
    """All with all, or token by token in Python, this would take minutes."""
    dice = random.Random(0)
    trunk = [dice.randrange(2, 30_000) for _ in range(16_000)]
    samples = []
    for number in range(300):
        at = 100 + 50 * number
        tokens = [*trunk[:at], number, *trunk[at + 1 :]]
        marks = [False] * at + [True] * (16_000 - at)
        samples.append(Sample(tokens, marks, [0.0] * 16_000, [0] * 16_000, FinishReason.STOP))
    (micros,) = shared_out(samples, 131_072)
    computed = sum(len(pack([samples[i] for i in places]).tokens_T) for places in micros)
    assert computed < 1.2 * distinct_tokens(samples)
