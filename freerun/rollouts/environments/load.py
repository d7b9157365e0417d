"""Which module plays `rollout.env`, and what its function is given."""

import importlib

from freerun.core import ConfigError
from freerun.core.text import did_you_mean
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.config import Named, name_of, options_of

ENVIRONMENTS = {
    "textarena": "freerun.rollouts.environments.textarena",
    "gymnasium": "freerun.rollouts.environments.gymnasium",
    "verifiers": "freerun.rollouts.environments.verifiers",
    "reasoning-gym": "freerun.rollouts.environments.reasoning_gym",
}


def environment(env: Named, max_turns: int) -> AgentSpec:
    """What runs for `rollout.env`."""
    given = name_of(env)
    kind, _, name = given.partition(":")
    if kind not in ENVIRONMENTS:
        known = ", ".join(f"{kind}:NAME" for kind in ENVIRONMENTS)
        raise ConfigError(f'there is no environment "{given}": use one of {known}{did_you_mean(kind, ENVIRONMENTS)}')
    if not name:
        raise ConfigError(f"the environment {given} lacks a name: write {kind}:NAME")
    options = {"name": name, "options": options_of(env), "max_turns": max_turns}
    return AgentSpec(f"{ENVIRONMENTS[kind]}:run", f"the environment {given}", options)


def check_environment(spec: AgentSpec) -> None:
    """Whether it is installed, has that name and takes those options; else a ConfigError of one line. Imports it."""
    importlib.import_module(spec.reference.partition(":")[0]).check(spec.options["name"], spec.options["options"])
