"""The built-in agent with tools: MCP servers that run, and functions."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from freerun.core import ConfigError, EngineError, Task
from freerun.rollouts import tools as agent
from freerun.rollouts.functions import function_tool
from tests.rollouts.environments.policy import Message, ScriptedPolicy, call, played

TASK = Task("t", "What is 2 + 3?", [], "5")

SERVER = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("sums")
seen = []

@server.tool()
def add(a: int, b: int) -> str:
    "The sum of two numbers."
    return str(a + b)

@server.tool()
def fail() -> str:
    raise RuntimeError("the tool is out of order")

@server.tool()
def remember(what: str) -> str:
    seen.append(what)
    return ",".join(seen)

@server.tool()
def die() -> str:
    os._exit(3)

server.run(transport="stdio")
"""

FUNCTIONS = '''
import threading

both = threading.Barrier(2, timeout=20)

def add(a: int, b: int = 1) -> int:
    """The sum of two numbers.

    Args:
        a: The first one.
        b (int): The other.
    """
    return a + b

def meet() -> str:
    """Return when two calls run at the same time."""
    both.wait()
    return "met"

async def fetch(city: str):
    return {"city": city}

def broken() -> str:
    raise KeyError("nothing")

def starred(*args: int) -> None: ...
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pytest.importorskip("mcp", reason="needs mcp: make install")
    file = tmp_path_factory.mktemp("mcp") / "server.py"
    file.write_text(SERVER)
    return [sys.executable, str(file)]


@pytest.fixture
def functions(tmp_path: Path) -> str:
    file = tmp_path / "own_tools.py"
    file.write_text(FUNCTIONS)
    return str(file)


def converse(*turns: Message | str, tools: list[dict[str, Any]], max_turns: int = 8) -> tuple[Any, ScriptedPolicy]:
    """The policy's turns, in order."""
    left = list(turns)
    return played(lambda _: left.pop(0), lambda session: agent.run(TASK, session, tools=tools, max_turns=max_turns))


def calling(*calls: Message) -> Message:
    return {"content": None, "tool_calls": list(calls)}


def results(policy: ScriptedPolicy) -> list[str]:
    return [m["content"] for m in policy.requests[-1]["messages"] if m["role"] == "tool"]


def test_a_servers_tools_are_called_and_what_they_complain_about_is_told(server: list[str]) -> None:
    reward, policy = converse(
        calling(call("add", '{"a": 2, "b": 3}', "call_a"), call("fail", "{}", "call_b")),
        calling(call("add", '{"a": 2', "call_c"), call("multiply", "{}", "call_d"), call("add", "[]", "call_e")),
        calling(call("add", '{"a": "two", "b": 3}', "call_f"), call("remember", '{"what": "x"}', "call_g")),
        "5",
        tools=[{"mcp": server}],
    )
    assert reward is None, "the judge decides"
    told = results(policy)
    assert told[0] == "5"
    assert "out of order" in told[1]
    assert told[2].startswith("Error: the arguments are not valid JSON")
    assert told[3] == 'Error: there is no tool "multiply"; there is add, fail, remember, die'
    assert told[4] == "Error: the arguments must be a JSON object"
    assert "a" in told[5]
    assert told[6] == "x"
    assert policy.requests[-1]["messages"][2]["tool_call_id"] == "call_a"
    first = policy.requests[0]
    assert first["messages"] == [{"role": "user", "content": "What is 2 + 3?"}]
    assert first["tools"][0]["function"]["name"] == "add"
    assert first["tools"][0]["function"]["description"] == "The sum of two numbers."
    assert set(first["tools"][0]["function"]["parameters"]["properties"]) == {"a", "b"}


def test_a_server_that_dies_fails_the_session_and_the_next_session_has_a_new_one(server: list[str]) -> None:
    with pytest.raises(EngineError, match=r"the MCP server .* ended in the middle of a session"):
        converse(calling(call("die", "{}")), "5", tools=[{"mcp": server}])
    _, policy = converse(calling(call("remember", '{"what": "y"}')), "5", tools=[{"mcp": server}])
    assert results(policy) == ["y"]


def test_functions_are_tools(functions: str) -> None:
    tools = [{"function": f"{functions}:{name}"} for name in ("add", "meet", "fetch", "broken")]
    _, policy = converse(
        calling(call("add", '{"a": 2}', "1"), call("fetch", '{"city": "Bern"}', "2"), call("broken", "", "3")),
        calling(call("add", '{"a": "x"}', "1"), call("add", '{"a": 1, "c": 1}', "2")),
        "3",
        tools=tools,
    )
    told = results(policy)
    assert told[:3] == ["3", '{"city": "Bern"}', "Error: KeyError: 'nothing'"]
    assert told[3].startswith("Error: a: Input should be a valid integer")
    assert told[4].startswith("Error: c: Extra inputs")


def test_calls_of_one_answer_run_at_the_same_time(functions: str) -> None:
    _, policy = converse(
        calling(call("meet", "{}", "1"), call("meet", "{}", "2")), "5", tools=[{"function": f"{functions}:meet"}]
    )
    assert results(policy) == ["met", "met"]


def test_turns_are_bounded(functions: str) -> None:
    again = calling(call("add", '{"a": 1}'))
    reward, policy = converse(again, again, again, tools=[{"function": f"{functions}:add"}], max_turns=2)
    assert (reward, len(policy.requests)) == (None, 2)


def test_a_functions_schema_is_its_signature(functions: str) -> None:
    tool = function_tool(f"{functions}:add")
    assert tool.description == "The sum of two numbers."
    assert tool.parameters["properties"] == {
        "a": {"type": "integer", "description": "The first one."},
        "b": {"type": "integer", "default": 1, "description": "The other."},
    }
    assert tool.parameters["required"] == ["a"]


def test_check_finds_what_is_wrong_before_a_run(server: list[str], functions: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('no database here')")
    (tmp_path / "silent.py").write_text("")
    python = sys.executable
    agent.check([{"mcp": server}, {"function": f"{functions}:fetch"}], 8)
    wrong: list[tuple[list[dict[str, Any]], str]] = [
        ([{"mcp": [python, str(tmp_path / "broken.py")]}], "broken.py does not start: no database here"),
        ([{"mcp": [python, str(tmp_path / "silent.py")]}], "silent.py does not start: Connection closed"),
        ([{"mcp": ["no-such-program"]}], "the MCP server no-such-program does not start"),
        ([{"function": f"{functions}:ad"}], "did you mean add?"),
        ([{"function": f"{functions}:starred"}], "its parameter args has no name"),
        ([{"function": f"{functions}:add"}, {"mcp": server}], "two of rollout.tools are called add: rename one"),
        ([{"mcp": server}, {"function": f"{functions}:add"}], "two of rollout.tools are called add: rename one"),
        ([{"mpc": server}], 'has no option "mpc"; did you mean mcp?'),
        ([{"mcp": []}], r"must be {mcp: \[PROGRAM, ITS ARGUMENTS\]} or"),
    ]
    for tools, said in wrong:
        with pytest.raises(ConfigError, match=said) as caught:
            agent.check(tools, 8)
        assert "\n" not in str(caught.value)


def test_check_may_be_called_in_an_event_loop(functions: str) -> None:
    async def checked(session: ScriptedPolicy) -> str:
        agent.check([{"function": f"{functions}:fetch"}], 8)
        return threading.current_thread().name

    assert played(lambda _: "", checked)[0] == "MainThread"
