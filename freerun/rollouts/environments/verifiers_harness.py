"""The program by which verifiers' agents talk to the policy, in the process of the session: it answers, runs the tools
that it called, and answers again. verifiers' own are programs that each rollout would have to install and start.

Imported for its class, which verifiers finds by the name of this module: it imports verifiers."""

import asyncio
import contextlib
from typing import Any

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from freerun.rollouts.mcp import connect
from freerun.rollouts.tools import Tool, result_of, schema_of

__all__ = ["InProcessHarness"]


class InProcessHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        given = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        conversation = [{"role": "system", "content": system}] if system else []
        conversation += [message_to_wire(message) for message in given]
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0))
            at_hand: dict[str, Tool] = {}
            for server, url in mcp_urls.items():
                for tool in await stack.enter_async_context(connect(url, {})):
                    at_hand[f"{server}_{tool.name}" if server else tool.name] = tool
            try:
                await converse(client, ctx.model, conversation, at_hand)
            except APIStatusError:
                if trace.stop_condition is None:
                    raise  # else it is how verifiers says that the turns, or the task, have ended
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def converse(client: Any, model: str, conversation: list[dict[str, Any]], at_hand: dict[str, Tool]) -> None:
    """Until an answer calls no tool, or verifiers refuses another one."""
    schemas = [schema_of(tool, name) for name, tool in at_hand.items()]
    more = {"tools": schemas} if schemas else {}
    while True:
        reply = await client.chat.completions.create(model=model, messages=conversation, **more)
        answer = reply.choices[0].message.model_dump(exclude_none=True)
        calls = answer.get("tool_calls") or []
        if not calls:
            return
        conversation += [answer, *await asyncio.gather(*(result_of(at_hand, call) for call in calls))]
