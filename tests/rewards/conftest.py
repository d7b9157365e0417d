import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def judge_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a user's file and returns the judge that names its function `reward`."""

    def write(source: str) -> str:
        (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        return f"{tmp_path}/mine.py:reward"

    return write
