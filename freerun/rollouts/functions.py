"""A Python function as a tool: its schema is what its signature and docstring say."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, PydanticUserError, ValidationError, create_model

from freerun.core import ConfigError
from freerun.core.resolve import Kind
from freerun.core.traces import describe

TOOL_FUNCTIONS = Kind("tool", "FUNCTION", "freerun.tools")


@dataclass(frozen=True)
class FunctionTool:
    name: str
    description: str
    parameters: dict[str, Any]
    _function: Callable[..., Any]
    _arguments: type[BaseModel]

    async def __call__(self, arguments: dict[str, Any]) -> str:
        """What the function returns, or what it or its arguments' types complain about. A function that does not await
        runs in a thread, so that calls run side by side."""
        try:
            read = self._arguments.model_validate(arguments)
            given = {field: getattr(read, field) for field in read.model_fields_set}
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(**given)
            else:
                result = await asyncio.to_thread(self._function, **given)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            return f"Error: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        except Exception as error:
            return f"Error: {type(error).__name__}: {error}"
        return result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)


def function_tool(given: str) -> FunctionTool:
    """The tool that `FILE.py:NAME` or `package.module:NAME` is."""
    found = TOOL_FUNCTIONS.find(given)
    found.definition()
    function = found.load()
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"the tool {given} is no function")
    try:
        arguments = _arguments_of(function)
        schema = arguments.model_json_schema()
    except (NameError, TypeError, ValueError, PydanticUserError) as error:
        raise ConfigError(f"the tool {given} cannot be described: {describe(error)}") from error
    described = inspect.getdoc(function) or ""
    summary, about = described.partition("\nArgs:")[0].strip(), _about(described)
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)
        if name in about:
            field["description"] = about[name]
    schema.pop("title", None)
    return FunctionTool(function.__name__, summary, schema, function, arguments)


def _arguments_of(function: Callable[..., Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, one in inspect.signature(function, eval_str=True).parameters.items():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise TypeError(f"its parameter {name} has no name for a call to give")
        kind = Any if one.annotation is one.empty else one.annotation
        fields[name] = (kind, ... if one.default is one.empty else one.default)
    model: type[BaseModel] = create_model(function.__name__, __config__={"extra": "forbid"}, **fields)
    return model


def _about(described: str) -> dict[str, str]:
    """What a docstring's `Args:` says of each parameter: `    name: text` or `    name (type): text`."""
    section = described.partition("\nArgs:")[2]
    return dict(re.findall(r"^\s+(\w+)(?: \([^)]*\))?: (.+)$", section, re.MULTILINE))
