"""A conversation in the words of Chat Completions, asked in any of the dialects with its own client."""

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

from freerun.bench.exact.clients import Json, chatted, openai_client
from freerun.rollouts.agents.spec import Access

Speak = Callable[..., Awaitable[Json]]
"""`await speak(messages, tools, timeout=…, headers=…)`: the assistant's message."""


def chat_speaker(access: Access, dice: random.Random) -> Speak:
    async def speak(messages: list[Json], tools: list[Json], **more: Any) -> Json:
        async with openai_client(access, **_patience(more)) as client:
            given: Json = {"extra_headers": more.get("headers")} | ({"tools": tools} if tools else {})
            return await chatted(client, messages, dice.random() < 0.5, **given, **more.get("body", {}))

    return speak


def responses_speaker(access: Access, dice: random.Random) -> Speak:
    async def speak(messages: list[Json], tools: list[Json], **more: Any) -> Json:
        async with openai_client(access, **_patience(more)) as client:
            create: Any = client.responses.create
            flat = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
            items = [item for message in messages for item in _items(message)]
            stream = dice.random() < 0.5
            reply = await create(
                model="policy", input=items, tools=flat, stream=stream, extra_headers=more.get("headers")
            )
            if stream:
                async for event in reply:
                    last = event
                reply = last.response
            return _from_items(reply)

    return speak


def messages_speaker(access: Access, dice: random.Random) -> Speak:
    async def speak(messages: list[Json], tools: list[Json], **more: Any) -> Json:
        url = access.base_url.removesuffix("/v1")
        patience = {"max_retries": 0} | _patience(more)
        async with anthropic.AsyncAnthropic(base_url=url, api_key=access.api_key, **patience) as client:
            given: Json = {"model": "policy", "max_tokens": 150, "messages": _blocks(messages)}
            given |= {"system": messages[0]["content"]} if messages[0]["role"] == "system" else {}
            named = [tool["function"] for tool in tools]
            given["tools"] = [
                {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
                for one in named
            ]
            if dice.random() < 0.5:
                return _from_blocks(await client.messages.create(**given, extra_headers=more.get("headers")))
            async with client.messages.stream(**given, extra_headers=more.get("headers")) as events:
                return _from_blocks(await events.get_final_message())

    return speak


SPEAKERS = {"chat": chat_speaker, "responses": responses_speaker, "messages": messages_speaker}
REFUSED = (openai.APIStatusError, anthropic.APIStatusError)
IMPATIENT = (openai.APIConnectionError, anthropic.APIConnectionError)
"""Timeouts included."""


def _patience(more: Json) -> Json:
    return {key: more[key] for key in ("timeout", "max_retries") if key in more}


def _items(message: Json) -> list[Json]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": message["content"]}]
    text = message.get("content") or ""
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", [])
    ]
    return [*(said if text else []), *calls]


def _from_items(reply: Any) -> Json:
    message: Json = {"role": "assistant", "content": reply.output_text}
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in reply.output
        if item.type == "function_call"
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _blocks(messages: list[Json]) -> list[Json]:
    """Results of tools that follow each other are one message of the user's."""
    turns: list[Json] = []
    for message in messages:
        content: Any = message.get("content") or ""
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(result)
            else:
                turns.append({"role": "user", "content": [result]})
        elif message["role"] == "assistant":
            blocks: list[Json] = [{"type": "text", "text": content}] if content else []
            for call in message.get("tool_calls", []):
                given = json.loads(call["function"]["arguments"])
                blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
            turns.append({"role": "assistant", "content": blocks})
        elif message["role"] == "user":
            turns.append({"role": "user", "content": content})
    return turns


def _from_blocks(reply: Any) -> Json:
    message: Json = {"role": "assistant", "content": "".join(b.text for b in reply.content if b.type == "text")}
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}
        for block in reply.content
        if block.type == "tool_use"
    ]
    return message | ({"tool_calls": calls} if calls else {})
