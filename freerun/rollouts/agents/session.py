"""What an agent is given besides its task: where the policy is, and a way to say what a turn was worth.

Runs in the agent's process, so it imports little: no torch, no numpy, no pydantic.
"""

import http.client
import json
import select
from typing import Any
from urllib.parse import urlsplit

from freerun.core import EngineError
from freerun.rollouts.agents.number import reward_of
from freerun.rollouts.agents.spec import Access

MODEL = "policy"
"""The name of the model that is trained. `policy-fixed` is the same one, and what it answers is not trained."""
TIMEOUT_S = 60.0
"""For a reward to be noted; the gateway does it in a millisecond."""


class AgentSession:
    """One try of a task. Point any client at `base_url`, with `api_key` and `model`."""

    def __init__(self, access: Access) -> None:
        self.base_url = access.base_url
        """For OpenAI's clients. Anthropic's is given `anthropic_url`."""
        self.api_key = access.api_key
        self.model = MODEL
        self.member = access.member
        """Which try of its group it is: 0, 1, …"""
        self.attempt = access.attempt
        """How often this member was tried before, and failed."""

    def __repr__(self) -> str:
        return f"AgentSession({self.base_url!r}, member={self.member}, attempt={self.attempt})"

    @property
    def anthropic_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}

    def reward(self, reward: float, response: str | None = None) -> None:
        """What a turn was worth: the one that ended last, or the one that gave the response with this id."""
        try:
            reward = reward_of(reward)
        except ValueError as error:
            raise ValueError(f"session.reward was given {error}") from None
        status, said = _post(f"{self.base_url}/reward", {"reward": reward, "response": response}, self.headers)
        if status >= 300:
            raise EngineError(f"session.reward({reward:g}) was refused: {_message(status, said)}")

    async def chat(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The policy's answer, a message: `{"role": "assistant", "content": …, "tool_calls": […]}`. `more` are fields
        of the request, such as max_tokens."""
        from freerun.rollouts.agents.http import post

        body = {"model": self.model, "messages": messages, **({"tools": tools} if tools else {}), **more}
        status, said = await post(f"{self.base_url}/chat/completions", body, self.headers)
        if status >= 300:
            raise EngineError(f"session.chat was refused: {_message(status, said)}")
        message: dict[str, Any] = json.loads(said)["choices"][0]["message"]
        return message


_kept: dict[str, http.client.HTTPConnection] = {}
"""Open connections by host and port. They outlive the session: the next one of this process talks to the same."""


def _post(url: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = _kept.pop(parts.netloc, None)
    if connection is None or _is_closed(connection):
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("POST", parts.path, json.dumps(body), headers)
        reply = connection.getresponse()
        status, said = reply.status, reply.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise EngineError(f"the session's gateway cannot be reached: {type(error).__name__}: {error}") from None
    _kept[parts.netloc] = connection
    return status, said


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """By the other side: there is something to read, though nothing was asked. Seen before a request is sent, because
    one that was sent may have been noted, and must not be sent again."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


def _message(status: int, said: bytes) -> str:
    """What the gateway says is wrong, in its own words."""
    try:
        error = json.loads(said)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return f"{status} {said[:200].decode(errors='replace')}"
