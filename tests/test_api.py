"""The public surface: small, documented, and quick to import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import freerun

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", freerun.__all__)
def test_every_name_is_there_and_explained(name: str) -> None:
    assert getattr(freerun, name) is not None
    assert re.search(rf"`{name}\b", PAGE), f"docs/api.md does not have {name}"
    assert name in dir(freerun)


def test_what_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = freerun.Nothing


def test_importing_it_is_light() -> None:
    """Only what works with tensors needs torch; the rooms of the same names do not get in the way."""
    code = """
import sys, freerun
assert len([name for name in sys.modules if name.startswith("freerun")]) == 1
heavy = {"InProcessEngine", "Learner"}
for name in freerun.__all__:
    if name not in heavy:
        getattr(freerun, name)
assert not {"torch", "transformers"} & set(sys.modules), {"torch", "transformers"} & set(sys.modules)
from freerun.train.config import TrainConfig
from freerun import Learner, train
import freerun.train.losses.grpo
assert callable(train) and train is freerun.train, freerun.train
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_signatures_are_those_of_the_code() -> None:
    from inspect import signature

    for name in ("train", "train_async", "Task", "Sample", "Group", "Batch", "Trajectory", "JudgedSample"):
        (written,) = re.findall(rf"`{name}\(([^`]*)\)[^`]*`", PAGE)[:1]
        documented = [part.split("=")[0].strip() for part in written.split(",") if part.strip() != "*"]
        real = [
            parameter for parameter in signature(getattr(freerun, name)).parameters if not parameter.startswith("_")
        ]
        assert documented == real, name


def test_examples_are_python_and_the_notebooks_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in EXAMPLES:
        ast.parse(example)
    (whole,) = [example for example in EXAMPLES if "make_model" in example]
    names: dict[str, freerun.Learner] = {}
    exec(whole, names)
    assert names["learner"].version == 5
