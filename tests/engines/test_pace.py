"""Bursts are as long as they must be, whoever is slow."""

import pytest

from freerun.engines.embedded.pace import Pace


@pytest.mark.parametrize(
    ("device_s", "host_s", "most", "steps"),
    [
        (0.012, 0.001, 4, 1),  # a large model beside a trainer
        (0.004, 0.001, 4, 2),
        (0.001, 0.0005, 4, 4),
        (0.001, 0.0005, 16, 5),
        (0.0001, 0.004, 16, 16),  # the host is what takes long: longer bursts ask less of it
    ],
)
def test_a_burst_takes_a_few_milliseconds(device_s: float, host_s: float, most: int, steps: int) -> None:
    pace = Pace(most)
    assert pace.steps == most
    for _ in range(60):
        pace.took(pace.steps, max(pace.steps * device_s, host_s))
    assert pace.steps == steps


def test_a_burst_that_was_over_before_anybody_looked() -> None:
    pace = Pace(4)
    pace.took(4, 0.0)
    assert pace.steps == 4


def test_what_took_long_once_is_forgotten() -> None:
    pace = Pace(4)
    for _ in range(20):
        pace.took(4, 0.004)
    pace.took(4, 2.0)  # something was compiled
    assert pace.steps == 1
    for _ in range(40):
        pace.took(pace.steps, pace.steps * 0.001)
    assert pace.steps == 4
