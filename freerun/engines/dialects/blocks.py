"""The content blocks of Anthropic's Messages, as messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from freerun.core.task import Message
from freerun.engines.dialects.base import Json
from freerun.engines.dialects.conversation import text_of
from freerun.engines.refused import Refused


class _Block(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Message(msgspec.Struct):
    content: str | list[_Block] = ""


class _Body(msgspec.Struct):
    messages: list[_Message]


def messages_of(body: bytes, messages: Sequence[Json]) -> list[Message]:
    """`body` is the request's, from which the inputs of calls are taken as they were sent."""
    has_calls = b'"tool_use"' in body
    inputs = msgspec.json.decode(body, type=_Body).messages if has_calls else [_Message()] * len(messages)
    read: list[Message] = []
    for message, raw in zip(messages, inputs, strict=True):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise Refused(f"a message's role is user or assistant, and one is {role}", "messages")
        if isinstance(content, str):
            read.append({"role": role, "content": content})
        elif not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise Refused("a message's content is text, or a list of blocks", "messages")
        elif role == "assistant":
            blocks = raw.content if isinstance(raw.content, list) else []
            read.append(_answer(content, [bytes(block.input).decode() for block in blocks]))
        else:
            read.extend(_asked(role, content))
    return read


def system_of(system: str | list[Any]) -> str:
    return text_of(system, "system", ("text",))


def _answer(blocks: Sequence[Json], inputs: Sequence[str]) -> Message:
    message: Message = {"role": "assistant", "content": ""}
    for number, block in enumerate(blocks):
        match block.get("type"):
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + _text(block, "thinking")
            case "redacted_thinking":
                pass  # nobody here can read it
            case "tool_use":
                function = {"name": _text(block, "name"), "arguments": inputs[number]}
                call = {"id": _text(block, "id"), "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case _:
                message["content"] += text_of([block], "messages", ("text",))
    return message


def _asked(role: str, blocks: Sequence[Json]) -> list[Message]:
    """What tools gave are messages of their own; text in a row is one."""
    messages: list[Message] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = text_of(block.get("content") or "", "messages", ("text",))
            messages.append({"role": "tool", "tool_call_id": _text(block, "tool_use_id"), "content": content})
            continue
        text = text_of([block], "messages", ("text",))
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += text
        else:
            messages.append({"role": role, "content": text})
    return messages or [{"role": role, "content": ""}]


def _text(block: Json, key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise Refused(f"a block of type {block.get('type')} needs {key}", "messages")
    return value
