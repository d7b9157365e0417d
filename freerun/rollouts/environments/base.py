"""What all environments share: the session as they see it, the task's seed and the messages that the data gave.

An environment is a module with two functions. `run(task, session, name, options, max_turns)` plays one member of a
group in an agent's process, and returns its reward, or None for the judge to decide. `check(name, options, max_turns)`
refuses, before the run, what can be known to be wrong, in one line.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

from freerun.core import ConfigError, Task
from freerun.core.task import Message
from freerun.core.text import did_you_mean


class Session(Protocol):
    """What an environment uses of the session that it is given."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    @property
    def model(self) -> str: ...

    async def chat(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **more: Any
    ) -> Message: ...

    def reward(self, reward: float, response: str | None = None) -> None: ...


def seed_of(task: Task) -> int:
    """The data's; else one that depends on the task alone. It is the same for all members of a group, who so meet the
    same game."""
    seed = task.extra.get("seed")
    if isinstance(seed, int):
        return seed
    return int.from_bytes(blake2b(json.dumps([task.id, seed]).encode(), digest_size=4).digest())


def opening(task: Task) -> list[Message]:
    """The messages that the data gave, such as a system message; the environment's own come after them."""
    if task.messages:
        return list(task.messages)
    text = str(task.extra.get("prompt", task.prompt))
    return [{"role": "user", "content": text}] if text else []


def text_of(message: Message) -> str:
    """What the policy said, its thoughts aside."""
    return message.get("content") or ""


def refuse_unknown(called: str, options: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for option in options:
        if option not in known:
            raise ConfigError(f'{called} has no option "{option}"{did_you_mean(option, known) or _listed(known)}')


def chosen(called: str, options: Mapping[str, Any], option: str, values: tuple[str, ...]) -> str:
    """The option's value, which is one of these; the first is the default."""
    value = options.get(option, values[0])
    if value not in values:
        raise ConfigError(
            f'{called}: {option} "{value}" is none of {", ".join(values)}{did_you_mean(str(value), values)}'
        )
    return str(value)


def _listed(known: list[str]) -> str:
    return f"; it has {', '.join(known) or 'none'}"
