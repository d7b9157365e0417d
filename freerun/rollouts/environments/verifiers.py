"""Tasksets of verifiers with their own loop, tools and rewards, `verifiers:TASKSET`; with verifiers_harness.py the only
file of this room that imports verifiers (0.4 or newer). The tasks come from `data.source: verifiers:TASKSET`.

The environment that verifiers has for the taskset plays an episode in the session's process. Its one agent is the
policy; its tool servers are processes that live as long as the session; its rewards are the result. Options are those
of the environment's section in verifiers' own configuration, save the taskset's, which are `data.options`.
"""

import contextlib
import json
import os
import sys
from typing import Any

from freerun.core import ConfigError, RewardError, Task
from freerun.core.traces import describe
from freerun.rollouts.environments.base import Session

with contextlib.suppress(ImportError):  # here, so that processes are forked with it; `check` says what is missing
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.generic import concrete_type

    from freerun.rollouts.environments import verifiers_harness

    sys.modules.setdefault("freerun_in_process", verifiers_harness)

HARNESS = "freerun_in_process"
"""verifiers finds a harness by the name of a module that can be imported and has no dots."""
KEY = "FREERUN_SESSION_KEY"
"""verifiers reads a client's key from an environment variable, whose name it is told."""


async def run(task: Task, session: Session, name: str, options: dict[str, Any], max_turns: int) -> float:
    if task.extra.get("verifiers") != name:
        raise ConfigError(f"the environment verifiers:{name} needs tasks of data.source: verifiers:{name}")
    env = _environment(name, options, task.extra["verifiers_options"], max_turns)
    kind = vf.task_type(name)
    own_task = kind(kind.data_type().model_validate(task.extra["verifiers_task"]), env.config.taskset.task)
    os.environ[KEY] = session.api_key
    client = vf.EvalClientConfig(base_url=session.base_url, api_key_var=KEY)
    async with env.serving():
        episode = await env.run_episode(own_task, vf.ModelContext(session.model, client, vf.SamplingConfig()))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        said = " ".join(errors[0].message.split())
        raise RewardError(f"the episode of verifiers:{name} failed: {errors[0].type}: {said[-400:]}")
    [trace] = episode.traces
    if not trace.rewards:
        raise RewardError(f"task {task.id}: the tasks of verifiers:{name} have no rewards of their own")
    return float(trace.reward)


def check(name: str, options: dict[str, Any], max_turns: int) -> None:
    try:
        import verifiers.v1  # noqa: F401
    except ImportError:
        raise ConfigError("verifiers is not installed: pip install 'freerun[verifiers]'") from None
    try:
        _environment(name, options, {}, max_turns)
    except (AttributeError, ImportError, TypeError) as error:  # no such package, or it is no taskset
        raise ConfigError(f"verifiers has no taskset {name} here: {' '.join(str(error).split())}") from None
    except ValueError as error:  # pydantic's too
        raise ConfigError(f"verifiers:{name} refuses its options: {' '.join(str(error).split())}") from None
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"verifiers:{name} cannot be loaded: {describe(error)}") from error


def _environment(name: str, options: dict[str, Any], of_taskset: dict[str, Any], max_turns: int) -> Any:
    """verifiers' environment of the taskset, whose agent is the policy, in this process."""
    kind = vf.environment_class(name)
    settings = concrete_type(kind, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
    taskset = {**json.loads(json.dumps(of_taskset)), "id": name}
    roles = list(agent_config_fields(settings.model_validate({"taskset": taskset})))
    if len(roles) != 1:
        raise ConfigError(f"verifiers:{name} has the agents {', '.join(roles)}: only one can be the policy")
    agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, "max_turns": max_turns}
    given = {**options, roles[0]: {**agent, **options.get(roles[0], {})}, "taskset": taskset}
    return kind(settings.model_validate(given))
