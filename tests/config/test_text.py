"""What is dumped is read back: values and origins, whatever texts they are."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freerun.config.load import load_config
from freerun.config.text import dump, origins_in, parse
from freerun.rewards.spec import OWN_KEYS

whole = st.text(min_size=1)
texts = st.text(st.characters(codec=None), min_size=1)
"""Half characters included, which a path may not be."""
keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda key: key not in OWN_KEYS)
options = st.dictionaries(keys, texts | st.integers() | st.booleans())


def loaded(judge: dict[str, Any], prompt_key: str, path: str, file: str) -> tuple[Any, dict[str, str]]:
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run.yaml"
        run.write_text("rollout: {max_new_tokens: 9}\n")
        config, origins = load_config(run, ["model.path=m", "data.source=d", "train.objective=dapo"])
    changed = config.model_dump() | {"reward": {"judge": judge}, "model": {"path": path}}
    changed["data"]["prompt_key"] = prompt_key
    origins |= {"reward.judge.prompt": file, "model.path": file, "data.prompt_key": "command line"}
    return type(config).model_validate(changed), origins


@settings(max_examples=80, deadline=None)
@given(texts, options, whole, whole, texts)
@example("Rate it.\n\nscale: 1 to 5  # not a comment\n- no", {}, "1e5", "a # b: c", "my # run.yaml")
@example("a\u2028b\x85c\r\nd\ud800", {"e": "0x1F"}, "null", "\ufeff~", "default")
@example("x", {}, "p", "m", '"quoted"')
def test_dumping_loses_nothing(prompt: str, more: dict[str, Any], prompt_key: str, path: str, file: str) -> None:
    config, origins = loaded({**more, "name": "model", "prompt": prompt}, prompt_key, path, file)
    text = dump(config, origins)
    with TemporaryDirectory() as folder:
        again = Path(folder) / "config.yaml"
        again.write_text(text, encoding="utf-8")
        assert load_config(again)[0] == config
    assert origins_in(text) == origins


def test_comments_of_older_folders_are_read_too() -> None:
    """There a text of many lines took many lines."""
    dumped = (
        "reward:\n  judge:\n    name: model  # run.yaml\n"
        "    prompt: 'first\n\n  key: value  # no comment\n\n  '  # mine.yaml\n"
        "  workers: null  # default\ntrain:\n  lr: 0.5  # command line\n  keep: 3\n"
    )
    found = {"reward.judge.name": "run.yaml", "reward.judge.prompt": "mine.yaml", "train.lr": "command line"}
    assert origins_in(dumped) == found


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("1E5", 1e5), ("'1e5'", "1e5"), (".5e1", 5.0), ("e5", "e5")]
)
def test_an_exponent_makes_a_number_unless_it_is_quoted(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_a_value_that_takes_a_section_s_place_takes_its_origin_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: m}\ndata: {source: d}\nreward: {judge: exact}\n")
    config, origins = load_config(file, ["reward.judge={name: length, most: 5}"])
    assert "name: length  # command line" in dump(config, origins)
    config, origins = load_config(file, ["reward.judge={name: length, most: 5}", "reward.judge=number"])
    assert origins_in(dump(config, origins)) == origins
