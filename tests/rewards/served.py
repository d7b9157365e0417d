"""A server of rewards and of a judging model, as a process of its own: `python -m tests.rewards.served`.

Prints its port, then serves until it is killed. The text to judge says how it should behave.
"""

import asyncio
import json
import socket
from collections import Counter
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

asked: Counter[str] = Counter()
at_once = most_at_once = 0


async def how_often(_: Request) -> Response:
    return JSONResponse({"asked": asked, "most_at_once": most_at_once})


async def reward(request: Request) -> Response:
    body = await request.json()
    assert set(body) == {"task", "text"}
    assert set(body["task"]) == {"id", "prompt", "answer", "extra"}
    return await behave(body["text"], {"reward": len(body["text"])}, request)


async def chat(request: Request) -> Response:
    body = await request.json()
    (message,) = body["messages"]
    text = message["content"].partition("--------\n")[2].partition("\n--------")[0] or message["content"]
    said = f"It says: Score: 3.\nI find it good. **Score:** {min(len(text), 11)}"
    if text.startswith("say "):
        said = text.removeprefix("say ")
    if text == "what was asked":
        said = json.dumps(body) + "\nScore: 10"
    return await behave(text, {"choices": [{"message": {"role": "assistant", "content": said}}]}, request)


async def behave(text: str, reply: dict[str, Any], request: Request) -> Response:
    global at_once, most_at_once
    asked[text] += 1
    at_once += 1
    most_at_once = max(most_at_once, at_once)
    try:
        await asyncio.sleep({"hang": 1000, "slowly": 0.1}.get(text, 0))
    finally:
        at_once -= 1
    match text:
        case "error":
            return Response("out of\norder", 500)
        case "error once" if asked[text] == 1:
            return Response("try again", 503)
        case "secret" if request.headers.get("authorization") != "Bearer s3cret":
            return Response("who are you?", 401)
        case "garbage":
            return Response("<html>")
        case "list":
            return Response("[1, 2]")
        case "huge":
            return Response(b" " * 2_000_000)
        case "nothing":
            return Response("{}")
        case "nan":
            return Response('{"reward": NaN}')
        case "unparseable":
            return Response('{"reward": 0, "reason": "unparseable", "detail": "gibberish"}')
    return Response(json.dumps(reply))


ROUTES = [
    Route("/asked", how_often),
    Route("/reward", reward, methods=["POST"]),
    Route("/v1/chat/completions", chat, methods=["POST"]),
]

if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(Starlette(routes=ROUTES), log_level="error")).run([listening])
