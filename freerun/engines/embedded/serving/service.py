"""Answers people's requests: what they ask becomes tokens, the engine's tokens become a reply."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from freerun.engines.dialects.answers import AnswerReading
from freerun.engines.dialects.base import ChatRequest, Dialect, Json, Word
from freerun.engines.dialects.bodies import Body, CompletionsBody
from freerun.engines.dialects.response_store import ResponseStore
from freerun.engines.embedded.serving.completions import Answers, CompletionBody, Reply, stream_of, whole_of
from freerun.engines.embedded.serving.conversations import Conversation
from freerun.engines.embedded.serving.prompts import ChatPrompt, chat_prompt_of, prompts_of
from freerun.engines.embedded.serving.sampling import sampling_of, seed_of
from freerun.engines.embedded.serving.tokenizer import Tokenizer
from freerun.engines.embedded.thread import EngineThread
from freerun.engines.refused import Refused
from freerun.engines.server.pending import AnswerRequest, PendingAnswers
from freerun.engines.server.replies import Stream, json, unless_gone


class Service:
    """What answering needs to know. `longest` is the most tokens of a prompt and its answer together."""

    def __init__(
        self, thread: EngineThread, tokenizer: Tokenizer, model: str, longest: int, eos_token_ids: frozenset[int]
    ) -> None:
        self.thread, self.tokenizer, self.model, self.longest = thread, tokenizer, model, longest
        self.responses = ResponseStore()
        self._eos_token_ids = eos_token_ids

    @cached_property
    def reading(self) -> AnswerReading:
        return AnswerReading(self.tokenizer.load())

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.model):
            raise Refused(f"there is no model {name!r} here, only {self.model!r}", "model", "model_not_found", 404)

    async def converse(self, http: Request, dialect: Dialect, request: ChatRequest) -> Response:
        """The answer to messages, in any dialect."""
        prompt = await self.prompt_of(request)
        body, id = request.body, uuid.uuid4().hex
        assert isinstance(body, Body)
        sampling = sampling_of(body, prompt.tokens, self.longest, seed_of(body))
        writer = dialect.writer(request, id, self.model, int(time.time()), prompt.tokens, self._word(body))
        answers = Conversation(request, prompt, writer, self.reading, self._eos_token_ids, self.responses)
        asked = await self.thread.ask([AnswerRequest(id, prompt.tokens, sampling, request.n)], follow=request.stream)
        return await _reply(http, asked, answers.stream(asked) if request.stream else answers.whole(asked))

    async def prompt_of(self, request: ChatRequest) -> ChatPrompt:
        self.check_model(request.model)
        self.responses.resolve(request)
        return await asyncio.to_thread(self._prompt_of, request)  # a long text takes seconds

    def _prompt_of(self, request: ChatRequest) -> ChatPrompt:
        return chat_prompt_of(request, self.tokenizer, self.reading, self.longest)

    async def complete(self, http: Request, body: CompletionBody) -> Response:
        """What follows a prompt."""
        self.check_model(body.model)
        prompts = await asyncio.to_thread(prompts_of, body, self.tokenizer, self.longest)
        id, seed = f"cmpl-{uuid.uuid4().hex}", seed_of(body)
        asks = [
            AnswerRequest(f"{id}-{number}", prompt, sampling_of(body, prompt, self.longest, seed), body.n)
            for number, prompt in enumerate(prompts)
        ]
        reply = Reply(
            id=id,
            model=self.model,
            created=int(time.time()),
            prompts=prompts,
            n=body.n,
            with_logprobs=body.wants_logprobs(),
            with_token_ids=body.return_token_ids,
            word=self._word(body),
        )
        answers = Answers(body, asks, self.tokenizer, self._eos_token_ids)
        asked = await self.thread.ask(asks, follow=body.stream)
        stream = stream_of(reply, answers, asked, body.stream_options) if body.stream else None
        return await _reply(http, asked, stream or whole_of(reply, answers, asked))

    def _word(self, body: Body) -> Word:
        if isinstance(body, CompletionsBody) and body.return_tokens_as_token_ids:
            return "token_id:{}".format
        return lambda token: self.tokenizer.decode([token])


async def _reply(
    http: Request, asked: PendingAnswers, answer: AsyncIterator[bytes] | Coroutine[Any, Any, Json]
) -> Response:
    """A stream, or all of it when it has come. A client that hangs up cancels what was asked."""
    if isinstance(answer, AsyncIterator):
        return Stream(answer, asked.close)
    try:
        return json(await unless_gone(http, answer))
    finally:
        asked.close()
