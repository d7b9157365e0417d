"""`rollout.kind: tools`: the policy answers, the tools it called run, it answers again, up to `rollout.max_turns`.

Calls of one answer run side by side. A tool that raises, does not exist or is called with what is no JSON is told to
the policy, as the tool's result: that is something to learn from. A server that does not start or that ends fails the
session. The judge decides, on the last answer.
"""

import asyncio
import concurrent.futures
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from freerun.core import ConfigError, Task
from freerun.core.task import Message
from freerun.rollouts.environments.base import Session, opening, refuse_unknown
from freerun.rollouts.functions import function_tool
from freerun.rollouts.mcp import connect


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]: ...

    async def __call__(self, arguments: dict[str, Any]) -> str: ...


async def run(task: Task, session: Session, tools: Sequence[Mapping[str, Any]], max_turns: int) -> None:
    async with opened(tools) as at_hand:
        schemas, conversation = [schema_of(tool, name) for name, tool in at_hand.items()], opening(task)
        for _ in range(max_turns):
            answer = await session.chat(conversation, tools=schemas)
            calls = answer.get("tool_calls") or []
            if not calls:
                return
            results = await asyncio.gather(*(result_of(at_hand, call) for call in calls))
            conversation += [answer, *results]


def check(tools: Sequence[Mapping[str, Any]], max_turns: int) -> None:
    """Start every server once, import every function; whatever is wrong is a ConfigError of one line."""

    async def open_and_close() -> None:
        async with opened(tools):
            pass

    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # who calls this may be in an event loop already
        thread.submit(asyncio.run, open_and_close()).result()


@contextlib.asynccontextmanager
async def opened(tools: Sequence[Mapping[str, Any]]) -> AsyncIterator[dict[str, Tool]]:
    """All tools by name; their servers run meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        at_hand: dict[str, Tool] = {}
        for given in tools:
            for tool in await _tools_of(given, stack):
                if tool.name in at_hand:
                    raise ConfigError(f"two of rollout.tools are called {tool.name}: rename one of them")
                at_hand[tool.name] = tool
        yield at_hand


async def _tools_of(given: Mapping[str, Any], stack: contextlib.AsyncExitStack) -> Sequence[Tool]:
    refuse_unknown("a tool of rollout.tools", given, ["mcp", "function", "env"])
    server, function = given.get("mcp"), given.get("function")
    if isinstance(function, str) and server is None:
        return [function_tool(function)]
    if function is None and server and (isinstance(server, str) or all(isinstance(part, str) for part in server)):
        return await stack.enter_async_context(connect(server, given.get("env") or {}))
    raise ConfigError("a tool of rollout.tools must be {mcp: [PROGRAM, ITS ARGUMENTS]} or {function: FILE.py:NAME}")


def schema_of(tool: Tool, name: str) -> dict[str, Any]:
    """A tool as chat completions describe it. `name` is what the policy calls it."""
    function = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


async def result_of(at_hand: Mapping[str, Tool], call: Mapping[str, Any]) -> Message:
    """The message that tells what became of a call."""
    name = call["function"]["name"]
    try:
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except ValueError as error:
        said = f"Error: the arguments are not valid JSON: {error}"
    else:
        if name not in at_hand:
            said = f'Error: there is no tool "{name}"; there is {", ".join(at_hand)}'
        elif not isinstance(arguments, dict):
            said = "Error: the arguments must be a JSON object"
        else:
            said = await at_hand[name](arguments)
    return {"role": "tool", "tool_call_id": call["id"], "content": said}
