"""The judge `verifiers`: each task's own rewards. The only file of this room that imports verifiers."""

import asyncio
import json
from functools import lru_cache
from typing import Any

from freerun.core import RewardError, Task


def verifiers(task: Task, text: str) -> float:
    """The weighted sum of the rewards that the task's class defines, for the text as the only reply to its prompt."""
    try:
        name, options, data = (task.extra[f"verifiers{key}"] for key in ("", "_options", "_task"))
    except KeyError as missing:
        raise RewardError(f"task {task.id} has no {missing}: this judge needs a source verifiers:NAME") from None
    kind, settings = _kind(name, json.dumps(options, sort_keys=True))
    own_task = kind(kind.data_type().model_validate(data), settings)
    trace = _trace(own_task, text)
    asyncio.run(own_task.score(trace))
    if not trace.rewards:
        raise RewardError(f"task {task.id}: the tasks of verifiers:{name} have no rewards of their own")
    return float(trace.reward)


@lru_cache(maxsize=8)
def _kind(name: str, options: str) -> tuple[Any, Any]:
    """The class of a taskset's tasks, and their settings."""
    import verifiers.v1 as vf

    return vf.task_type(name), vf.taskset_config_type(name).model_validate({**json.loads(options), "id": name}).task


def _trace(task: Any, text: str) -> Any:
    """A rollout of a single turn, as verifiers would have recorded it."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    prompt = task.data.prompt
    messages: list[Any] = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
    if task.data.system_prompt is not None:
        messages.insert(0, vf.SystemMessage(content=task.data.system_prompt))
    thought, _, reply = text.rpartition("</think>")
    messages.append(vf.AssistantMessage(content=reply, reasoning_content=thought or None))
    nodes = [vf.MessageNode(parent=place - 1 if place else None, message=m) for place, m in enumerate(messages)]
    nodes[-1].sampled = True
    return vf.Trace[type(task.data), state_cls(type(task)), vf.AgentConfig](
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )
