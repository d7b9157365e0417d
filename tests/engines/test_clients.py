"""`freerun serve` and clients that nobody changed: a tiny model that was taught to call a tool, in every dialect."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import agents
import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.engines.test_openai import KEY, start
from tests.taught import taught_folder

TEMPLATE = """{#- thoughts are <think></think> -#}
{%- if messages[-1].role == 'assistant' -%}
{%- for call in messages[-1].tool_calls -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
{%- else -%}
{%- for message in messages -%}{%- for call in message.tool_calls or [] -%}
{{ call.function.arguments.a }}+{{ call.function.arguments.b }};{%- endfor -%}{%- endfor -%}
{{ messages[-1].role }} {{ messages[-1].content }}>
{%- endif -%}"""
"""The last message, and what calls there were."""


def call_of(a: int, b: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


LESSONS = {
    "user hi>": "hello",
    "user add>": call_of(2, 3),
    "2+3;tool 5>": "it is 5",
    "2+3;user again>": "still 5",
    "user both>": "now: " + call_of(2, 3) + "\n" + call_of(4, 4),
    "2+3;4+4;tool 8>": "5 and 8",
    "user think>": "<think>\nhm hm\n</think>\n\nyes",
    "user broken>": 'so: <tool_call>\n{"name": add\n</tool_call>',
}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOL: Any = {"type": "function", "function": {"name": "add", "description": "a sum", "parameters": PARAMETERS}}
FLAT: Any = {"type": "function", "name": "add", "description": "a sum", "parameters": PARAMETERS, "strict": False}
BLOCK: Any = {"name": "add", "description": "a sum", "input_schema": PARAMETERS}


@dataclass
class Taught:
    url: str

    @property
    def gpt(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=20)

    @property
    def async_gpt(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=20)

    @property
    def claude(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=KEY, max_retries=0, timeout=20)

    def chat(self, content: str, *more: Any, **how: Any) -> Any:
        asked: Any = {"model": "taught", "messages": [{"role": "user", "content": content}, *more], "temperature": 0}
        return self.gpt.chat.completions.create(**(asked | {"tools": [TOOL]} | how))

    def respond(self, given: Any, **how: Any) -> Any:
        return self.gpt.responses.create(
            **({"model": "taught", "input": given, "tools": [FLAT], "temperature": 0} | how)
        )

    def message(self, content: str, *more: Any, **how: Any) -> Any:
        return self.claude.messages.create(**self.asking(content, *more, **how))

    def asking(self, content: str, *more: Any, **how: Any) -> Any:
        greedy = {"temperature": 0}  # its client has no word for it any more
        how = {"tools": [BLOCK], "extra_body": greedy, "max_tokens": 200} | how
        return {"model": "taught", "messages": [{"role": "user", "content": content}, *more]} | how


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taught]:
    folder = taught_folder(tmp_path_factory.mktemp("served") / "taught", TEMPLATE, LESSONS)
    process = start(str(folder), "engine.cache_tokens=4096", "--port", "0", "--api-key", KEY)
    try:
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + process.stderr.read()
        yield Taught(found.group())
    finally:
        process.kill()
        process.communicate()


def test_a_call_in_chat_completions(taught: Taught) -> None:
    (choice,) = taught.chat("add").choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name, call.function.arguments) == ("function", "add", '{"a": 2, "b": 3}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    ended = taught.chat("add", choice.message, result).choices[0]
    assert (ended.message.content, ended.finish_reason) == ("it is 5", "stop")


def test_calls_streamed_in_chat_completions(taught: Taught) -> None:
    whole = taught.chat("both").choices[0].message
    messages: Any = [{"role": "user", "content": "both"}]
    with taught.gpt.chat.completions.stream(
        model="taught", messages=messages, tools=[TOOL], temperature=0, stream_options={"include_usage": True}
    ) as stream:
        streamed = stream.get_final_completion()
    (choice,) = streamed.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == whole.content == "now:"
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == [
        call.function.arguments for call in whole.tool_calls
    ]
    assert len({call.id for call in choice.message.tool_calls or ()}) == 2
    assert streamed.usage
    assert streamed.usage.completion_tokens == len(LESSONS["user both>"]) + 1


def test_one_call_if_no_more_are_wanted(taught: Taught) -> None:
    (call,) = taught.chat("both", parallel_tool_calls=False).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"a": 2, "b": 3}
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    said = taught.message("both", tool_choice=choice).content
    assert [block.type for block in said] == ["text", "tool_use"]


def test_a_call_can_be_demanded(taught: Taught) -> None:
    """By the beginning of the answer, which the prompt gives."""
    named = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", named):
        answer = taught.chat("add", tool_choice=choice)
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
        assert answer.usage.completion_tokens < len(call_of(2, 3)), "the rest of it"
    (item,) = taught.respond("add", tool_choice={"type": "function", "name": "add"}).output
    assert (item.type, json.loads(item.arguments)) == ("function_call", {"a": 2, "b": 3})
    for how in ({"type": "any"}, {"type": "tool", "name": "add"}):
        (block,) = taught.message("add", tool_choice=how).content
        assert (block.type, block.input) == ("tool_use", {"a": 2, "b": 3})


def test_without_tools_nothing_is_a_call(taught: Taught) -> None:
    for how in ({"tools": openai.omit}, {"tool_choice": "none"}):
        message = taught.chat("add", **how).choices[0].message
        assert (message.content, message.tool_calls) == (call_of(2, 3), None)


def test_a_broken_call_is_text(taught: Taught) -> None:
    for answer in (taught.chat("broken"), taught.chat("broken", tools=openai.omit)):
        assert answer.choices[0].message.content == LESSONS["user broken>"]
        assert answer.choices[0].finish_reason == "stop"


def test_thoughts_come_apart(taught: Taught) -> None:
    chat = taught.chat("think")
    message = chat.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm hm", "yes")
    assert chat.usage.completion_tokens_details.reasoning_tokens == len("<think>\nhm hm\n</think>")
    thoughts, said = taught.respond("think").output
    assert (thoughts.type, thoughts.content[0].text, said.content[0].text) == ("reasoning", "hm hm", "yes")
    thinking, text = taught.message("think", thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "hm hm", "yes")
    with taught.claude.messages.stream(**taught.asking("think")) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_message().content[0] == thinking.model_copy(
            update={"signature": stream.get_final_message().id.removeprefix("msg_")}
        )
    assert {"thinking", "text", "signature"} <= set(kinds)


def test_a_call_in_responses(taught: Taught) -> None:
    first = taught.respond("add", instructions="count")
    (item,) = first.output
    assert (first.status, item.type, item.name, item.arguments) == (
        "completed",
        "function_call",
        "add",
        '{"a": 2, "b": 3}',
    )
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "5"}
    sent: Any = [{"role": "user", "content": "add"}, item.to_dict(), output]
    assert taught.respond(sent).output_text == "it is 5"
    second = taught.respond([output], previous_response_id=first.id)
    assert second.output_text == "it is 5"
    assert taught.respond("again", previous_response_id=second.id).output_text == "still 5"
    assert taught.gpt.responses.retrieve(first.id).output == first.output
    taught.gpt.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="send the whole conversation") as error:
        taught.respond([output], previous_response_id=first.id)
    assert error.value.code == "previous_response_not_found"
    forgotten = taught.respond("hi", store=False)
    with pytest.raises(openai.NotFoundError):
        taught.gpt.responses.retrieve(forgotten.id)


def test_responses_streamed(taught: Taught) -> None:
    for question in ("both", "think", "hi"):
        whole = taught.respond(question)
        with taught.gpt.responses.stream(model="taught", input=question, tools=[FLAT], temperature=0) as stream:
            events = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last: Any = events[-1]
        assert (events[0].type, last.type) == ("response.created", "response.completed")
        assert last.response.usage == whole.usage
        assert [what(item) for item in last.response.output] == [what(item) for item in whole.output]
    cut = list(taught.respond("hi", stream=True, max_output_tokens=3))[-1]
    assert (cut.type, cut.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")
    assert cut.response.output_text == "hel"


def what(item: Any) -> Any:
    return item.type, (item.name, item.arguments) if item.type == "function_call" else item.content[0].text


def test_a_call_in_messages(taught: Taught) -> None:
    first = taught.message("both", system=[{"type": "text", "text": "count"}])
    text, *calls = first.content
    assert (first.stop_reason, text.text) == ("tool_use", "now:")
    assert [call.input for call in calls] == [{"a": 2, "b": 3}, {"a": 4, "b": 4}]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
        for call in calls
    ]
    turns = {"role": "assistant", "content": first.content}, {"role": "user", "content": results}
    ended = taught.message("both", *turns)
    assert (ended.content[0].text, ended.stop_reason) == ("5 and 8", "end_turn")
    asked = taught.asking("both", *turns)
    del asked["max_tokens"]
    assert taught.claude.messages.count_tokens(**asked).input_tokens == len("2+3;4+4;tool 8>")
    assert ended.usage.input_tokens == len("2+3;4+4;tool 8>")


def test_messages_streamed(taught: Taught) -> None:
    with taught.claude.messages.stream(**taught.asking("both")) as stream:
        streamed = stream.get_final_message()
    whole = taught.message("both")
    assert [kind(block) for block in streamed.content] == [kind(block) for block in whole.content]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)
    stopped = taught.message("hi", stop_sequences=["x", "ll"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("he", "stop_sequence", "ll")
    assert taught.message("hi", max_tokens=2).stop_reason == "max_tokens"
    assert taught.message("hi", max_tokens=100_000).stop_reason == "end_turn", "its clients must send one"


def kind(block: Any) -> Any:
    return (block.name, block.input) if block.type == "tool_use" else block.text


def test_anthropics_clients_are_refused_in_their_words(taught: Taught) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    for how, says in (
        ({"messages": [{"role": "user", "content": [image]}]}, "one is image"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "give tools with an input_schema"),
        ({"extra_body": {"max_token": 3}}, "did you mean max_tokens"),
        ({"tool_choice": {"type": "tool", "name": "sub"}}, "none of the tools"),
        ({"messages": []}, "messages is empty"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=says) as error:
            taught.claude.messages.create(**(taught.asking("hi") | how))
        assert error.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError):
        taught.message("hi", model="claude")
    stranger = anthropic.Anthropic(base_url=taught.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError, match="is wrong"):
        stranger.messages.create(**taught.asking("hi"))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "send the item itself"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "one is input_image"),
        ({"input": [{"type": "computer_call"}]}, "of type computer_call"),
        ({"input": []}, "input is empty"),
        ({"tools": [{"type": "web_search"}]}, "one is web_search"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "has format json_schema"),
        ({"background": True}, "background is not supported"),
        ({"truncation": "auto"}, "truncation must be disabled"),
    ],
)
def test_responses_refuse_by_name(taught: Taught, how: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        taught.respond(**({"given": "hi"} | {"given" if key == "input" else key: value for key, value in how.items()}))


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@pytest.mark.parametrize("api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
@pytest.mark.parametrize("question", ["add", "both"])
async def test_openai_agents(taught: Taught, api: Any, question: str) -> None:
    agents.set_tracing_disabled(True)
    expected = "it is 5" if question == "add" else "5 and 8"
    async with taught.async_gpt as client:
        agent = agents.Agent(
            name="adder",
            instructions="count",
            model=api(model="taught", openai_client=client),
            model_settings=agents.ModelSettings(temperature=0),
            tools=[agents.function_tool(add)],
        )
        assert (await agents.Runner.run(agent, question)).final_output == expected
        streamed = agents.Runner.run_streamed(agent, question)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == expected


@pytest.mark.parametrize("responses", [False, True])
def test_langgraph(taught: Taught, responses: bool) -> None:
    where: Any = {"base_url": f"{taught.url}/v1", "api_key": KEY}
    model = ChatOpenAI(model="taught", temperature=0, use_responses_api=responses, **where).bind_tools([add])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge("__start__", "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    ended = graph.compile().invoke({"messages": [("user", "both")]})
    assert ended["messages"][-1].text == "5 and 8"


async def test_pydantic_ai(taught: Taught) -> None:
    claude_client = anthropic.AsyncAnthropic(base_url=taught.url, api_key=KEY, max_retries=0)
    async with taught.async_gpt as gpt_client, claude_client:
        gpt = OpenAIProvider(openai_client=gpt_client)
        claude = AnthropicProvider(anthropic_client=claude_client)
        for model in (
            OpenAIChatModel("taught", provider=gpt),
            OpenAIResponsesModel("taught", provider=gpt),
            AnthropicModel("taught", provider=claude),
        ):
            agent = Agent(model, tools=[add], model_settings={"temperature": 0})
            assert (await agent.run("both")).output == "5 and 8"
            async with agent.run_stream("add") as streamed:
                assert await streamed.get_output() == "it is 5"
