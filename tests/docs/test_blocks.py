"""The YAML of the pages can be loaded as configuration, and their Python compiles."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from freerun.config.load import load_config
from freerun.config.text import parse
from tests.docs.pages import Block, blocks

BASE = {"model": {"path": "models/my-model"}, "data": {"source": "train.jsonl"}}
"""What a fragment leaves out."""


def name(block: Block) -> str:
    return f"{block.page}: {block.text.splitlines()[0]}"


def variants(text: str) -> list[str]:
    """One block may show several ways to write the same section, a line each: then each line is a file."""
    first = [line.split(":")[0] for line in text.splitlines() if line and line[0].isalpha()]
    return [text] if len(first) == len(set(first)) else [line for line in text.splitlines() if line]


@pytest.mark.parametrize("block", list(blocks("yaml")), ids=name)
def test_yaml_is_configuration(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a reader's own that it names need not exist to be loaded."""
    monkeypatch.chdir(tmp_path)
    for text in variants(block.text):
        shown: dict[str, Any] = parse(text)
        missing = {} if "preset" in shown else BASE
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump({**missing, **shown}))
        load_config(file)


@pytest.mark.parametrize("block", list(blocks("python")), ids=name)
def test_python_compiles(block: Block) -> None:
    """Examples of docs/api.md, docs/objectives.md and docs/rewards.md are run by tests of these rooms."""
    compile(block.text, block.page, "exec")
