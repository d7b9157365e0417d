"""Unmodified clients and agent frameworks: each runs its own loop with a tool, and is one sample, token for token."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import pytest

from tests.rollouts.gateway.conftest import OpenTalk, Talk
from tests.rollouts.gateway.scripted_policy import END
from tests.rollouts.gateway.test_session import ADD, CALL, calls_then

INPUT_SCHEMA = ADD["function"]["parameters"]  # type: ignore[index]
QUESTION, ANSWER = "What is 2 + 2?", "It is 4."
Agent = Callable[[Talk], Awaitable[str]]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def responses(talk: Talk, stream: bool = False, chained: bool = False) -> str:
    """OpenAI's Responses: all items sent back, or only what is new, with `previous_response_id`."""
    create: Any = talk.client.responses.create
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": INPUT_SCHEMA, "strict": False}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    more: dict[str, Any] = {}
    while True:
        reply = await create(model="policy", input=items, tools=[tool], instructions="Add.", stream=stream, **more)
        if stream:
            async for event in reply:
                last = event
            reply = last.response
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return str(reply.output_text)
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": str(add(**json.loads(call.arguments)))}
            for call in calls
        ]
        items = results if chained else [*items, *reply.output, *results]
        more = {"previous_response_id": reply.id} if chained else {}


async def streamed_responses(talk: Talk) -> str:
    return await responses(talk, stream=True)


async def chained_responses(talk: Talk) -> str:
    return await responses(talk, chained=True)


async def messages(talk: Talk, stream: bool = False) -> str:
    """Anthropic's own client."""
    client = anthropic.AsyncAnthropic(base_url=talk.access.base_url.removesuffix("/v1"), api_key="x", max_retries=0)
    tool = {"name": "add", "description": "Adds.", "input_schema": INPUT_SCHEMA}
    said: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": "policy", "max_tokens": 150, "tools": [tool], "system": "Add."}
    while True:
        if stream:
            async with client.messages.stream(messages=said, **asked) as events:
                reply: Any = await events.get_final_message()
        else:
            reply = await client.messages.create(messages=said, **asked)
        if reply.stop_reason != "tool_use":
            return str(reply.content[-1].text)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
            for block in reply.content
            if block.type == "tool_use"
        ]
        said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]


async def streamed_messages(talk: Talk) -> str:
    return await messages(talk, stream=True)


async def openai_agents(talk: Talk, api: str = "chat", stream: bool = False) -> str:
    import agents

    agents.set_tracing_disabled(True)
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    agent = agents.Agent(
        name="adder",
        instructions="Add.",
        model=kind("policy", talk.client),
        tools=[agents.function_tool(add)],
    )
    if stream:
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        return str(streamed.final_output)
    return str((await agents.Runner.run(agent, QUESTION)).final_output)


async def openai_agents_responses(talk: Talk) -> str:
    return await openai_agents(talk, "responses")


async def openai_agents_streamed(talk: Talk) -> str:
    return await openai_agents(talk, "responses", stream=True)


async def langgraph(talk: Talk) -> str:
    import warnings

    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(model="policy", base_url=talk.access.base_url, api_key=talk.access.api_key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent: Any = create_react_agent(model, [tool(add)], prompt="Add.")
    ended = await agent.ainvoke({"messages": [("user", QUESTION)]})
    return str(ended["messages"][-1].content)


async def pydantic_ai(talk: Talk) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=talk.access.base_url, api_key=talk.access.api_key)
    agent = Agent(OpenAIChatModel("policy", provider=provider), system_prompt="Add.", tools=[add])
    return (await agent.run(QUESTION)).output


EVERY: list[Agent] = [
    *(responses, streamed_responses, chained_responses, messages, streamed_messages),
    *(openai_agents, openai_agents_responses, openai_agents_streamed, langgraph, pydantic_ai),
]


@pytest.mark.parametrize("agent", EVERY, ids=lambda agent: agent.__name__)
async def test_a_framework_with_a_tool_is_one_sample(talk: OpenTalk, agent: Agent) -> None:
    with talk(calls_then(ANSWER, 2)) as one:
        assert await agent(one) == ANSWER
        trajectory = one.check(samples=1)
        assert len(one.policy.record) == 3
        assert trajectory.sample is not None
        roles = [turn.message["role"] for turn in trajectory.sample.turns if turn.message["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert one.session.report.forks == {}


@pytest.mark.parametrize("agent", EVERY, ids=lambda agent: agent.__name__)
async def test_parallel_calls_of_a_framework_are_one_sample(talk: OpenTalk, agent: Agent) -> None:
    def script(prompt: str, seed: int) -> str:
        return f"{ANSWER}{END}" if "<tool_response>" in prompt else f"Both.\n{CALL % 1}\n{CALL % 5}{END}"

    with talk(script) as one:
        assert await agent(one) == ANSWER
        one.check(samples=1)


async def test_an_answer_that_a_client_begins_goes_on_from_there(talk: OpenTalk) -> None:
    """Anthropic's clients send the beginning of an answer as the last message, and put the two together themselves."""
    with talk(lambda prompt, seed: f" 4, I think, {prompt.count('user')}.{END}") as one:
        client = anthropic.AsyncAnthropic(base_url=one.access.base_url.removesuffix("/v1"), api_key="x", max_retries=0)
        said: list[Any] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "It is"}]
        for _ in range(2):
            reply: Any = await client.messages.create(model="policy", max_tokens=50, messages=said)
            assert reply.content[0].text.startswith(" 4, I think"), "what was sent is not sent back"
            said[-1] = {"role": "assistant", "content": said[-1]["content"] + reply.content[0].text}
            said += [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "It is"}]
        assert one.policy._tokenizer.decode(one.policy.record[0].prompt).endswith("assistant\nIt is")
        one.check(samples=1)
