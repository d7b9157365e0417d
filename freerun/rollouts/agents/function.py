"""The function that a user's agent is: found, imported, and checked to be an async function of `(task, session)` and
its options.

`check_unread` reads the file and runs none of it, so that the controller can refuse a mistake at once. `load` imports
it, in the process that workers are forked from, and checks what only running it can tell.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any

from freerun.core import ConfigError
from freerun.core.resolve import Kind
from freerun.core.text import did_you_mean
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.agents.worker import AgentFunction

AGENTS = Kind("agent", "FUNCTION", "freerun.agents")
IMPORTED_ON_USE = {
    "openai": ("openai.resources.chat", "openai.resources.responses", "openai.lib.streaming", "openai.pagination"),
    "anthropic": ("anthropic.resources", "httpcore2", "truststore"),
    "httpx": ("httpcore", "certifi"),
    "anyio": ("anyio._backends._asyncio",),
    "freerun.rollouts.environments.base": ("freerun.rollouts.agents.http",),
    "freerun.rollouts.mcp": ("mcp", "mcp.client.stdio"),
    **{
        f"freerun.rollouts.environments.{name}": (name,)
        for name in ("textarena", "gymnasium", "verifiers", "reasoning_gym")
    },
}
"""What SDKs, and our own agents, import with their first request: 500 modules and 0.2 s for openai, which every worker
would spend again."""
_FORM = "async def {name}(task, session)"


def load(spec: AgentSpec) -> AgentFunction:
    found = AGENTS.find(spec.reference)
    try:
        function = found.load()
    except ConfigError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name:
            raise ConfigError(f"{error}: install {missing.name.partition('.')[0]}") from missing
        raise
    check_function(function, found.name, spec.options)
    import_the_rest()
    bound: AgentFunction = functools.partial(function, **spec.options)
    return bound


def import_the_rest() -> None:
    """Imports what the SDKs that the agent's file uses import late. A name that a release lacks is passed over."""
    for library, modules in IMPORTED_ON_USE.items():
        for module in modules if library in sys.modules else ():
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def check_unread(spec: AgentSpec) -> None:
    """What can be told without running any of the user's code."""
    found = AGENTS.find(spec.reference)
    where, node = found.definition()
    match node:
        case ast.ClassDef():
            raise _no_function(f"{where}:{node.lineno}", found.name, "a class")
        case ast.FunctionDef(decorator_list=[]):
            raise _no_function(f"{where}:{node.lineno}", found.name, "not async")
        case ast.AsyncFunctionDef(decorator_list=[]):
            _check_signature(f"{where}:{node.lineno}", found.name, _signature(node.args), spec.options)


def check_function(function: Any, name: str, options: Mapping[str, Any]) -> None:
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else name
    if isinstance(function, type):
        raise _no_function(where, name, "a class")
    if not callable(function):
        raise _no_function(where, name, f"of type {type(function).__name__}")
    if inspect.isasyncgenfunction(function):
        raise _no_function(where, name, "a generator, for the yield in it")
    if not any(map(_is_async, (function, inspect.unwrap(function), getattr(function, "__call__", None)))):  # noqa: B004
        raise _no_function(where, name, "not async")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in
        return
    _check_signature(where, name, signature, options)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


def _no_function(where: str, name: str, what: str) -> ConfigError:
    return ConfigError(f"{where}: {name} is {what}, and an agent is an async function: `{_FORM.format(name=name)}`")


def _check_signature(where: str, name: str, signature: Signature, options: Mapping[str, Any]) -> None:
    parameters = list(signature.parameters.values())
    by_place = [one for one in parameters if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    if len(by_place) < 2 and not any(one.kind is Parameter.VAR_POSITIONAL for one in parameters):
        raise ConfigError(f"{where}: {name} must take a task and a session: `{_FORM.format(name=name)}`")
    named = [
        one
        for one in parameters
        if one not in by_place[:2] and one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    known = [one.name for one in named]
    if not any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        for option in options:
            if option not in known:
                hint = did_you_mean(option, known) or f"; it has {', '.join(known) or 'none'}"
                raise ConfigError(f'{where}: {name} has no option "{option}"{hint}')
    for one in named:
        if one.default is Parameter.empty and one.name not in options:
            raise ConfigError(
                f"{where}: {name} needs {one.name}: give it a default, or a value beside the agent's name, "
                f"{{name: …, {one.name}: …}}"
            )


def _signature(args: ast.arguments) -> Signature:
    """As `inspect` would give it, were the function imported."""
    by_place = args.posonlyargs + args.args
    first_default, first_by_name = len(by_place) - len(args.defaults), len(args.posonlyargs)
    parameters = [
        Parameter(
            one.arg,
            Parameter.POSITIONAL_ONLY if place < first_by_name else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if place < first_default else None,
        )
        for place, one in enumerate(by_place)
    ]
    if args.vararg:
        parameters.append(Parameter(args.vararg.arg, Parameter.VAR_POSITIONAL))
    parameters += [
        Parameter(one.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else None)
        for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        parameters.append(Parameter(args.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)
