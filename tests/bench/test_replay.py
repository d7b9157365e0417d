"""The benchmark of router replay, as a user runs it, on work of seconds."""

import pytest

from freerun.bench.replay import Work, bench_replay
from freerun.core import ConfigError
from tests.bench.test_bench import bench


def test_replay_is_nearer_to_the_engine_where_weights_have_moved() -> None:
    printed, record = bench(
        "replay", "--groups", "2", "--tokens", "16", "--prompt", "8", "--staleness", "1", "--lr", "1e-4"
    )
    assert "the trainer's router would change" in printed
    assert "at a staleness of 1, without replay log-probabilities are" in printed
    assert [(run["staleness"], run["replayed"]) for run in record["runs"]] == [
        (0, True),
        (0, False),
        (1, True),
        (1, False),
    ]
    for replayed in (run for run in record["runs"] if run["replayed"]):
        assert replayed["gradient_off"] < 0.05, "rounding alone"
    assert record["runs"][0]["logprobs_off"] < 0.01
    assert record["ratios"]["1"]["gradient_off"] > 2


def test_a_model_without_experts_has_nothing_to_replay() -> None:
    with pytest.raises(ConfigError, match="--model 4m is no mixture of experts"):
        bench_replay("4m", Work(1, 2, 4, 4, 1e-5), 0, 0)
