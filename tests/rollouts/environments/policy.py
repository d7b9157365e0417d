"""A policy that answers from a script, over real HTTP, and a session that talks to it."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

Message = dict[str, Any]
Script = Callable[[list[Message]], Message | str]


class ScriptedPolicy:
    """An OpenAI chat endpoint. `requests` are the bodies it got, `rewards` what it was told, each with how many
    requests had been answered."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[dict[str, Any]] = []
        self.rewards: list[tuple[int, float]] = []

    async def __aenter__(self) -> "ScriptedPolicy":
        app = web.Application()
        app.router.add_post("/key/v1/chat/completions", self._answer)
        app.router.add_post("/key/v1/reward", self._reward)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/key/v1"
        self.api_key, self.model = "key", "policy"
        self._client = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._runner.cleanup()

    async def chat(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **more: Any) -> Message:
        body = {"model": self.model, "messages": messages, **({"tools": tools} if tools else {}), **more}
        async with self._client.post(f"{self.base_url}/chat/completions", json=body) as reply:
            message: Message = (await reply.json())["choices"][0]["message"]
            return message

    def reward(self, reward: float, response: str | None = None) -> None:
        self.rewards.append((len(self.requests), reward))

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        said = self._script(body["messages"])
        message = {"role": "assistant", "content": said} if isinstance(said, str) else {"role": "assistant", **said}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": f"chatcmpl-{len(self.requests)}", "object": "chat.completion", "created": 1, "model": "policy"}
        return web.json_response({**told, "choices": [choice], "usage": usage})

    async def _reward(self, request: web.Request) -> web.Response:
        self.rewards.append((len(self.requests), (await request.json())["reward"]))
        return web.json_response({})


def played(script: Script, run: Callable[[ScriptedPolicy], Any]) -> tuple[Any, ScriptedPolicy]:
    """What the agent returned, and the policy that it talked to."""

    async def play() -> tuple[Any, ScriptedPolicy]:
        async with ScriptedPolicy(script) as policy:
            return await run(policy), policy

    return asyncio.run(play())


def call(name: str, arguments: str, id: str = "call_0") -> Message:
    """A tool call, as part of a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
