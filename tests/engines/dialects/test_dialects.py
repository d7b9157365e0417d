"""Three dialects, one meaning: what they read, and that what they write is read back as it was said."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import FinishReason
from freerun.engines.dialects.base import ChatRequest, Dialect, NamedTool, Said, ToolCall, Usage
from freerun.engines.dialects.chat import ChatDialect
from freerun.engines.dialects.conversation import for_template
from freerun.engines.dialects.messages import MessagesDialect
from freerun.engines.dialects.response_store import ResponseStore
from freerun.engines.dialects.responses import ResponsesDialect, ResponsesWriter
from freerun.engines.refused import Refused

ARGUMENTS = '{"b":  1.0, "a": "\\u00e9é"}'
"""Nobody would write it so."""
CALLS = [{"id": id, "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}} for id in ("c1", "c2")]
MEANT: Any = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is it?"},
    {"role": "assistant", "content": "let me see", "reasoning_content": "hm", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
    {"role": "tool", "tool_call_id": "c2", "content": "six"},
    {"role": "user", "content": "and now?"},
]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "it", "parameters": PARAMETERS}}
CHAT: Any = {
    "messages": [
        MEANT[0],
        {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": " it?"}]},
        MEANT[2] | {"refusal": None, "function_call": None},
        *MEANT[3:],
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 7,
}
RESPONSES: Any = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "what is it?"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ARGUMENTS},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "six"}]},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [{"type": "function"} | TOOL["function"]],  # type: ignore[operator]
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": False,
    "max_output_tokens": 7,
}
MESSAGES: Any = {
    "system": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief", "cache_control": {}}],
    "messages": [
        {"role": "user", "content": "what is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": "RAW"},
                {"type": "tool_use", "id": "c2", "name": "f", "input": "RAW"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "5"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "six"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ],
    "tools": [{"name": "f", "description": "it", "input_schema": PARAMETERS}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "max_tokens": 7,
}
DIALECTS: list[tuple[Dialect, Any]] = [
    (ChatDialect(), CHAT),
    (ResponsesDialect(), RESPONSES),
    (MessagesDialect(), MESSAGES),
]


def read(dialect: Dialect, body: Any) -> ChatRequest:
    return dialect.read(json.dumps(body).replace('"RAW"', ARGUMENTS).encode())


@pytest.mark.parametrize(("dialect", "body"), DIALECTS)
def test_all_mean_the_same(dialect: Dialect, body: Any) -> None:
    request = read(dialect, body)
    assert request.messages == MEANT, "arguments as they were sent, too"
    assert request.tools == request.offered_tools == [TOOL]
    assert (request.tool_choice, request.parallel_tool_calls, request.max_tokens) == (NamedTool("f"), False, 7)


def test_templates_get_arguments_as_objects_or_text() -> None:
    objects = for_template(MEANT)[2]["tool_calls"]
    assert [call["function"]["arguments"] for call in objects] == [{"b": 1.0, "a": "éé"}] * 2
    assert for_template(MEANT, arguments_as_text=True) == MEANT
    broken = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
    assert for_template(broken) == broken


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
    ],
)
def test_tool_choices(given: Any, meant: str) -> None:
    for dialect, body in DIALECTS[:2] if isinstance(given, str) else DIALECTS[2:]:
        request = read(dialect, body | {"tool_choice": given})
        assert request.tool_choice == meant
        assert request.offered_tools == ([] if meant == "none" else [TOOL])


@pytest.mark.parametrize(("dialect", "body"), DIALECTS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice|expected"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice must"),
        ({"tools": [{"type": "sometimes"}]}, "sometimes"),
        ({"tools": [{}]}, "name|type"),
        ({"temperature": -1}, "temperature must"),
        ({"frob": 1}, "unknown parameter frob"),
        ({"messages": [3], "input": [3]}, "object|messages"),
        ({"messages": [{"role": "user", "content": 3}], "input": [{"role": "user", "content": 3}]}, "content is text"),
        ({"messages": [{"content": "x"}], "input": [{"content": "x"}]}, "role"),
    ],
)
def test_nonsense_is_one_line(dialect: Dialect, body: Any, change: Any, says: str) -> None:
    names = {"messages", "input"} - body.keys()
    with pytest.raises(Refused, match=f"(?i){says}") as error:
        read(dialect, body | {key: value for key, value in change.items() if key not in names})
    assert "\n" not in str(error.value)


text = st.text(alphabet="aé \n<{", max_size=6)
objects = st.dictionaries(st.text(max_size=3), st.integers() | text, max_size=2)
answers = st.builds(
    Said,
    reasoning=text,
    content=text,
    tool_calls=st.lists(st.builds(ToolCall, st.text(min_size=1), text, objects.map(json.dumps)), max_size=2),
    finish=st.just(FinishReason.STOP),
)


@given(answers)
def test_what_is_written_is_read_back(said: Said) -> None:
    """Sent back as a client does, an answer is the message that it was."""
    for dialect, body in DIALECTS:
        request = read(dialect, body)
        reply = json.loads(msgspec.json.encode(dialect.writer(request, "id", "model", 0).whole([said], Usage())))
        if "choices" in reply:
            again = body | {"messages": [reply["choices"][0]["message"]]}
        elif "output" in reply:
            again = body | {"input": reply["output"]}
        else:
            again = body | {"messages": [{"role": "assistant", "content": reply["content"]}]}
        assert told(read(dialect, again).messages[-1]) == told(said.message())


def told(message: Any) -> Any:
    """Arguments are equal if they are as JSON: a client may write them anew."""
    functions = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
    calls = [(id, function["name"], json.loads(function["arguments"])) for id, function in functions]
    return message["role"], message["content"], message.get("reasoning_content", ""), calls


@given(st.lists(answers, min_size=1, max_size=3))
def test_streams_say_what_the_whole_says(pieces: list[Said]) -> None:
    """Responses: what the last event has is what a reply that came whole has, but for the order of text and calls."""
    request = read(ResponsesDialect(), RESPONSES)
    at_once, writer = Said(), ResponsesDialect().writer(request, "id", "model", 0)
    events = writer.opening()
    for number, piece in enumerate(pieces):
        piece.finish = FinishReason.STOP if number == len(pieces) - 1 else None
        piece.reasoning = piece.reasoning if number == 0 else ""
        at_once.add(piece)
        events += writer.piece(piece)
    events += writer.closing(Usage())
    last = json.loads(events.decode().split("data: ")[-1])["response"]
    whole = ResponsesDialect().writer(request, "id", "model", 0).whole([at_once], Usage())
    assert [texts(last, kind) for kind in ("reasoning", "message")] == [
        texts(whole, kind) for kind in ("reasoning", "message")
    ]
    assert told(read(ResponsesDialect(), RESPONSES | {"input": last["output"]}).messages[-1]) == told(at_once.message())


def texts(reply: Any, kind: str) -> str:
    return "".join(item["content"][0]["text"] for item in reply["output"] if item["type"] == kind)


def test_responses_are_kept_until_there_are_too_many() -> None:
    dialect, store = ResponsesDialect(), ResponseStore(most=2)

    def given_one(id: str, **more: Any) -> None:
        request = dialect.read(json.dumps({"input": f"to {id}", "instructions": "be brief"} | more).encode())
        store.resolve(request)
        writer = dialect.writer(request, id, "model", 0)
        said = Said(content=f"said {id}", finish=FinishReason.STOP)
        writer.whole([said], Usage())
        assert isinstance(writer, ResponsesWriter)
        store.keep(request, said, writer.reply)

    given_one("1")
    given_one("2", previous_response_id="resp_1")
    assert [m["content"] for m in store.get("resp_2").messages] == ["to 1", "said 1", "to 2", "said 2"]
    given_one("3", previous_response_id="resp_2")
    with pytest.raises(Refused, match="no response 'resp_1'"):
        store.get("resp_1")
    given_one("4", store=False)
    with pytest.raises(Refused, match="no response 'resp_4'"):
        given_one("5", previous_response_id="resp_4")
    store.delete("resp_3")
    small = ResponseStore(most_characters=10)
    request = dialect.read(b'{"input": "a text that is too long"}')
    small.keep(request, Said(), {"id": "x"})
    with pytest.raises(Refused):
        small.get("x")
