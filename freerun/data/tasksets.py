"""Tasks of an installed taskset of the verifiers package, 0.4 or newer. The only file of this room that imports it.

A row is a prompt and, under `verifiers*` keys, what it takes to make the task again: the judge does so, and has it
score an answer by its own rewards. A taskset whose tasks want more than a prompt and an answer (tools, a machine to
work on, several agents) is refused, save for agents: `rollout.env: verifiers:TASKSET` has them played by verifiers.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from freerun.core import DataError
from freerun.data.config import DataConfig
from freerun.data.rows import Row


def load_taskset(name: str, config: DataConfig, for_agents: bool = False) -> Iterator[Row]:
    taskset = _create(name, config.options)
    if not taskset.bounded and config.limit is None:
        raise DataError(f"verifiers:{name} has tasks without end: set limit")
    for place, task in enumerate(taskset):
        if place == 0 and not for_agents:  # they are all of one class
            _refuse_more_than_answers(name, taskset, task)
        yield {
            **({"id": task.data.id} if task.data.id else {}),
            **({"prompt": _prompt(name, task.data)} if task.data.prompt is not None or not for_agents else {}),
            "verifiers": name,
            "verifiers_options": config.options,
            "verifiers_task": task.data.model_dump(mode="json", exclude_defaults=True),
        }


def _create(name: str, options: dict[str, Any]) -> Any:
    try:
        import verifiers.v1 as vf
    except ImportError:
        raise DataError("verifiers is not installed: pip install 'freerun[verifiers]'") from None
    try:
        return vf.load_taskset(vf.taskset_config_type(name).model_validate({**options, "id": name}))
    except (AttributeError, ImportError, TypeError) as error:  # no such package, or it is no taskset
        raise DataError(f"verifiers has no taskset {name} here: {error}") from None
    except ValueError as error:  # pydantic's too
        raise DataError(f"verifiers:{name} refuses its options: {' '.join(str(error).split())}") from None


def _refuse_more_than_answers(name: str, taskset: Any, task: Any) -> None:
    import verifiers.v1 as vf

    hooks = [getattr(task, hook) for hook in ("setup", "finalize") if hook in _defined_below(type(task), vf.Task)]
    needs = {
        "several agents": not issubclass(vf.environment_class(name), vf.SingleAgentEnv),
        "tools": taskset.toolsets(taskset.config) or task.toolsets(task.config),
        "a machine to work on": task.NEEDS_CONTAINER or any(map(_needs_runtime, [*hooks, *task.hooks("reward")])),
    }
    if any(needs.values()):
        wants = " and ".join(need for need, needed in needs.items() if needed)
        raise DataError(
            f"the tasks of verifiers:{name} need {wants}; what is supported is one prompt, one answer; "
            f"or set rollout.env: verifiers:{name}"
        )


def _defined_below(kind: type, base: type) -> set[str]:
    return {name for between in kind.__mro__[: kind.__mro__.index(base)] for name in vars(between)}


def _needs_runtime(function: Any) -> bool:
    runtime = inspect.signature(function).parameters.get("runtime")
    return runtime is not None and runtime.default is inspect.Parameter.empty


def _prompt(name: str, data: Any) -> str | list[dict[str, str]]:
    """Text, or messages where there is more than that."""
    if isinstance(data.prompt, str) and data.system_prompt is None:
        return data.prompt
    given = (
        [("user", data.prompt)] if isinstance(data.prompt, str) else [(m.role, m.content) for m in data.prompt or []]
    )
    if not given or not all(isinstance(content, str) for _, content in given):
        raise DataError(f"task {data.idx} of verifiers:{name} has no prompt of text")
    system = [("system", data.system_prompt)] if data.system_prompt is not None else []
    return [{"role": role, "content": content} for role, content in [*system, *given]]
