"""Answers taken apart: however they are cut into pieces, the same; and what is no call stays text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from freerun.core import FinishReason
from freerun.engines.dialects.answer_format import AnswerFormat, Thinking
from freerun.engines.dialects.answers import AnswerParser, AnswerReading
from freerun.engines.dialects.base import ChatRequest, NamedTool, Said
from freerun.engines.dialects.call_formats import CALL_FORMATS, TAGGED_JSON
from freerun.engines.extras import SamplingFields
from freerun.models.tiny import write_tokenizer
from freerun.models.tokenizer import load_tokenizer

PROPERTIES = {"a": {"type": "integer"}, "text": {"type": "string"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}}
THINKING = Thinking("<think>", "</think>")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

WRITTEN = {
    "tagged": '<tool_call>{"name": "f", "arguments": {"a": 1, "text": "x y"}}</tool_call>',
    "functions": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=text>\nx y\n</parameter>\n"
    "</function>\n</tool_call>",
    "keys": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n"
    "<arg_value>x y</arg_value>\n</tool_call>",
    "phi": '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "text": "x y"}}]<|/tool_call|>',
    "lfm": "<|tool_call_start|>[f(a=1, text='x y')]<|tool_call_end|>",
    "gemma": '<|tool_call>call:f{a:1,text:<|"|>x y<|"|>}<tool_call|>',
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1, "text": "x y"}}]'
    "<|END_ACTION|>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"a": 1, "text": "x y"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek 3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1, "text": "x y"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1, "text": '
    '"x y"}<|tool_call_end|><|tool_calls_section_end|>',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1, "text": "x y"}, "id": "abcdefghi"}]',
    "mistral 3": '[TOOL_CALLS]f[ARGS]{"a": 1, "text": "x y"}',
    "llama": '{"name": "f", "parameters": {"a": 1, "text": "x y"}}',
    "llama with a tag": '<|python_tag|>{"name": "f", "parameters": {"a": 1, "text": "x y"}}',
}
"""What models write: `f(a=1, text="x y")`."""


def whole(text: str, format: AnswerFormat | None = None, tools: Any = (TOOL,), **more: Any) -> Said:
    return AnswerParser(format or AnswerFormat(), tools, "call{}".format, **more).add(text, FinishReason.STOP)


def calls(said: Said) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in said.tool_calls]


@pytest.mark.parametrize("model", WRITTEN)
def test_what_models_write(model: str) -> None:
    read = []
    for format in CALL_FORMATS:
        said = whole(WRITTEN[model], AnswerFormat(format))
        if said.tool_calls:
            assert calls(said) == [("f", {"a": 1, "text": "x y"})]
            assert not said.content
            read.append(format)
        else:
            assert said.content == WRITTEN[model]
    assert len(read) == 1


PIECES = [
    *WRITTEN.values(),
    *(mark for format in CALL_FORMATS for mark in (format.open, format.close)),
    *("<think>", "</think>", " ", "\n", "x", "<", "{", '"', '{"name": "f", "arguments": {"text": "</tool_call>"}}'),
]


@given(
    st.sampled_from(CALL_FORMATS),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.lists(st.integers(1, 9), max_size=80),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (TOOL,)]),
)
@example(TAGGED_JSON, f" <think>\n hm </think> \n{CALL}\n{CALL} \n", [1] * 80, False, False, (TOOL,))
def test_pieces_say_what_the_whole_says(
    calls: Any, text: str, cuts: list[int], thinks: bool, only_one: bool, tools: Any
) -> None:
    how: Any = {"is_thinking": thinks, "only_one_call": only_one}
    format = AnswerFormat(calls, THINKING)
    parser = AnswerParser(format, tools, "call{}".format, **how)
    said, rest = Said(), text
    for cut in cuts:
        said.add(parser.add(rest[:cut]))
        rest = rest[cut:]
    said.add(parser.add(rest, FinishReason.STOP))
    at_once = whole(text, format, tools, **how)
    for field in ("reasoning", "content", "tool_calls", "finish"):
        assert getattr(said, field) == getattr(at_once, field)


@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
def test_nothing_is_lost_but_space_marks_and_calls(text: str) -> None:
    """Without tools and thoughts, nothing at all."""
    assert whole(text, tools=()).content == text
    said = whole(text)
    if not said.tool_calls:
        assert said.content == text


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "called"),
    [
        ("just text \n", "", "just text \n", 0),
        (f"a \n{CALL}\n{CALL}\n", "", "a", 2),
        (f"{CALL} and then", "", "and then", 1),
        ("<think>\nhm\n</think>\n\nyes", "hm", "yes", 0),
        (f"<think>hm {CALL}</think>{CALL}", f"hm {CALL}", "", 1),
        ("<think>hm, and the end", "hm, and the end", "", 0),
        ("yes <think>no</think>", "", "yes <think>no</think>", 0),
        ('<tool_call>{"name": "f"</tool_call>', "", '<tool_call>{"name": "f"</tool_call>', 0),
        (f'<tool_call>{{"name": }}</tool_call>{CALL}', "", '<tool_call>{"name": }</tool_call>', 1),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "", None, 0),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "", None, 0),
        ('<tool_call>{"arguments": {}}</tool_call>', "", None, 0),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", "", 1),
        ('<tool_call>{"name": "f", "arguments": {"text": "a</tool_call>b"}}</tool_call>', "", "", 1),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "", 1),
        ("<tool_call>" * 3, "", "<tool_call>" * 3, 0),
        ("[" * 100_000, "", "[" * 100_000, 0),
        ("<tool_call>" + "[" * 100_000, "", "<tool_call>" + "[" * 100_000, 0),
    ],
)
def test_the_parts_of_an_answer(text: str, reasoning: str, content: str | None, called: int) -> None:
    said = whole(text, AnswerFormat(thinking=THINKING))
    assert (said.reasoning, said.content) == (reasoning, text if content is None else content)
    assert [call.id for call in said.tool_calls] == [f"call{number}" for number in range(called)]


@pytest.mark.parametrize(
    "text", ["[f(**{'a': 1})]", "[f(1)]", "[f(a=1e999)]", "[f(a={1})]", "[f(a=g())]", "[f(", "f", "[]"]
)
def test_what_is_no_call_in_python(text: str) -> None:
    marked = f"<|tool_call_start|>{text}<|tool_call_end|>"
    format = next(format for format in CALL_FORMATS if format.open == "<|tool_call_start|>")
    assert whole(marked, AnswerFormat(format)).content == marked


def test_arguments_are_the_models_own_words() -> None:
    (call,) = whole('<tool_call>{"name": "f", "arguments": { "a":1,  "text": "\\u00e9é" }}</tool_call>').tool_calls
    assert call.arguments == '{ "a":1,  "text": "\\u00e9é" }'


def test_the_prompt_may_have_begun_the_answer() -> None:
    said = whole("hm</think>yes", AnswerFormat(thinking=THINKING), is_thinking=True)
    assert (said.reasoning, said.content) == ("hm", "yes")
    format = AnswerFormat(thinking=THINKING)
    for choice, rest in (("required", ' "f", "arguments": {"a": 1}}\n</tool_call>'), (NamedTool("f"), ' {"a": 1}}')):
        for is_thinking in (False, True):
            begun = format.opening(choice, is_thinking)  # type: ignore[arg-type]
            said = whole(rest, format, is_thinking=is_thinking, begun=begun)
            assert (calls(said), said.reasoning, said.content) == ([("f", {"a": 1})], "", "")


@pytest.mark.parametrize(
    ("rendered", "before_name", "before_arguments"),
    [
        ('<tool_call>{"name": "NAME", "arguments": ARGS}</tool_call>', '<tool_call>{"name":', ' "g", "arguments":'),
        ('<call> {"name": "NAME", "arguments": ARGS} </call>', '<call> {"name":', ' "g", "arguments":'),
        ('{"name": "NAME", "parameters": ARGS}<|eot_id|>', '{"name":', ' "g", "parameters":'),
        ('[TOOL_CALLS][{"name": "NAME", "arguments": ARGS}]</s>', '[TOOL_CALLS][{"name":', ' "g", "arguments":'),
        ("[TOOL_CALLS]NAME[ARGS]ARGS</s>", "[TOOL_CALLS]", "g[ARGS]"),
    ],
)
def test_templates_tell_how_calls_are_written(
    tmp_path: Path, rendered: str, before_name: str, before_arguments: str
) -> None:
    for name, value in (("NAME", "name"), (r"(?<!\[)ARGS", "arguments | tojson")):
        rendered = re.sub(name, f"{{{{ call.function.{value} }}}}", rendered)
    template = "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}" + rendered + "{% endfor %}"
    format = AnswerReading(tokenizer(tmp_path, template + "{% endfor %}")).format
    assert format.knows_tools
    assert format.thinking is None
    assert format.opening("required") == before_name
    assert format.opening(NamedTool("g")) == before_name + before_arguments
    assert format.opening("auto") == ""


def test_templates_without_words_for_calls_have_the_plain_ones(tmp_path: Path) -> None:
    for template in (None, "{{ messages[0].content }}", "{{ 1 // 0 }}"):
        format = AnswerReading(tokenizer(tmp_path, template)).format
        assert (format.calls, format.knows_tools) == (TAGGED_JSON, False)


def tokenizer(folder: Path, template: str | None, special: tuple[str, ...] = ()) -> Any:
    """It has characters, and tokens that are special."""
    characters = [*special, *map(chr, range(32, 127)), "\n"]
    write_tokenizer(folder, {token: number for number, token in enumerate(["<pad>", "<eos>", *characters])})
    loaded = load_tokenizer(folder)
    loaded.chat_template = template
    loaded.add_special_tokens({"additional_special_tokens": list(special)})
    return loaded


def test_marks_that_are_special_tokens_are_seen_and_others_are_not(tmp_path: Path) -> None:
    template = (
        "{# [THINK] [/THINK] #}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
        '[TOOL_CALLS][{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}]'
        "{% endfor %}{% endfor %}"
    )
    loaded = tokenizer(tmp_path, template, ("[TOOL_CALLS]", "[THINK]", "[/THINK]", "[OTHER]"))
    reading = AnswerReading(loaded)
    text = '[THINK]hm[/THINK][OTHER]so[TOOL_CALLS][{"name": "f", "arguments": {}}]<eos>'
    tokens = loaded.encode(text, add_special_tokens=False)
    request = ChatRequest(SamplingFields(), [], tools=[TOOL])
    ends = frozenset({loaded.eos_token_id})
    said = reading.reader(request, str, ends).add(tokens, finish=FinishReason.STOP)
    assert (said.reasoning, said.content, calls(said)) == ("hm", "so", [("f", {})])
    assert reading.reasoning_tokens(said) == 4
    shown = reading.reader(request, str, ends, shows_special=True).add(tokens, finish=FinishReason.STOP)
    assert shown.content == "[OTHER]so"
