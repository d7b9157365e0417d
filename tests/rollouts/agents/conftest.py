import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from freerun.rollouts.agents.spec import AgentSpec

AgentFile = Callable[..., AgentSpec]


@pytest.fixture
def agent_file(tmp_path: Path) -> AgentFile:
    """Writes a user's file and returns the agent that names its function `run`."""

    def write(source: str, **options: object) -> AgentSpec:
        (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        return AgentSpec(f"{tmp_path}/mine.py:run", "the agent mine.py:run", options)

    return write
