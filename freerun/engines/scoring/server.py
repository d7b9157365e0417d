"""A scoring server: the log-probabilities of given tokens over HTTP, in vLLM's form, which other servers have, too; and
in one of ours, of a fraction of the bytes.

Consumes requests; produces scores. All that have come while the model computed are computed next, together, on a
thread. What cannot be scored (an unknown token, too many of them) is refused in a line.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from freerun.engines.listening import Where, listen, url_of
from freerun.engines.refused import Refused
from freerun.engines.scoring.asked import COMPLETIONS, SCORES, TOKENIZE, ScoreTokens
from freerun.engines.scoring.scorer import Scorer
from freerun.engines.server.app import app_of, server_config
from freerun.engines.server.replies import json
from freerun.machine.device import choose_device
from freerun.models.shape import Backend
from freerun.models.tokenizer import load_tokenizer, refuse_of_another_model

_MOST_ROWS = 256
"""Computed together, at most."""


class Completion(msgspec.Struct):
    """The part of vLLM's request that scoring needs."""

    prompt: list[int | list[int]] | str
    prompt_logprobs: int | None = None
    model: str | None = None
    max_tokens: int | None = None


class Tokenize(msgspec.Struct):
    prompt: str
    add_special_tokens: bool = True


@dataclass(slots=True)
class _Waiting:
    rows: Sequence[Sequence[int]]
    scores: asyncio.Future[list[list[float]]]


class ScoringServer:
    def __init__(self, scorer: Scorer, tokenizer: Any, name: str) -> None:
        self._scorer, self._tokenizer, self._name = scorer, tokenizer, name
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route(SCORES, self._score, methods=["POST"]),
            Route(COMPLETIONS, self._complete, methods=["POST"]),
            Route(TOKENIZE, self._tokenize, methods=["POST"]),
        ]

    async def compute(self) -> None:
        """Never returns."""
        while True:
            taken = [await self._queue.get()]
            while not self._queue.empty() and sum(len(one.rows) for one in taken) < _MOST_ROWS:
                taken.append(self._queue.get_nowait())
            taken = [one for one in taken if not one.scores.done()]
            try:
                scores = await asyncio.to_thread(self._scorer.score, [row for one in taken for row in one.rows])
            except Exception as error:
                for one in taken:
                    if not one.scores.done():
                        one.scores.set_exception(error)
                raise
            for one in taken:
                mine, scores = scores[: len(one.rows)], scores[len(one.rows) :]
                if not one.scores.done():
                    one.scores.set_result(mine)

    async def _scores(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        shape = self._scorer.shape
        for row in rows:
            if len(row) > shape.max_positions:
                raise Refused(f"{len(row)} tokens are more than the model's {shape.max_positions} positions", "prompt")
            if row and not 0 <= min(row) <= max(row) < shape.vocab_size:
                raise Refused(f"there is no token {max(row)} in a vocabulary of {shape.vocab_size}", "prompt")
        waiting = _Waiting(rows, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(waiting)
        return await waiting.scores

    async def _health(self, _: Request) -> Response:
        return json({"scores": True})

    async def _models(self, _: Request) -> Response:
        card = {"id": self._name, "object": "model", "max_model_len": self._scorer.shape.max_positions}
        return json({"object": "list", "data": [card]})

    async def _score(self, request: Request) -> Response:
        asked = _decoded(await request.body(), ScoreTokens, msgspec.msgpack.Decoder(ScoreTokens))
        scores = await self._scores(asked.rows)
        wanted = [found[max(begin - 1, 0) :] for found, begin in zip(scores, asked.begins, strict=True)]
        return Response(msgspec.msgpack.encode(wanted), media_type="application/msgpack")

    async def _complete(self, request: Request) -> Response:
        asked = _decoded(await request.body(), Completion, msgspec.json.Decoder(Completion))
        if asked.prompt_logprobs is None or (asked.max_tokens or 0) > 1:
            raise Refused("this server scores tokens and generates none: ask with prompt_logprobs and max_tokens: 1")
        if isinstance(asked.prompt, str):
            raise Refused("give the prompt as tokens: a list of numbers", "prompt")
        several = [row for row in asked.prompt if isinstance(row, list)]
        rows = several or [[token for token in asked.prompt if isinstance(token, int)]]
        if several and len(several) != len(asked.prompt):
            raise Refused("the prompt has tokens and lists of tokens: give one or the other", "prompt")
        choices = [
            {"index": index, "text": "", "finish_reason": "length", "prompt_logprobs": _in_vllms_form(row, scores)}
            for index, (row, scores) in enumerate(zip(rows, await self._scores(rows), strict=True))
        ]
        return json({"object": "text_completion", "model": self._name, "choices": choices})

    async def _tokenize(self, request: Request) -> Response:
        asked = _decoded(await request.body(), Tokenize, msgspec.json.Decoder(Tokenize))
        tokens = self._tokenizer.encode(asked.prompt, add_special_tokens=asked.add_special_tokens)
        return json({"tokens": tokens, "count": len(tokens), "max_model_len": self._scorer.shape.max_positions})


def _decoded(body: bytes, kind: Any, decoder: Any) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Refused(f"the request cannot be read: {error}") from None


def _in_vllms_form(row: Sequence[int], scores: Sequence[float]) -> list[dict[str, Any] | None]:
    found = ({str(token): {"logprob": score}} for token, score in zip(row[1:], scores, strict=True))
    return [None, *found]


async def serve_scores(
    folder: Path,
    ready: Callable[[str], None],
    where: Where,
    name: str,
    api_key: str | None = None,
    backend: Backend = "auto",
) -> None:
    """Load the model, say where it answers, and serve until it fails or is cancelled."""
    with listen(where) as listening:
        loading = asyncio.to_thread(Scorer, folder, choose_device(), backend)
        scorer, tokenizer = await asyncio.gather(loading, asyncio.to_thread(load_tokenizer, folder))
        refuse_of_another_model(tokenizer, folder, scorer.shape.vocab_size)
        server = ScoringServer(scorer, tokenizer, name)
        http = uvicorn.Server(server_config(app_of(server.routes, api_key), grace_s=1))
        listening.listen(2048)
        ready(url_of(listening))
        serving = asyncio.ensure_future(http.serve(sockets=[listening]))
        computing = asyncio.ensure_future(server.compute())
        try:
            done, _ = await asyncio.wait({serving, computing}, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            serving.cancel()
            computing.cancel()
