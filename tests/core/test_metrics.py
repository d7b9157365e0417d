import math

from freerun.core.metrics import METRICS, SECTIONS, figures, metric_of
from tests.observe.runs import a_step


def test_every_figure_has_one_name_and_is_known() -> None:
    record = a_step(3)
    named = figures(record)
    assert named["step"] == 3
    assert named["reward_mean"] == record.reward_mean
    assert named["engine_idle_share"] == record.engine_idle_share
    assert named["trainer/loss"] == record.trainer["loss"]
    assert not [name for name in named if metric_of(name) is None]


def test_what_is_not_known_is_left_out() -> None:
    named = figures(a_step(1, reward_mean=math.nan))
    assert "reward_mean" not in named


def test_a_family_of_figures_is_described_once() -> None:
    assert metric_of("dropped/too_stale") is METRICS["dropped/*"]
    assert metric_of("trainer/ratio_at_age_3") is METRICS["trainer/ratio_at_age_*"]
    assert metric_of("trainer/nothing_like_it") is None


def test_every_figure_belongs_to_a_section_and_says_what_it_shows() -> None:
    for name, metric in METRICS.items():
        assert metric.section in SECTIONS, name
        assert metric.says.endswith("."), name
