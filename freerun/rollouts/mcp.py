"""Tools of an MCP server, over stdio or HTTP. The only file that imports mcp.

A server that is a program lives as long as the session: what one session does to it, no other sees. One that is named
by an address is whoever started it, and is shared by all sessions.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, TextIO, cast

from freerun.core import ConfigError, EngineError

with contextlib.suppress(ImportError):  # here, so that processes are forked with it; `connect` says what is missing
    import mcp

START_S = 30.0
"""For a server to start and list its tools."""


@dataclass(frozen=True)
class McpTool:
    """A tool of a server that runs, as it appears to a conversation."""

    name: str
    description: str
    parameters: dict[str, Any]
    _client: Any
    _called: str

    async def __call__(self, arguments: dict[str, Any]) -> str:
        """What the tool says, its complaints included. A server that is gone is an error of ours."""
        try:
            return _text(await self._client.call_tool(self.name, arguments))
        except mcp.MCPError as error:
            if error.code == mcp.types.CONNECTION_CLOSED:
                raise EngineError(f"{self._called} ended in the middle of a session") from None
            return f"Error: {error.message}"


@contextlib.asynccontextmanager
async def connect(server: str | list[str], env: Mapping[str, str]) -> AsyncIterator[list[McpTool]]:
    """The tools of a server: a program and its arguments, or an address. One that does not start is a ConfigError."""
    called = f"the MCP server {server if isinstance(server, str) else ' '.join(server)}"
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            async with contextlib.AsyncExitStack() as stack:
                yield await _started(server, env, called, said, stack)
        except BaseExceptionGroup as group:  # its client's, around whatever went wrong while it was open
            raise _innermost(group) from None


async def _started(
    server: str | list[str], env: Mapping[str, str], called: str, said: IO[str], stack: contextlib.AsyncExitStack
) -> list[McpTool]:
    try:
        async with asyncio.timeout(START_S):
            client = await stack.enter_async_context(_client(server, env, said))
            listed = (await client.list_tools()).tools
    except TimeoutError:
        raise ConfigError(f"{called} does not answer within {START_S:g} s{_tail(said)}") from None
    except ConfigError:
        raise
    except Exception as error:
        cause = _innermost(error)
        raise ConfigError(f"{called} does not start{_tail(said) or f': {cause or type(cause).__name__}'}") from None
    return [McpTool(one.name, one.description or "", one.input_schema, client, called) for one in listed]


def _client(server: str | list[str], env: Mapping[str, str], said: IO[str]) -> Any:
    try:
        import mcp
    except ImportError:
        raise ConfigError("mcp, which speaks to MCP servers, is not installed: pip install 'freerun[mcp]'") from None
    if isinstance(server, str):
        return mcp.Client(server)
    program = mcp.StdioServerParameters(command=server[0], args=server[1:], env={**os.environ, **env})
    return mcp.Client(mcp.stdio_client(program, errlog=cast(TextIO, said)))


def _text(result: Any) -> str:
    """What a conversation can hold of a result: its texts; where there is none, its structure."""
    texts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content)]
    return "\n".join(texts)


def _tail(said: IO[str]) -> str:
    """The last line that the server wrote to its stderr, which says why, if anything does."""
    said.seek(0)
    lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
