"""`freerun bench gateway`: the gateway's own time a request, against encoding the whole history again.

One session with a long history: turns of the policy's with results of tools between them. Each measured request goes on
from there with something new, over HTTP, from a client in another process; the engine answers at once. What is measured
is the time within the server from the request's head to the end of its reply, less the wait for the engine. Its rival
is the same server with `history: template`, which renders and encodes the whole conversation for every request.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from starlette.types import ASGIApp, Receive, Scope, Send

from freerun.core import FinishReason
from freerun.engines.base import Client, Completion, Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.machine.scratch import scratch_folder
from freerun.models.bpe import write_bpe_tokenizer
from freerun.models.tokenizer import load_tokenizer
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.template import Template

_RESULT = (
    "def step_{n}(state, request):\n    '''What the tool found at place {n}.'''\n    if request.kind == {n}:\n"
    "        return state.update(value={n} * 7 + len(request.items), checked=True)\n    raise LookupError('{n}')\n"
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


@dataclass
class InstantEngine:
    """Says the same at once, and notes how long others waited for it."""

    answer: list[int]
    waited_s: float = 0.0

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        began_s = time.perf_counter()
        for index in range(n):
            logprobs = [-0.5] * len(self.answer)
            yield Completion(index, self.answer, logprobs, [0] * len(self.answer), FinishReason.STOP, len(prompt) - 1)
        self.waited_s += time.perf_counter() - began_s


@dataclass
class Timed:
    """Around the gateway's application: seconds of each request."""

    app: ASGIApp
    engine: InstantEngine
    seconds: list[float] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waited_s, began_s = self.engine.waited_s, time.perf_counter()
        await self.app(scope, receive, send)
        self.seconds.append(time.perf_counter() - began_s - (self.engine.waited_s - waited_s))


@dataclass(frozen=True)
class Measured:
    history: str
    tokens: int
    p50_ms: float
    p99_ms: float


async def bench_gateway(model: Path | None, tokens: int, requests: int, json_only: bool) -> None:
    with scratch_folder() as scratch:
        if model is None:
            model = write_bpe_tokenizer(scratch / "tokenizer")
        tokenizer = load_tokenizer(model)
    measured = [await measure(tokenizer, tokens, requests, history) for history in ("sampled", "template")]
    show(str(model.name), measured, requests, json_only)


async def measure(tokenizer: Any, tokens: int, requests: int, history: str) -> Measured:
    """`tokens` is how long the history is, at least."""
    said = tokenizer.encode('<tool_call>\n{"name": "read_file", "arguments": {"path": "a/b.py"}}\n</tool_call>')
    engine = InstantEngine([*said, tokenizer.eos_token_id])
    rules = SessionRules(
        *(Template(tokenizer), AnswerReading(tokenizer), frozenset([tokenizer.eos_token_id])),
        *(Sampling(max_new_tokens=256), 10**9),
        keeps_sampled=history == "sampled",
    )
    timed: list[Timed] = []

    def around(app: ASGIApp) -> ASGIApp:
        timed.append(Timed(app, engine))
        return timed[0]

    async with Gateway.opened(around=around) as gateway:
        with gateway.session(rules, Client(engine, "bench"), "0") as session:
            url = f"{gateway.access(session).base_url}/chat/completions"
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "freerun.bench.gateway", url, str(tokens), str(requests)),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await client.communicate()
            if client.returncode:
                raise RuntimeError("the client of the benchmark failed")
    seconds = timed[0].seconds[-requests:]
    cuts = quantiles(seconds, n=100, method="inclusive")
    return Measured(history, json.loads(output)["history"], cuts[49] * 1e3, cuts[98] * 1e3)


def show(model: str, measured: list[Measured], requests: int, json_only: bool) -> None:
    ours, again = measured
    table = Table(title=f"the gateway's own time a request: {requests} requests, tokenizer {model}")
    for column in ("history", "tokens of history", "p50, ms", "p99, ms"):
        table.add_column(column, justify="left" if column == "history" else "right")
    for one in measured:
        table.add_row(one.history, f"{one.tokens:,}", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}")
    console = Console(stderr=json_only, highlight=False)
    console.print(table)
    ratio = again.p50_ms / ours.p50_ms
    console.print(f"going on from what was sampled is {ratio:.1f} times as fast as encoding the history again (p50)")
    figures = {one.history: {"tokens": one.tokens, "p50_ms": one.p50_ms, "p99_ms": one.p99_ms} for one in measured}
    print(json.dumps({"bench": "gateway", "requests": requests, **figures, "ratio": ratio}))


def ask_from_outside(url: str, tokens: int, requests: int) -> None:
    """The client: builds a history of that many tokens, then asks so many times, each time something else."""
    import http.client
    from urllib.parse import urlsplit

    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc)

    def ask(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        body = json.dumps({"model": "policy", "messages": messages, "tools": [_TOOL]})
        connection.request("POST", where.path, body, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        return reply["choices"][0]["message"], reply["usage"]["prompt_tokens"]

    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the files, one after another."}]
    used = turn = 0
    while used < tokens:
        said, used = ask(messages)
        result = "".join(_RESULT.format(n=turn * 10 + line) for line in range(10))
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": result}]
        turn += 1
    for number in range(requests):
        ask([*messages[:-1], messages[-1] | {"content": f"There is no such file: {number}."}])
    print(json.dumps({"history": used}))


if __name__ == "__main__":
    ask_from_outside(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
