"""Algorithm 1 and packing."""

from hypothesis import given
from hypothesis import strategies as st

from freerun.core import FinishReason, Sample
from freerun.train.packing import micro_batches, pack


def test_algorithm_1_by_hand() -> None:
    # Sorted: 9, 7, 5, 4, 3, 2 with capacity 10. 9 opens; 7 fits nowhere; 5 fits nowhere; 4 joins 5 (1 sequence each in
    # 9|7|5: only 5 has room); 3 joins 7 (fits 7 only: 5+4+3 > 10); 2 fits nowhere: 9+2, 7+3+2, 5+4+2 all exceed 10.
    assert micro_batches([5, 9, 3, 7, 2, 4], 10) == [[1], [3, 2], [0, 5], [4]]


def test_fewest_sequences_first_and_least_number() -> None:
    assert micro_batches([3, 3, 2, 1], 100, least=2) == [[0, 2], [1, 3]]
    assert micro_batches([1, 1], 100, least=5) == [[0], [1]]
    assert micro_batches([12, 1], 10) == [[0], [1]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 80), st.integers(1, 8))
def test_every_sequence_once_and_within_capacity(lengths: list[int], capacity: int, least: int) -> None:
    batches = micro_batches(lengths, capacity, least)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) <= capacity or len(batch) == 1 for batch in batches)
    assert len(batches) >= min(least, len(lengths))


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
