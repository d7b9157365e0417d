"""Clients that send nonsense, too much, or hang up: each is refused in its dialect's shape, and costs nobody else."""

import asyncio
import gc
import json
import weakref
from typing import Any

import httpx
import pytest

from freerun.engines.base import Client, Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.template import Template
from tests.rollouts.gateway.conftest import OpenTalk, Talk
from tests.rollouts.gateway.scripted_policy import ScriptedPolicy
from tests.rollouts.gateway.test_session import ask, counted, user

ROUTES = ("chat/completions", "responses", "messages")
HELLO = {"model": "policy", "messages": [user("hello")]}


@pytest.fixture(scope="module", autouse=True)
def _nobody_elses_clients() -> None:
    """SDKs of earlier tests leave clients to the garbage collector, which close themselves as they go. In the middle of
    a body that is nested too deeply there would be no room on the stack for that."""
    gc.collect()


async def post(talk: Talk, route: str, content: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    async with httpx.AsyncClient(verify=False, timeout=60) as client:
        reply = await client.post(f"{talk.access.base_url}/{route}", content=sent)
    return reply.status_code, reply.json()


def told(route: str, body: dict[str, Any]) -> str:
    """What an error says, if it has the shape that the dialect's client expects."""
    assert (body.get("type") == "error") == (route == "messages")
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{nope", "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "should be a JSON object"),
        (b'{"model": "\xff"}', "is not JSON"),
        (b'{"model": "\\ud800"}', "is not JSON"),
        (b'{"messages": ' + b"[" * 100_000, "nested too deeply"),
        (b" " * (65 * 2**20), "larger than 64 MiB"),
    ],
)
async def test_bodies_that_are_none(talk: OpenTalk, content: bytes, says: str) -> None:
    with talk(counted("a")) as one:
        for route in ROUTES:
            status, body = await post(one, route, content)
            assert status in (400, 413)
            assert says in told(route, body)
        await ask(one, [user("q")])
        one.check(samples=1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user"}]}, "needs content"),
        ({"messages": [{"content": "x"}]}, "needs a role"),
        ({"messages": "hello"}, "messages"),
        ({"max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"n": 1000}, "n is 1000, and at most 128"),
        ({"tools": "x"}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text only"),
    ],
)
async def test_requests_that_make_no_sense(talk: OpenTalk, changes: dict[str, Any], says: str) -> None:
    with talk(counted("a")) as one:
        status, body = await post(one, "chat/completions", HELLO | changes)
        assert status == 400
        assert says in told("chat/completions", body)
        assert one.policy.record == []


async def test_other_routes_methods_and_keys(talk: OpenTalk, gateway: Gateway) -> None:
    with talk(counted("a")) as one, talk(counted("b")) as other:
        status, body = await post(one, "embeddings", {})
        assert status == 404
        assert "there is no route 'embeddings' here" in told("embeddings", body)
        async with httpx.AsyncClient(verify=False) as client:
            for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
                reply = await client.request(method, f"{one.access.base_url}/messages")
                assert reply.status_code == 405
                assert f"with POST, not {method}" in told("messages", reply.json())
            mixed = {"authorization": f"Bearer {other.access.api_key}"}
            await client.post(f"{one.access.base_url}/chat/completions", json=HELLO, headers=mixed)
            stranger = await client.post(f"{gateway.url}/v1/messages", json=HELLO, headers={"x-api-key": "0" * 32})
            assert stranger.status_code == 401
            assert "use session.base_url" in told("messages", stranger.json())
        assert len(one.policy.record) == 1, "the key in the URL counts"
        assert other.policy.record == []


async def test_odd_texts_are_texts(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        said = await ask(one, [user("a\0b\u202e\U0001f600\ufffe")])
        await ask(one, [user("a\0b\u202e\U0001f600\ufffe"), said, user("")])
        one.check(samples=1)


async def test_raw_connections(talk: OpenTalk, gateway: Gateway, capfd: pytest.CaptureFixture[str]) -> None:
    """HTTP/1.0; one that is used again after an error; one that hangs up in its own body; one that does not read."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with talk(counted("a")) as one:
        head = f"POST /{one.access.api_key}/v1/chat/completions HTTP/1.%d\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

        async def sent(body: bytes, minor: int = 1, length: int = 0) -> tuple[Any, Any]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write((head % (minor, length or len(body))).encode() + body)
            await writer.drain()
            return reader, writer

        hello = json.dumps(HELLO).encode()
        reader, writer = await sent(hello, minor=0)
        assert b"200 OK" in await reader.read()
        _, slow = await sent(hello)
        reader, writer = await sent(b"{nope")
        assert b"400" in await reader.readuntil(b"\r\n")
        refusal = await reader.readuntil(b"}}")
        assert b"not JSON" in refusal
        writer.write((head % (1, len(hello))).encode() + hello)
        assert b"200 OK" in await reader.readuntil(b"\r\n")
        _, leaving = await sent(b"{", length=1000)
        for one_of in (leaving, slow, writer):
            one_of.close()
        await ask(one, [user("still here")])
        assert one.session.report.requests == 4
    assert "Traceback" not in capfd.readouterr().err


async def test_a_hundred_requests_at_a_time(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        await asyncio.gather(*(post(one, "chat/completions", HELLO | {"seed": n % 7}) for n in range(100)))
        one.check(samples=100)
        assert one.session.report.forks == {"same_prompt": 99}


async def test_sessions_that_have_ended_are_gone(talk: OpenTalk, gateway: Gateway) -> None:
    seen: weakref.WeakSet[Any] = weakref.WeakSet()
    for _ in range(500):
        with talk(counted("a")) as one:
            seen.add(one.session)
    assert len(gateway._ended) == 500
    del one
    gc.collect()
    assert not seen


async def test_a_long_history_of_somebody_elses_is_one_prompt(talk: OpenTalk) -> None:
    long = [{"role": ("user", "assistant")[n % 2], "content": f"m {n}"} for n in range(10_000)]
    with talk(counted("a"), context_tokens=10**6) as one:
        messages = [*long, user("end")]
        for _ in range(2):
            _, reply = await post(one, "chat/completions", {"model": "policy", "messages": messages})
            messages += [reply["choices"][0]["message"], user("more")]
        one.check(samples=1)


async def test_a_gateway_that_closes_ends_what_is_being_asked(
    tokenizer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = ScriptedPolicy(tokenizer, counted("a"))
    policy.held = asyncio.Event()
    rules = SessionRules(Template(tokenizer), AnswerReading(tokenizer), frozenset(), Sampling(max_new_tokens=9), 999)
    async with httpx.AsyncClient(verify=False) as client:
        async with Gateway.opened() as gateway:
            with gateway.session(rules, Client(policy, "seed"), "0/0") as session:
                url = f"{gateway.access(session).base_url}/chat/completions"
                asked = asyncio.create_task(client.post(url, json=HELLO))
                await policy.asked.wait()
                _, half = await asyncio.open_connection(*gateway.url.removeprefix("http://").split(":"))
                half.write(
                    f"POST /{session.key}/v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode()
                )
                await half.drain()
        assert (await asked).status_code == 410
    half.close()
    assert "Traceback" not in capfd.readouterr().err
