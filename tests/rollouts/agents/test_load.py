"""Mistakes in the configuration of an agent: one line each, before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError
from freerun.rollouts.agents.load import check_imports, spec_of
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.config import RolloutConfig


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_agent_with_its_options(folder: Path) -> None:
    Path("mine.py").write_text("async def run(task, session, *, depth, wide=False): pass")
    spec = spec_of(RolloutConfig(agent={"name": "mine.py:run", "depth": 3}))
    assert spec == AgentSpec("mine.py:run", "the agent mine.py:run", {"depth": 3})


def test_a_program() -> None:
    spec = spec_of(RolloutConfig(command=("echo", "1")))
    assert spec == AgentSpec("freerun.rollouts.agents.command:run", "the command echo 1", {"command": ["echo", "1"]})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def run(task, session): pass", "mine.py:1: run is not async, and an agent is an async function: `async def"),
        ("class run: pass", "mine.py:1: run is a class, and an agent is an async function"),
        ("async def runs(task, session): pass", "mine.py has no function run; did you mean runs?"),
        ("async def run(task): pass", "mine.py:1: run must take a task and a session: `async def run(task, session)`"),
        ("async def run(task, *, session): pass", "mine.py:1: run must take a task and a session"),
        ("async def run(task, session, more): pass", "mine.py:1: run needs more: give it a default, or a value beside"),
        ("async def run(task, session, *, more): pass", "mine.py:1: run needs more: give it a default"),
        ("async def run(task, session) pass", "mine.py:1: not valid Python: expected ':'"),
    ],
)
def test_a_file_that_is_not_an_agent(source: str, said: str) -> None:
    Path("mine.py").write_text(source)
    assert_refused(said, agent="mine.py:run")


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("async def run(task, session, depth=1): pass", {"dept": 2}, 'run has no option "dept"; did you mean depth?'),
        ("async def run(task, session): pass", {"x": 2}, 'run has no option "x"; it has none'),
        ("async def run(task, session, /): pass", {"task": 2}, 'run has no option "task"; it has none'),
    ],
)
def test_options_that_it_does_not_have(source: str, options: dict[str, Any], said: str) -> None:
    Path("mine.py").write_text(source)
    assert_refused(said, agent={"name": "mine.py:run", **options})


def test_files_modules_and_programs_that_are_not_there() -> None:
    Path("mine.py").write_text("")
    Path("program").write_text("#!/bin/sh\n")
    assert_refused("there is no file min.py (from ", agent="min.py:run")
    assert_refused("did you mean mine.py?", agent="min.py:run")
    assert_refused("there is no module nothing.here for the agent", agent="nothing.here:run")
    assert_refused('there is no agent "mine.py": write FILE.py:FUNCTION', agent="mine.py")
    assert_refused("there is no program nothing-here: install it, or write its path", command=["nothing-here"])
    assert_refused("there is no program program; did you mean ./program?", command=["program"])
    assert_refused("./program is not executable: chmod +x ./program", command=["./program"])
    assert_refused("there is no program ./progam (from ", command=["./progam"])
    assert_refused("there is no file min.py (from ", command=["python3", "min.py"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("async def run(task, session):\n    yield 1", "mine.py:1: run is a generator, for the yield in it"),
        ("run = 3", "run is of type int, and an agent is an async function"),
        ("def d(f): return lambda task, session: 1\n@d\nasync def run(task, session): pass", "run is not async"),
        ("from os import getcwd as run", "run is not async"),
        ("import functools\nasync def f(t): pass\nrun = functools.partial(f)", "must take a task and a session"),
    ],
)
async def test_what_only_importing_it_tells(source: str, said: str) -> None:
    Path("mine.py").write_text(source)
    spec = spec_of(RolloutConfig(agent="mine.py:run"))
    with pytest.raises(ConfigError) as caught:
        await check_imports(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "import functools\nasync def f(x, task, session): pass\nrun = functools.partial(f, 1)",
        "class Mine:\n    async def __call__(self, task, session): pass\nrun = Mine()",
        "class Mine:\n    async def play(self, task, session): pass\nrun = Mine().play",
        "async def run(*given, **more): pass",
    ],
)
async def test_whatever_can_be_awaited_with_a_task_and_a_session_is_an_agent(source: str) -> None:
    Path("mine.py").write_text(source)
    await check_imports(spec_of(RolloutConfig(agent="mine.py:run")))


def assert_refused(said: str, **config: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(RolloutConfig(**config))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
