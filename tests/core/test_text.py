import pytest

from freerun.core.text import did_you_mean


@pytest.mark.parametrize(
    ("name", "says"),
    [("mth", "; did you mean math?"), ("exakt", "; did you mean exact?"), ("zebra", ""), ("", "")],
)
def test_the_nearest_name_is_suggested(name: str, says: str) -> None:
    assert did_you_mean(name, iter(["math", "exact", "number"])) == says


def test_a_suggestion_is_what_the_user_would_write() -> None:
    assert did_you_mean("lrr", ["lr"], lambda near: f"train.{near}") == "; did you mean train.lr?"
    assert did_you_mean("lrr", ["lr"], similarity=0.9) == ""
