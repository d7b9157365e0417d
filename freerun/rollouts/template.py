"""Between messages and tokens, for conversations whose sampled turns must stay as they were sampled.

A whole conversation is rendered by the model's chat template and encoded (`whole`). One that goes on from a turn of the
policy's is that turn's own tokens and a `tail`: what the template writes behind it. To find that, the conversation is
rendered with a mark in the turn's place; the tail is what follows the mark, from the end of the turn on.
"""

import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from freerun.core import ConfigError
from freerun.core.task import Message

_MARK = "\u2039what the policy said\u203a"
_WORD = re.compile(r"[a-zA-Z0-9]{1,32}")
_LONG, _KEPT = 512, 128
"""The middle of long texts before the mark is left out: what was said there is rendered only for the template to know
who spoke when, and takes time."""


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer; transformers' fast ones have it."""

    @property
    def chat_template(self) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = ...) -> str: ...

    def apply_chat_template(self, conversation: list[Message], *, tokenize: bool, **more: Any) -> Any: ...


class TemplateRefused(Exception):
    """The chat template does not take these messages."""


@dataclass(slots=True, frozen=True)
class Rendering:
    """What the template is told besides the messages."""

    tools: Sequence[dict[str, Any]]
    options: dict[str, Any]


def template_of(tokenizer: ChatTokenizer) -> "Template":
    """One for each tokenizer: it is tried out when it is made."""
    return _made(cast(Hashable, tokenizer))


@cache
def _made(tokenizer: Hashable) -> "Template":
    return Template(cast(ChatTokenizer, tokenizer))


class Template:
    def __init__(self, tokenizer: ChatTokenizer) -> None:
        """Refuses a model that cannot hold a conversation."""
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise ConfigError(
                "the model has no chat template, and agents talk to it in messages: use a chat model, or add a "
                "chat_template to its tokenizer_config.json"
            )
        self._knows_developer = "developer" in str(tokenizer.chat_template)
        self._end_of_turn = self._found_end_of_turn()
        self._is_local = self._found_local()

    def _found_end_of_turn(self) -> str:
        """What the template writes right behind a turn of the policy's."""
        said: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
        try:
            closed = self._rendered(said, Rendering((), {}), opens=False)
            followed = self._rendered([*said, {"role": "user", "content": "b"}], Rendering((), {}))
        except TemplateRefused as error:
            raise ConfigError(
                f"the model's chat template fails on a plain conversation ({error}): correct it, or use another model"
            ) from None
        if _MARK not in followed:
            raise ConfigError("the model's chat template does not show what an assistant said: use another model")
        after = followed.rpartition(_MARK)[2]
        ended = closed.rpartition(_MARK)[2] if _MARK in closed else ""
        return ended.strip() if ended.strip() and ended.strip() in after else after[:1]

    def _found_local(self) -> bool:
        """Whether what follows a turn does not depend on how long the conversation was before it: seen by trying. Then
        only its beginning need be rendered, whatever its length."""
        answer: Message = {"role": "assistant", "content": "c"}
        call = {"id": "probecall", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calling, result = answer | {"tool_calls": [call]}, {"role": "tool", "content": "d", "tool_call_id": "probecall"}
        question: Message = {"role": "user", "content": "b"}
        earlier: list[Message] = [question, calling, result, answer, question, answer, question]
        how = Rendering([{"type": "function", "function": {"name": "f", "description": "f", "parameters": {}}}], {})
        for system in ([], [{"role": "system", "content": "a"}]):
            long, short = system + earlier, _beginning(system + earlier)
            for turn, after in ((answer, [question]), (calling, [result]), (calling, [result, result])):
                if self._behind_or_none(long, turn, after, how) != self._behind_or_none(short, turn, after, how):
                    return False
        return True

    def _behind_or_none(self, before: list[Message], turn: Message, after: list[Message], how: Rendering) -> str | None:
        try:
            return self._behind(before, turn, after, how)
        except TemplateRefused:
            return None

    def whole(self, messages: list[Message], how: Rendering) -> str:
        """A conversation in which the policy is to speak next. Raises TemplateRefused."""
        return self._rendered(messages, how)

    def tail(self, messages: list[Message], at: int, how: Rendering) -> str:
        """What comes behind the turn that is `messages[at]`, from its end up to where the policy speaks next. Raises
        TemplateRefused."""
        before = _beginning(messages[:at]) if self._is_local else [_shortened(message) for message in messages[:at]]
        return self._behind(before, messages[at], messages[at + 1 :], how)

    def encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _behind(self, before: list[Message], turn: Message, after: list[Message], how: Rendering) -> str:
        """Most templates take any text for a turn that called tools, too. For those that want to see the calls, they
        are in it, and what is written of them is passed over."""
        marked: Message = {"role": "assistant", "content": _MARK}
        try:
            _, found, behind = self._rendered([*before, marked, *after], how).rpartition(_MARK)
            if found and _shows(behind, after):
                return behind
        except TemplateRefused:
            if not turn.get("tool_calls"):
                raise
        calls = _shortened(turn).get("tool_calls", [])
        rendered = self._rendered([*before, marked | {"tool_calls": calls}, *after], how)
        _, found, behind = rendered.rpartition(_MARK)
        at = behind.find(self._end_of_turn)
        has_calls = all(call["function"]["name"] in behind[: max(at, 0)] for call in calls)
        if not (found and calls and has_calls and _shows(behind[at:], after)):
            raise TemplateRefused("it does not show where the assistant's turn ends")
        return behind[at:]

    def _rendered(self, messages: list[Message], how: Rendering, opens: bool = True) -> str:
        """Most templates want the arguments of calls as objects, some as text."""
        try:
            return self._applied([self._prepared(message) for message in messages], how, opens)
        except TemplateRefused:
            if not any(message.get("tool_calls") for message in messages):
                raise
        return self._applied(messages, how, opens)

    def _applied(self, messages: list[Message], how: Rendering, opens: bool) -> str:
        tools = list(how.tools) or None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=opens, **how.options
                )
            )
        except Exception as error:  # the model author's program, run on an agent's messages
            raise TemplateRefused(str(error)) from None

    def _prepared(self, message: Message) -> Message:
        """As templates expect it: arguments of calls as objects."""
        if message["role"] == "developer" and not self._knows_developer:
            message = message | {"role": "system"}
        if calls := message.get("tool_calls"):
            message = message | {"tool_calls": [_with_object(call) for call in calls]}
        return message


def _shows(behind: str, after: list[Message]) -> bool:
    """Whether what was said after the turn is there: some templates leave out a tool's result that they do not expect.
    They may write it as JSON, or shorten it, so some word of it is looked for."""
    said = (str(message.get("content") or "") for message in after)
    return all(any(word in behind for word in words) for text in said if (words := _words(text)))


def _words(text: str) -> list[str]:
    """Those that a long text begins and ends with."""
    return _WORD.findall(text[:_LONG]) + _WORD.findall(text[-_LONG:])


def _with_object(call: Message) -> Message:
    function = call["function"]
    try:
        return call | {"function": function | {"arguments": json.loads(function["arguments"])}}
    except (TypeError, ValueError):
        return call


def _beginning(messages: list[Message]) -> list[Message]:
    """A system's message and the first user's: enough for a template to begin."""
    opening = [message for message in messages[:1] if message["role"] in ("system", "developer")]
    asked = next((message for message in messages if message["role"] == "user"), None)
    return [_shortened(message) for message in [*opening, *([asked] if asked else [])]]


def _shortened(message: Message) -> Message:
    """The same speaker, with less of what was said."""
    content, calls = message.get("content") or "", message.get("tool_calls")
    if len(content) > _LONG:
        message = message | {"content": content[:_KEPT] + content[-_KEPT:]}
    if calls:
        message = message | {"tool_calls": [c | {"function": c["function"] | {"arguments": "{}"}} for c in calls]}
    return message
