"""Agent frameworks and the built-in agent `tools`, as they are: each has a loop of its own."""

import random
import sys
import warnings
from pathlib import Path
from typing import Any

from freerun.bench.exact.clients import add, openai_client, question
from freerun.core import Task
from freerun.rollouts.agents.session import AgentSession
from freerun.rollouts.agents.spec import Access

_SERVER = """
from mcp.server import MCPServer
server = MCPServer("adder")
@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b
server.run()
"""


async def openai_agents(access: Access, dice: random.Random, api: str = "chat", stream: bool = False) -> None:
    import agents

    agents.set_tracing_disabled(True)
    kind: Any = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    async with openai_client(access) as client:
        tools: Any = [agents.function_tool(add)]
        agent = agents.Agent(name="adder", instructions="Add.", model=kind("policy", client), tools=tools)
        if not stream:
            await agents.Runner.run(agent, question(dice))
            return
        async for _ in agents.Runner.run_streamed(agent, question(dice)).stream_events():
            pass


async def openai_agents_responses(access: Access, dice: random.Random) -> None:
    await openai_agents(access, dice, "responses")


async def openai_agents_streamed(access: Access, dice: random.Random) -> None:
    await openai_agents(access, dice, dice.choice(["chat", "responses"]), stream=True)


async def langgraph(access: Access, dice: random.Random) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model: Any = ChatOpenAI(model="policy", base_url=access.base_url, api_key=access.api_key, max_retries=0)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent: Any = create_react_agent(model, [tool(add)], prompt="Add.")
    await agent.ainvoke({"messages": [("user", question(dice))]})


async def pydantic_ai(access: Access, dice: random.Random) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with openai_client(access) as client:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
        await Agent(model, system_prompt="Add.", tools=[add]).run(question(dice))


async def tools(access: Access, dice: random.Random, given: dict[str, Any]) -> None:
    from freerun.rollouts.tools import run

    task = Task("0", question(dice), [], "")
    await run(task, AgentSession(access), [given], max_turns=6)


async def function_tools(access: Access, dice: random.Random) -> None:
    await tools(access, dice, {"function": f"{Path(__file__).with_name('clients.py')}:add"})


def mcp_tools(folder: Path) -> Any:
    """The same with a server that is a program of its own."""
    server = folder / "server.py"
    server.write_text(_SERVER)

    async def mcp(access: Access, dice: random.Random) -> None:
        await tools(access, dice, {"mcp": [sys.executable, str(server)]})

    return mcp
