"""Which sequences go together, and how."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import FinishReason, Sample
from freerun.models.own import OwnDecoder, initialise
from freerun.models.shape import Shape
from freerun.train.models import PolicyModel
from freerun.train.packing import dealt, micro_batches, pack


def test_by_hand() -> None:
    # 30 tokens need three of 10, but 9 + 2 | 7 + 3 | 5 + 4 has one of 11: so four, 9 | 7 | 5 + 2 | 4 + 3.
    assert micro_batches([5, 9, 3, 7, 2, 4], 10) == [[1], [3], [0, 4], [5, 2]]
    assert micro_batches([3, 3, 2, 1], 100) == [[0, 1, 2, 3]]
    assert micro_batches([3, 3, 2, 1], 100, multiple=2) == [[0, 2], [1, 3]]
    assert micro_batches([1, 1], 100, multiple=5) == [[0], [1], [], [], []]
    assert micro_batches([12, 1], 10) == [[0], [1]]
    assert micro_batches([100, 3, 4, 5, 6], 10) == [[0], [4, 1], [3, 2]]
    assert micro_batches([100, 3, 4, 5, 6], 10, multiple=2) == [[0], [4], [3], [2, 1]]
    # evenly it takes four, 6 + 4 | 6 + 4 | 6 | 4, say; filled one after another, three: 6 + 4 each
    assert len(micro_batches([6, 6, 6, 4, 4, 4], 10)) == 3
    assert micro_batches([7, 5, 5, 3], 10) == [[0, 3], [1, 2]]


def first_fit(lengths: list[int], capacity: int) -> int:
    """How many first-fit decreasing needs, plainly."""
    used: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((i for i, tokens in enumerate(used) if tokens + length <= capacity), len(used))
        used[place:] = [sum(used[place : place + 1]) + length, *used[place + 1 :]]
    return len(used)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 80), st.integers(1, 8))
def test_every_sequence_once_within_capacity_and_no_more_than_first_fit(
    lengths: list[int], capacity: int, multiple: int
) -> None:
    batches = micro_batches(lengths, capacity, multiple)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    used = [sum(lengths[i] for i in batch) for batch in batches]
    assert all(tokens <= capacity or len(batch) == 1 for tokens, batch in zip(used, batches, strict=True))
    assert len(batches) % multiple == 0
    assert len(batches) < first_fit(lengths, capacity) + multiple


@pytest.mark.parametrize("seed", range(20))
def test_where_there_is_room_to_choose_all_have_about_as_many_tokens(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [min(2_000, max(20, int(dice.lognormvariate(5.5, 0.8)))) for _ in range(400)]
    used = [sum(lengths[i] for i in batch) for batch in micro_batches(lengths, 16_384)]
    assert len(used) == -(-sum(lengths) // 16_384)
    assert max(used) - min(used) < 100


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 200), st.integers(1, 8))
def test_ranks_get_as_many(lengths: list[int], capacity: int, ranks: int) -> None:
    shares = dealt(lengths, capacity, ranks)
    assert len({len(share) for share in shares}) == 1
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(len(lengths)))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_compute_as_much_at_the_same_time(ranks: int) -> None:
    dice = random.Random(ranks)
    lengths = [dice.randrange(1, 500) for _ in range(300)]
    for together in zip(*dealt(lengths, 4_000, ranks), strict=True):
        used = [sum(lengths[i] for i in batch) for batch in together]
        assert max(used) - min(used) < 100


def test_a_trained_token_is_predicted_by_the_one_before() -> None:
    first = Sample([5, 6, 7, 8], [False, False, True, True], [0, 0, -0.1, -0.2], [-1, -1, 3, 4], FinishReason.STOP)
    second = Sample([9, 8, 7], [False, True, False], [0, -0.3, -0.4], [-1, 2, 2], FinishReason.STOP)
    packed = pack([first, second], [1.5, -0.5])
    assert packed.tokens_T.tolist() == [5, 6, 7, 8, 9, 8, 7]
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert packed.rows_A.tolist() == [1, 2, 4]
    assert packed.targets_A.tolist() == [7, 8, 8]
    assert packed.advantages_A.tolist() == [1.5, 1.5, -0.5]
    assert packed.versions_A.tolist() == [3, 4, 2]


def answered(prompt: list[int], answer: list[int], *later: int) -> Sample:
    """An answer to a prompt; `later` are tokens after it that somebody else wrote, and another one of ours."""
    tokens = [*prompt, *answer, *later]
    mask = [False] * len(prompt) + [True] * len(answer) + [i == len(later) - 1 for i in range(len(later))]
    return Sample(tokens, mask, [-0.5] * len(tokens), [0] * len(tokens), FinishReason.STOP)


def test_a_beginning_is_there_once() -> None:
    packed = pack([answered([5, 6, 7], [1, 2]), answered([5, 6], [3]), answered([5, 6, 7], [4, 8]), answered([], [9])])
    assert packed.tokens_T.tolist() == [5, 6, 7, 1, 2, 3, 4, 8, 9]
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 0]
    assert packed.prefixes == [[], [range(2)], [range(3)], []]
    assert packed.rows_A.tolist() == [2, 3, 1, 2, 6]
    assert packed.targets_A.tolist() == [1, 2, 3, 4, 8]


def test_advantages_by_token_come_as_runs() -> None:
    sample = Sample([5, 6, 7, 8], [False, True, False, True], [0, -0.1, 0, -0.2], [-1, 3, -1, 4], FinishReason.STOP)
    packed = pack([sample, sample], [((0.25, 2), (-1.5, 2)), 3.0])
    assert packed.advantages_A.tolist() == [0.25, -1.5, 3.0, 3.0]


def test_sharing_a_prompt_changes_nothing() -> None:
    shape = Shape("qwen3", vocab_size=64, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, tied=True)
    decoder = OwnDecoder(shape)
    initialise(decoder, seed=1, std=0.3)
    model = PolicyModel(decoder.double(), temperature=1.0)
    long = list(range(3, 40))
    samples = [
        answered(long, [1, 2, 3]),
        answered([7, 8], [9]),
        answered(long, [4], 50, 51, 52),
        answered(long, list(range(10, 30))),
        answered([7, 8], [9, 1]),
    ]

    def learned(groups: list[list[Sample]]) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        logprobs = torch.cat([model(pack(group))[0] for group in groups])
        torch.autograd.backward((logprobs * torch.linspace(-1, 2, len(logprobs))).sum())
        return logprobs.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    shared, alone = learned([samples]), learned([[sample] for sample in samples])
    for one, other in zip(shared, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert len(pack(samples).tokens_T) == sum(len(sample.tokens) for sample in samples) - 2 * len(long) - 2
