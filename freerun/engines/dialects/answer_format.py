"""What marks a model puts around its thoughts and its calls: read from its chat template, once, by rendering a call."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from freerun.core.task import Message
from freerun.engines.dialects.base import Json, NamedTool, ToolChoice
from freerun.engines.dialects.call_formats import CALL_FORMATS, TAGGED_JSON, CallFormat, tagged

_NAME, _KEY, _VALUE, _QUESTION = "probe_name", "probe_key", "probe_value", "probe question"
_ARGUMENTS = f'{{"{_KEY}": "{_VALUE}"}}'
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "a tool",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "a word"}}},
    },
}
_PLAIN = f'<tool_call>\n{{"name": "{_NAME}", "arguments": {_ARGUMENTS}}}\n</tool_call>'
"""What is looked for where the template says nothing of calls."""
_MARK = r"([<\[][^<>\[\]\s]+[>\]])"
_OWN_MARKS = re.compile(rf'{_MARK}\s*\{{"name": "{_NAME}", "\w+": .*\}}\s*{_MARK}')
_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
)


@dataclass(slots=True, frozen=True)
class Thinking:
    open: str
    close: str

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt that ends so has begun the model's thoughts already."""
        return prompt.rstrip().endswith(self.open)


@dataclass(frozen=True)
class AnswerFormat:
    calls: CallFormat = TAGGED_JSON
    thinking: Thinking | None = None
    sample: str = _PLAIN
    """A call of `probe_name`, as the model writes it, from its opening mark on."""
    arguments_as_text: bool = False
    """Whether the chat template wants the arguments of calls as text; most want objects."""
    knows_tools: bool = False
    """Whether the chat template has words for calls at all."""

    @classmethod
    def of(cls, tokenizer: Any) -> "AnswerFormat":
        """`tokenizer`: one of transformers'. Without a chat template: the plain marks, and no thoughts."""
        template = str(tokenizer.chat_template or "")
        thinking = next((Thinking(*marks) for marks in _THOUGHTS if all(mark in template for mark in marks)), None)
        plain = _render(tokenizer, {})
        for as_text in (False, True):
            call = _call(_ARGUMENTS if as_text else {_KEY: _VALUE})
            for calls, sample in _readings(_render(tokenizer, {"tool_calls": [call]}), plain):
                if _reads(calls, sample):
                    return cls(calls, thinking, sample, as_text, knows_tools=True)
        return cls(thinking=thinking)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Texts that must not be lost when tokens become text, whether or not they are special tokens."""
        thoughts = (self.thinking.open, self.thinking.close) if self.thinking else ()
        return (*thoughts, self.sample)

    def opening(self, choice: ToolChoice, is_thinking: bool = False) -> str:
        """What an answer must begin with to become a call: this goes to the end of the prompt. For a tool that is
        named, all up to its arguments. `is_thinking`: the prompt has begun the model's thoughts, which this ends."""
        if choice in ("auto", "none"):
            return ""
        if isinstance(choice, NamedTool):
            key, begin = self.sample.index(_KEY), self.calls.before_arguments
            text = self.sample[: self.sample.rindex(begin, 0, key) if begin else key]
            text = text.replace(_NAME, choice.name).rstrip(" ")
        else:
            text = self.sample[: self.sample.index(_NAME)].rstrip('" ')
        return f"\n{self.thinking.close}\n\n{text}" if is_thinking and self.thinking else text


def _call(arguments: Any) -> Json:
    return {"id": "probecall", "type": "function", "function": {"name": _NAME, "arguments": arguments}}


def _render(tokenizer: Any, said: Message) -> str:
    """What the template makes of an answer; nothing, if it refuses."""
    answer: Message = {"role": "assistant", "content": ""} | said
    try:
        text: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": _QUESTION}, answer], tools=[_TOOL], tokenize=False
        )
    except Exception:  # a template is the model author's program
        return ""
    return text.rpartition(_QUESTION)[2]


def _readings(text: str, plain: str) -> Iterator[tuple[CallFormat, str]]:
    """Every way to read that text as a call: the format, and the call. Marks that an answer without a call has too
    (`plain`) are the template's, not the call's."""
    if _NAME not in text:
        return
    for calls in CALL_FORMATS:
        if calls.open in text:
            yield calls, _call_in(text, text.index(calls.open), calls.close)
    own = _OWN_MARKS.search(text)
    if own and own[1] not in plain and own[2] not in plain:
        yield tagged(own[1], own[2]), own[0]
    for calls in CALL_FORMATS:
        if calls.is_bare and "{" in text:
            yield calls, _call_in(text, text.index("{"), calls.close)


def _call_in(text: str, start: int, close: str) -> str:
    end = text.find(close, start) if close else -1
    if end >= 0:
        return text[start : end + len(close)]
    return text[start : max(text.rfind("}"), text.rfind("]")) + 1]


def _reads(calls: CallFormat, sample: str) -> bool:
    body = calls.body(sample)
    read = calls.read(body.removesuffix(calls.close), {})
    return read is not None and [(name, arguments.replace(" ", "")) for name, arguments in read] == [
        (_NAME, _ARGUMENTS.replace(" ", ""))
    ]


def hidden_tokens(tokenizer: Any, format: AnswerFormat) -> frozenset[int]:
    """Special tokens that nobody is shown: all but the marks."""
    special = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return frozenset(token for token, text in special.items() if not _is_in(text, format.marks))


def _is_in(text: str, marks: Iterable[str]) -> bool:
    return any(text in mark for mark in marks)
