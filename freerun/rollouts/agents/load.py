"""From the configuration to the code that a session runs. Refuses, in one line and before the run starts, what can be
told without importing the user's code; `check_imports` tells the rest."""

import importlib
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from freerun.core import ConfigError
from freerun.core.text import did_you_mean
from freerun.rollouts.agents.function import check_unread
from freerun.rollouts.agents.pool import AgentPool
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.config import TOOLS, RolloutConfig, name_of, options_of

ENVIRONMENTS = {
    "textarena": "freerun.rollouts.environments.textarena",
    "gymnasium": "freerun.rollouts.environments.gymnasium",
    "verifiers": "freerun.rollouts.environments.verifiers",
    "reasoning-gym": "freerun.rollouts.environments.reasoning_gym",
}
"""By what stands before the colon of `rollout.env`."""
_SCRIPTS = (".py", ".js", ".mjs", ".ts", ".rb", ".sh", ".pl")
_INTERPRETERS = ("python", "node", "ruby", "bash", "sh", "perl", "deno", "bun", "tsx")


def spec_of(config: RolloutConfig) -> AgentSpec:
    """What `rollout` says; ConfigError, where that cannot work."""
    if config.agent is not None:
        name = name_of(config.agent)
        spec = AgentSpec(name, f"the agent {name}", options_of(config.agent))
        check_unread(spec)
        return spec
    if config.command:
        check_command(config.command)
        called = f"the command {shlex.join(config.command)}"
        return AgentSpec("freerun.rollouts.agents.command:run", called, {"command": list(config.command)})
    if config.env is not None:
        return _environment(name_of(config.env), config.max_turns, options_of(config.env))
    assert config.name == TOOLS
    options = {"tools": list(config.tools), "max_turns": config.max_turns}
    return _ours("freerun.rollouts.tools", "the agent tools", options)


async def check_imports(spec: AgentSpec) -> None:
    """Import the code in a process of its own. ConfigError if that fails."""
    async with AgentPool(spec, max_sessions=1):
        pass


def check_command(command: Sequence[str]) -> None:
    program, *arguments = command
    if os.sep in program:
        path = Path(program)
        if not path.is_file():
            near = did_you_mean(path.name, (entry.name for entry in path.parent.glob("*")))
            raise ConfigError(f"rollout.command: there is no program {program} (from {Path.cwd()}){near}")
        if not os.access(path, os.X_OK):
            raise ConfigError(f"rollout.command: {program} is not executable: chmod +x {program}")
    elif shutil.which(program) is None:
        own = f"; did you mean ./{program}?" if Path(program).is_file() else ": install it, or write its path"
        raise ConfigError(f"rollout.command: there is no program {program}{own}")
    script = arguments[0] if arguments else ""
    if Path(program).name.startswith(_INTERPRETERS) and script.endswith(_SCRIPTS) and not Path(script).is_file():
        near = did_you_mean(Path(script).name, (entry.name for entry in Path(script).parent.glob("*")))
        raise ConfigError(f"rollout.command: there is no file {script} (from {Path.cwd()}){near}")


def _environment(given: str, max_turns: int, options: dict[str, Any]) -> AgentSpec:
    kind, _, name = given.partition(":")
    if kind not in ENVIRONMENTS or not name:
        forms = ", ".join(f"{known}:NAME" for known in ENVIRONMENTS)
        raise ConfigError(f'rollout.env "{given}" must be one of {forms}{did_you_mean(kind, ENVIRONMENTS)}')
    given_it = {"name": name, "options": options, "max_turns": max_turns}  # an environment may have a max_turns, too
    return _ours(ENVIRONMENTS[kind], f"the environment {given}", given_it)


def _ours(module: str, called: str, options: dict[str, Any]) -> AgentSpec:
    """Describes an agent that we bring. Its module knows what may be wrong with its options."""
    importlib.import_module(module).check(**options)
    return AgentSpec(f"{module}:run", called, options)
