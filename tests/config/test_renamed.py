"""Old spellings get one line that names the new one."""

from pathlib import Path

import pytest

from freerun.config.load import knobs, load_config, load_dumped
from freerun.config.renamed import GONE, NOW
from freerun.config.text import dump
from freerun.core import ConfigError

BASE = ["model.path=m", "data.source=d.jsonl", "held_out.source=e.jsonl"]


def line(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*BASE, override])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("old", "new"), NOW.items())
def test_an_old_key_names_the_new_one(old: str, new: str) -> None:
    assert line(f"{old}=1") == f"{old} is now {new}"


@pytest.mark.parametrize(("old", "why"), GONE.items())
def test_a_key_that_is_gone_says_what_happens_without_it(old: str, why: str) -> None:
    assert line(f"{old}=1") == f"{old} is no longer a setting: {why}"


@pytest.mark.parametrize("new", NOW.values())
def test_what_an_old_key_is_called_now_is_there(new: str) -> None:
    key = new.split(",")[0].split(":")[0].replace("held_out.", "data.")
    assert key.removesuffix(".seed") in {known for known, _, _ in knobs()}


def test_no_new_key_is_called_an_old_one() -> None:
    assert not {known for known, _, _ in knobs()} & (NOW.keys() | GONE.keys())


def test_a_section_that_was_a_value_once() -> None:
    assert line("train.kl=k2") == "train.kl is now train.kl.estimator"
    assert load_config(None, [*BASE, "train.kl={estimator: k2}"])[0].train.kl.estimator == "k2"


def test_the_folder_of_an_old_run_gets_the_same_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(*load_config(None, BASE)).replace("\ntrain:\n", "\ntrain:\n  kl_coef: 0.0  # default\n"))
    with pytest.raises(ConfigError, match=r"^train.kl_coef is now train.kl.coef$"):
        load_dumped(file)
