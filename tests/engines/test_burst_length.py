"""Bursts are as long as they must be, whoever is slow."""

import pytest

from freerun.engines.embedded.burst_length import BurstLength


def run(pace: BurstLength, device_s: float, host_s: float, bursts: int = 60) -> int:
    """Device and host work at the same time, each of them on another burst."""
    for _ in range(bursts):
        burst_s = max(pace.steps * device_s, host_s)
        pace.took(pace.steps, burst_s, burst_s - host_s)
    return pace.steps


@pytest.mark.parametrize(
    ("device_s", "host_s", "most", "steps"),
    [
        (0.012, 0.002, 4, 1),  # a large model beside a trainer
        (0.005, 0.002, 4, 1),
        (0.004, 0.001, 4, 2),
        (0.001, 0.0005, 4, 4),
        (0.001, 0.0005, 16, 5),
        (0.004, 0.007, 16, 4),  # very many answers at a time: the host has enough to do
        (0.0001, 0.004, 16, 16),
    ],
)
def test_a_burst_takes_a_few_milliseconds_and_twice_as_long_as_the_host(
    device_s: float, host_s: float, most: int, steps: int
) -> None:
    assert run(BurstLength(most), device_s, host_s) == steps
    hurried = BurstLength(most)
    hurried.steps = 1
    assert run(hurried, device_s, host_s) == steps


def test_it_begins_with_the_most() -> None:
    pace = BurstLength(4)
    assert pace.steps == 4
    pace.took(4, 0.0, 0.0)  # over before anybody looked
    assert pace.steps == 4


def test_what_took_long_once_is_forgotten() -> None:
    pace = BurstLength(4)
    assert run(pace, 0.001, 0.0005) == 4
    pace.took(4, 2.0, 1.9)  # something was compiled
    assert pace.steps == 1
    assert run(pace, 0.001, 0.0005) == 4
