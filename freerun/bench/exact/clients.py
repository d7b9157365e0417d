"""Unmodified clients, each with its own loop: answer, run the tools, answer. They only ever add to a conversation, so
each of their sessions must come to one sample."""

import json
import random
from typing import Any

import anthropic
import openai

from freerun.rollouts.agents.spec import Access

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}
_RESPONSES_ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": False}
_MESSAGES_ADD = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}
Json = dict[str, Any]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def question(dice: random.Random) -> str:
    return f"What is {dice.randrange(1000)} + {dice.randrange(1000)}?"


def openai_client(access: Access, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, **({"max_retries": 0} | more))


def result_of(call: Json) -> Json:
    given = json.loads(call["function"]["arguments"])
    return {"role": "tool", "tool_call_id": call["id"], "content": str(add(**given))}


async def chat(access: Access, dice: random.Random, stream: bool = False) -> None:
    async with openai_client(access) as client:
        messages: list[Any] = [{"role": "user", "content": question(dice)}]
        for _ in range(dice.randint(1, 2)):
            while calls := (said := await chatted(client, messages, stream, tools=[ADD])).get("tool_calls"):
                messages += [said, *map(result_of, calls)]
            messages += [said, {"role": "user", "content": question(dice)}]


async def streamed_chat(access: Access, dice: random.Random) -> None:
    await chat(access, dice, stream=True)


async def chatted(client: openai.AsyncOpenAI, messages: list[Any], stream: bool = False, **more: Any) -> Json:
    """The assistant's message, as clients send it back."""
    create: Any = client.chat.completions.create
    reply = await create(model="policy", messages=messages, stream=stream, **more)
    if not stream:
        message: Json = reply.choices[0].message.model_dump(exclude_none=True)
        return message
    message = {"role": "assistant", "content": ""}
    async for chunk in reply:
        for delta in (choice.delta for choice in chunk.choices):
            message["content"] += delta.content or ""
            for call in delta.tool_calls or []:
                calls = message.setdefault("tool_calls", [])
                if call.id:
                    calls.append({"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[call.index]["function"]["name"] += call.function.name or ""
                calls[call.index]["function"]["arguments"] += call.function.arguments or ""
    return message


async def responses(access: Access, dice: random.Random, stream: bool = False, chained: bool = False) -> None:
    """All items sent back; or, chained, only what is new."""
    async with openai_client(access) as client:
        create: Any = client.responses.create
        items: list[Any] = [{"role": "user", "content": question(dice)}]
        more: Json = {"tools": [_RESPONSES_ADD], "instructions": "Add.", "stream": stream}
        questions = dice.randint(1, 2)
        while questions:
            reply = await create(model="policy", input=items, **more)
            if stream:
                async for event in reply:
                    last = event
                reply = last.response
            new: list[Any] = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": str(add(**json.loads(item.arguments))),
                }
                for item in reply.output
                if item.type == "function_call"
            ]
            if not new:
                questions -= 1
                new = [{"role": "user", "content": question(dice)}]
            items = new if chained else [*items, *reply.output, *new]
            more |= {"previous_response_id": reply.id} if chained else {}


async def streamed_responses(access: Access, dice: random.Random) -> None:
    await responses(access, dice, stream=True)


async def chained_responses(access: Access, dice: random.Random) -> None:
    await responses(access, dice, chained=True, stream=dice.random() < 0.5)


async def messages(access: Access, dice: random.Random, stream: bool = False) -> None:
    url = access.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=access.api_key, max_retries=0) as client:
        said: list[Any] = [{"role": "user", "content": question(dice)}]
        asked: Json = {"model": "policy", "max_tokens": 150, "tools": [_MESSAGES_ADD], "system": "Add."}
        questions = dice.randint(1, 2)
        while questions:
            if stream:
                async with client.messages.stream(messages=said, **asked) as events:
                    reply: Any = await events.get_final_message()
            else:
                reply = await client.messages.create(messages=said, **asked)
            content: Any = [
                {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
                for block in reply.content
                if block.type == "tool_use"
            ]
            if not content:
                questions -= 1
                content = question(dice)
            said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": content}]


async def streamed_messages(access: Access, dice: random.Random) -> None:
    await messages(access, dice, stream=True)
