"""Shapes that come with the package are as large as the models that were published."""

from pathlib import Path

import pytest

from freerun.core import ConfigError
from freerun.models.published import published_models, shape_to_plan_by
from freerun.models.shape import read_shape

PARAMETERS = {
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": 14_770_033_664,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 32_763_876_352,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B-Thinking-2507": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B-Thinking-2507": 235_093_634_560,
}
"""As their publishers count them, norms and biases included, which are left out here: less than a thousandth."""


def test_there_is_a_figure_for_each() -> None:
    assert published_models() == sorted(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_they_have_the_published_number_of_parameters(name: str) -> None:
    shape, is_published = shape_to_plan_by(name)
    assert is_published
    assert shape.num_parameters == pytest.approx(PARAMETERS[name], rel=1e-4)
    assert (shape.experts is not None) == ("-A" in name)
    if "-A" in name:
        active = float(name.split("-A")[1].split("B")[0]) * 1e9
        assert shape.active_parameters == pytest.approx(active, rel=0.15)


def test_a_model_that_is_here_goes_by_its_own_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "Qwen/Qwen3-8B"
    with pytest.raises(ConfigError, match="or ORG/NAME of the Hugging Face hub"):
        read_shape(Path(name))
    Path(name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        shape_to_plan_by(name)
    with pytest.raises(ConfigError, match="there is no folder Qwen/Qwen3-9B"):
        shape_to_plan_by("Qwen/Qwen3-9B")
