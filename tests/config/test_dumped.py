"""The configuration of a run that goes on: its own, unless an override says otherwise."""

from pathlib import Path

import pytest

from freerun.config.load import load_config, load_dumped
from freerun.config.text import dump
from freerun.config.tree import RunConfig
from freerun.train.corrections import TokenWeight

BASE = ["model.path=m", "data.source=d.jsonl"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def started(file: Path, *overrides: str) -> RunConfig:
    config, origins = load_config(None, [*BASE, *overrides])
    file.write_text(dump(config, origins))
    return config


def test_another_objective_brings_what_it_implies(file: Path) -> None:
    started(file)
    config, origins = load_dumped(file, ["train.objective=dapo"])
    assert config == load_config(None, [*BASE, "train.objective=dapo"])[0]
    assert config.control.drop_no_signal
    assert config.train.corrections == (TokenWeight(),)
    assert origins["train.clip.high"] == "train.objective"
    assert origins["model.path"] == "command line"


def test_what_the_user_had_set_stays(file: Path) -> None:
    started(file, "train.clip.high=0.3", "control.drop_no_signal=false")
    config, origins = load_dumped(file, ["train.objective=dapo"])
    assert config.train.clip.high == 0.3
    assert origins["train.clip.high"] == "command line"
    assert not config.control.drop_no_signal
    assert config.train.overlong_share == 0.2


def test_what_the_old_objective_implied_goes_with_it(file: Path) -> None:
    started(file, "train.objective=dapo")
    config, origins = load_dumped(file, ["train.objective=grpo"])
    assert config == load_config(None, [*BASE, "train.objective=grpo"])[0]
    assert (config.train.overlong_share, config.control.drop_no_signal) == (0.0, False)
    assert "control.drop_no_signal" not in origins


def test_other_advantages_take_back_what_goes_with_groups_alone(file: Path) -> None:
    started(file, "train.objective=dapo")
    assert not load_dumped(file, ["train.advantages=batch"])[0].control.drop_no_signal


def test_with_the_same_objective_a_run_keeps_what_was_implied_when_it_began(file: Path) -> None:
    """A later version of the program may imply something else, and have other defaults."""
    started(file, "train.objective=dapo")
    text = file.read_text()
    assert text.count("high: 0.28  # train.objective") == 1
    file.write_text(text.replace("high: 0.28", "high: 0.27").replace("weight_decay: 0.05", "weight_decay: 0.06"))
    config, origins = load_dumped(file, ["train.lr=1e-3"])
    assert (config.train.clip.high, config.train.weight_decay, config.train.lr) == (0.27, 0.06, 1e-3)
    assert origins["train.clip.high"] == "train.objective"
    assert "train.weight_decay" not in origins
    again = dump(config, origins)
    file.write_text(again)
    assert dump(*load_dumped(file)) == again


def test_what_was_written_by_hand_counts_as_set(file: Path) -> None:
    started(file)
    file.write_text(file.read_text().replace("high: 0.2  # train.objective", "high: 0.25"))
    config, origins = load_dumped(file, ["train.objective=dapo"])
    assert config.train.clip.high == 0.25
    assert origins["train.clip.high"] == "config.yaml"
