"""docs/observing.md says what is so."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from freerun.config.text import parse
from freerun.core.options import with_options
from freerun.observe.loggers.base import Logger
from freerun.observe.loggers.known import OBSERVERS
from tests.observe.loggers.feeding import fed
from tests.observe.runs import a_step

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "observing.md").read_text()


def kind(name: str) -> type[Logger]:
    found: type[Logger] = OBSERVERS.find(name).load()
    return found


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_examples_can_be_configured(example: str) -> None:
    for setting in parse(example)["observers"]:
        options = dict(setting) if isinstance(setting, dict) else {"name": setting}
        assert with_options(kind(options.pop("name")), options, "it")


@pytest.mark.parametrize("name", OBSERVERS.built_in)
def test_every_logger_has_its_extra_and_every_option_is_explained(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert kind(name).extra in extras
    assert f"pip install 'freerun[{kind(name).extra}]'" in PAGE
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    unused = {"samples"} if name in ("prometheus", "opentelemetry") else set()
    assert {one.name for one in fields(kind(name))} - unused <= set(re.findall(r"`(\w+)`", section))


async def test_a_logger_of_your_own(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my.py").write_text(source)
    async with fed(tmp_path, {"name": f"{tmp_path}/my.py:ToFile", "path": f"{tmp_path}/out.txt"}) as (loggers, notes):
        loggers.step(a_step(1))
    assert (tmp_path / "out.txt").read_text() == "1 0.5\n"
    assert notes.all == [f"ToFile: writes to {tmp_path}/out.txt"]
