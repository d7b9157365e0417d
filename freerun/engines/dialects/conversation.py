"""Messages, as every dialect reads them and as chat templates take them."""

import json
from collections.abc import Sequence
from typing import Any

from freerun.core.task import Message
from freerun.engines.dialects.base import Json, NamedTool, ToolChoice
from freerun.engines.refused import Refused

TEXT_PARTS = ("text", "input_text", "output_text")


def text_of(content: Any, param: str, kinds: Sequence[str] = TEXT_PARTS) -> str:
    """The text of a message's content: text, or parts of text. A part that is something else is refused by name."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused("a message's content is text, or a list of text parts", param)
    return "".join(_text_of(part, param, kinds) for part in content)


def _text_of(part: Any, param: str, kinds: Sequence[str]) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in kinds or not isinstance(part.get("text"), str):
        raise Refused(f"this model reads text only: a part of a message must be text, and one is {kind}", param)
    return str(part["text"])


def function_tool(given: Any, name: str = "name", parameters: str = "parameters") -> Json:
    """A tool that is given flat, as Responses and Messages do, in the words of Chat Completions."""
    if not isinstance(given.get(name), str):
        raise Refused("every tool needs a name", "tools")
    function: Json = {"name": given[name]}
    if given.get("description") is not None:
        function["description"] = given["description"]
    function["parameters"] = given.get(parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def check_choice(choice: ToolChoice, tools: Sequence[Json]) -> None:
    """Whether there is a tool that the answer can be made to call."""
    names = [tool["function"]["name"] for tool in tools]
    if choice == "required" and not names:
        raise Refused("tool_choice asks for a call, and there are no tools: give some, or leave it out", "tool_choice")
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise Refused(f"tool_choice names {choice.name!r}, which is none of the tools {names}", "tool_choice")


def for_template(messages: Sequence[Message], arguments_as_text: bool = False) -> list[Message]:
    """As templates expect them: most want the arguments of tool calls as objects, some as a text of JSON."""
    return [
        message | {"tool_calls": [_call(call, arguments_as_text) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _call(call: Any, as_text: bool) -> Any:
    if as_text:
        return call
    try:
        return call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
    except (TypeError, KeyError, ValueError):
        return call
