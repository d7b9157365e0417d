import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import yaml

from freerun.data.config import DataConfig
from freerun.rewards.config import RewardConfig
from freerun.rewards.judges import BUILT_IN


def test_the_judges_are_explained() -> None:
    """docs/rewards.md has every judge and every option, and examples that can be read."""
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    examples = [yaml.safe_load(example) for example in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(examples) > 3
    for example in examples:
        assert RewardConfig(**example["reward"]).parts
        assert "data" not in example or DataConfig(**example["data"])
    for name, where in BUILT_IN.items():
        assert f"`{name}`" in page, name
        module, _, thing = where.partition(":")
        found = getattr(import_module(module), thing)
        for option in fields(found) if isinstance(found, type) else ():
            assert f"`{option.name}`" in page, f"{name}: {option.name}"
