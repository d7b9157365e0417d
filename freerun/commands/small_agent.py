"""The agent of the small presets of tool use: the policy may look a number up before it says it.

A session is a conversation: whoever is asked for a key says `look KEY` and is told the number there, or says a number,
which ends it. The reward is the published runs' (r - 0.5) * 10.
"""

from typing import Any

from freerun.core import Task

MOST_TURNS = 3


async def run(task: Task, session: Any) -> float:
    messages = [{"role": "user", "content": task.prompt}]
    for _ in range(MOST_TURNS):
        said = (await session.chat(messages)).get("content") or ""
        if said != f"look {task.prompt}":
            return (float(said == task.answer) - 0.5) * 10
        told = {"role": "user", "content": str(task.answer)}
        messages += [{"role": "assistant", "content": said}, told]
    return -5.0
