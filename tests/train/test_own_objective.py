"""A user's own objective is one file, and docs/objectives.md says how: its example is what is tested here."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from freerun.config.load import load_config
from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.observe.records import read_steps
from freerun.run import training
from freerun.train.config import TrainConfig
from freerun.train.corrections import CORRECTIONS
from freerun.train.learner import Learner
from freerun.train.losses import find_objective, names
from tests.run.test_train import prepared
from tests.tiny import tiny_decoder
from tests.train.test_learner import random_batch

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
GIVEN = ["model.path=m", "data.source=d.jsonl"]


@pytest.fixture
def praise(tmp_path: Path) -> Path:
    """The page's example."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "praise.py"
    file.write_text(example)
    return file


async def test_it_trains_in_a_run_with_every_process(praise: Path, tmp_path: Path) -> None:
    run = prepared(tmp_path, f"train.objective={praise}:OBJECTIVE", "control.steps=2")
    assert run.config.control.drop_no_signal
    outcome = await training.train(run)
    steps = read_steps(outcome.folder.metrics)
    assert [record.step for record in steps] == [1, 2]
    assert steps[0].trainer["loss"] < 0, "a gain is all that it counts"
    assert steps[1].trainer["loss"] <= 0, "unless older tokens are all masked, by then"
    assert "average: sequence  # train.objective" in outcome.folder.config.read_text()


def test_it_learns_what_it_says(praise: Path) -> None:
    """Without a single answer that went well there is nothing to learn; PPO learns from the others."""

    def moved(objective: str) -> bool:
        config = TrainConfig(objective=objective, advantages="group_mean", weight_decay=0.0, lr=1e-2)
        learner = Learner(tiny_decoder(dtype=torch.float64), config)
        batch = random_batch(1)
        learner._advantages = lambda batch: [-1.0] * len(batch.samples)  # type: ignore[method-assign]
        before = {name: tensor.clone() for name, tensor in learner.policy.tensors().items()}
        learner.step(batch)
        return any(not torch.equal(tensor, before[name]) for name, tensor in learner.policy.tensors().items())

    assert not moved(f"{praise}:OBJECTIVE")
    assert moved("ppo")


def test_it_implies_settings_and_a_function_alone_implies_none(praise: Path) -> None:
    config, origins = load_config(None, [*GIVEN, f"train.objective={praise}:OBJECTIVE"])
    assert (config.train.clip.high, config.train.average, config.control.drop_no_signal) == (0.5, "sequence", True)
    assert origins["train.clip.high"] == "train.objective"
    told = load_config(None, [*GIVEN, f"train.objective={praise}:OBJECTIVE", "train.clip.high=0.1"])[0]
    assert told.train.clip.high == 0.1
    plain = load_config(None, [*GIVEN, f"train.objective={praise}:praise"])[0]
    assert plain.train.model_copy(update={"objective": "decoupled_ppo"}) == TrainConfig()
    again = RunConfig.model_validate(config.plain())
    assert again == config, "the trainer's process gets it as text"


def test_it_may_be_in_a_package(praise: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(praise.parent)
    config = TrainConfig(objective="praise:OBJECTIVE")
    assert config.clip.high == 0.5


def test_a_file_that_changes_is_read_again(praise: Path) -> None:
    setting = f"{praise}:OBJECTIVE"
    assert find_objective(setting).implies["train.clip.high"] == 0.5
    praise.write_text(praise.read_text().replace("0.5", "0.25"))
    assert find_objective(setting).implies["train.clip.high"] == 0.25


@pytest.mark.parametrize(
    ("text", "setting", "says"),
    [
        (None, "none.py:OBJECTIVE", "there is no file"),
        ("x = 1\n", "own.py:OBJECTIVE", "own.py has no objective OBJECTIVE"),
        ("OBJECTIVES = 1\n", "own.py:OBJECTIVE", "did you mean OBJECTIVES?"),
        ("OBJECTIVE = 1\n", "own.py:OBJECTIVE", "is neither an Objective nor a function of"),
        (
            "import not_there\nOBJECTIVE = 1\n",
            "own.py:OBJECTIVE",
            "own.py:1: ModuleNotFoundError: No module named 'not_there'",
        ),
        ("def OBJECTIVE(:\n", "own.py:OBJECTIVE", "own.py:1: not valid Python"),
        (None, "not.there:OBJECTIVE", "there is no module not.there for the objective not.there:OBJECTIVE"),
        (
            "from freerun.train.objective import Objective\nO = Objective(print, {'train.averge': 'token'})\n",
            "own.py:O",
            "implies train.averge: unknown key train.averge; did you mean train.average?",
        ),
        (
            "from freerun.train.objective import Objective\nO = Objective(print, {'train.average': 'median'})\n",
            "own.py:O",
            "train.average: Input should be 'token', 'sequence' or 'constant'",
        ),
    ],
)
def test_a_mistake_is_one_line(
    text: str | None, setting: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        Path("own.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*GIVEN, f"train.objective={setting}"])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_objective_says_what_it_implies_without_torch() -> None:
    code = """
import sys
from freerun.train.losses import find_objective, names
assert all(find_objective(name).implies for name in names())
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_has_every_objective_with_what_it_implies() -> None:
    rows = {}
    for line in PAGE.splitlines():
        if re.match(r"\| `\w+`", line) and line.count("|") == 9:
            name, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.split("`")[1]] = cells
    assert set(rows) == set(names())
    for name, (clip, *others, more) in rows.items():
        implies = {key.removeprefix("train."): value for key, value in find_objective(name).implies.items()}
        assert [float(bound) for bound in clip.split(",")] == [implies.pop("clip.low"), implies.pop("clip.high")]
        for key, cell in zip(("advantages", "average", "proximal", "corrections"), others, strict=True):
            value = implies.pop(key)
            assert re.findall(r"`(\w+)`", cell) == (value if isinstance(value, list) else [value]), (name, key)
        for key, value in implies.items():
            assert f"{key}` {str(value).lower()}" in more


def test_the_page_s_options_are_read(tmp_path: Path) -> None:
    examples: list[Any] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(examples) == 3
    for example in examples:
        TrainConfig.model_validate(example["train"])
    for name, kind in CORRECTIONS.items():
        options = {key: field.default for key, field in kind.model_fields.items() if key != "name"}
        told = ", ".join(
            f"`{key}` {default if isinstance(default, str) else f'{default:g}'}" for key, default in options.items()
        )
        assert re.search(rf"\| `{name}` \|.*\| {re.escape(told)} \|", PAGE), name
