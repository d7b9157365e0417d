"""Which of a session's turns a request goes on from.

Clients send the whole conversation with every request, in a form of their own: contents in parts, arguments written
anew, thoughts left out. So messages are compared in a canonical form, and the session's messages are a tree: a path
from its root is a conversation, and a node where the policy spoke has the turns that said so. The deepest such node on
a request's path is where it goes on from. What is not found costs merging, never exactness: the request's prompt is
then encoded from its messages, and is its own context.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from freerun.core.task import Message
from freerun.rollouts.gateway.turns import SampledTurn

Digest = bytes


@dataclass(slots=True)
class Node:
    """A message, after those above it."""

    parent: "Node | None" = None
    children: dict[Digest, "Node"] = field(default_factory=dict)
    turns: list[SampledTurn] = field(default_factory=list)
    """Where the policy said it: usually one. Answers to the same prompt may be the same text, in other tokens."""


@dataclass(slots=True, frozen=True)
class Match:
    """What a request has in common with the session so far."""

    turn: SampledTurn | None
    """The last turn on its path, which it goes on from."""
    at: int
    """Which of its messages that is."""
    known: int
    """How many of its messages, from the first on, the session has seen in this order."""
    policy_spoke_next: bool
    """Whether the policy said something where the request has a message that is not known."""


class History:
    """The messages of one session, under one set of tools."""

    def __init__(self) -> None:
        self._root = Node()

    def match(self, messages: Sequence[Message], digests: Sequence[Digest]) -> Match:
        node, turn, at, known = self._root, None, -1, 0
        for index, digest in enumerate(digests):
            found = node.children.get(digest)
            if found is None:
                break
            node, known = found, index + 1
            if node.turns and (said := _same_turn(node.turns, messages[index])):
                turn, at = said, index
        return Match(turn, at, known, any(child.turns for child in node.children.values()))

    def add(self, digests: Iterable[Digest], turn: SampledTurn) -> None:
        """The conversation up to and with that turn, whose message comes last."""
        node = self._root
        for digest in digests:
            node = node.children.setdefault(digest, Node(node))
        node.turns.append(turn)

    def knows_beginning(self, digest: Digest) -> bool:
        """Whether a conversation of the session begins with that message."""
        return digest in self._root.children


def _same_turn(turns: list[SampledTurn], message: Message) -> SampledTurn | None:
    """The one with the same ids of tool calls, which we made up; else the latest. Thoughts that a client sends back
    must be those that the policy had."""
    thought = str(message.get("reasoning_content") or "").strip()
    same = [turn for turn in turns if not thought or thought == turn.said.reasoning.strip()]
    ids = {call.get("id") for call in message.get("tool_calls", [])}
    named = [turn for turn in same if ids & {call.id for call in turn.said.tool_calls}]
    return next(reversed(named or same), None)


def digest_of(message: Message) -> Digest:
    """Identifies what was said. The ids of calls, thoughts, and the blanks around what the policy said are left out:
    clients lose or change them."""
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    role = message["role"]
    said = content.strip() if role == "assistant" else content
    hashed = blake2b(f"{role}\0{len(said)}\0".encode(), digest_size=16)
    hashed.update(said.encode(errors="surrogatepass"))
    for call in calls:
        hashed.update(_canonical([call["function"]["name"], _object(call["function"]["arguments"])]))
    return hashed.digest()


def digest_of_tools(tools: Sequence[dict[str, Any]], options: dict[str, Any]) -> Digest:
    return blake2b(_canonical([list(tools), options]), digest_size=16).digest()


def _object(arguments: Any) -> Any:
    """What a text of JSON says; where it is none, the text."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
