"""The items of OpenAI's Responses, as messages."""

from collections.abc import Sequence
from typing import Any

from freerun.core.task import Message
from freerun.engines.dialects.base import Json
from freerun.engines.dialects.conversation import text_of
from freerun.engines.refused import Refused


def messages_of(given: str | Sequence[Any]) -> list[Message]:
    """An answer is several items, thoughts, text and calls, and one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    for item in given:
        if not isinstance(item, dict):
            raise Refused("every item of input is an object", "input")
        kind = item.get("type", "message")
        if kind == "message":
            _add_message(messages, item)
        elif kind == "reasoning":
            _add_thoughts(messages, item)
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = text_of(item.get("output", ""), "input")
            messages.append({"role": "tool", "tool_call_id": _text(item, "call_id"), "content": output})
        elif kind == "item_reference":
            raise Refused("input has an item_reference: send the item itself, or use previous_response_id", "input")
        else:
            raise Refused(f"input has an item of type {kind}, which is not supported: send text and calls", "input")
    return messages


def _add_message(messages: list[Message], item: Json) -> None:
    role, content = _text(item, "role"), text_of(item.get("content", ""), "input")
    last = messages[-1] if messages else {}
    goes_on = last.get("role") == "assistant" and (not last["content"] or "tool_calls" in last)
    if role == "assistant" and goes_on:
        last["content"] += content
    else:
        messages.append({"role": role, "content": content})


def _add_thoughts(messages: list[Message], item: Json) -> None:
    parts = item.get("content") or item.get("summary") or []
    thoughts = text_of(parts, "input", ("reasoning_text", "summary_text"))
    if thoughts:
        messages.append({"role": "assistant", "content": "", "reasoning_content": thoughts})


def _add_call(messages: list[Message], item: Json) -> None:
    function = {"name": _text(item, "name"), "arguments": _text(item, "arguments")}
    call = {"id": _text(item, "call_id"), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _text(item: Json, key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise Refused(f"an item of type {item.get('type', 'message')} needs {key}", "input")
    return value
