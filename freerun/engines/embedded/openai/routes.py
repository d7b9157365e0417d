"""OpenAI's routes: models, completions, chat completions. One `OpenAIService` answers them all."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from freerun.engines.dialects.bodies import CompletionsBody, StreamOptions, read
from freerun.engines.dialects.chat import ChatBody
from freerun.engines.dialects.parameters import IGNORED, REFUSED
from freerun.engines.dialects.text import AnswerText
from freerun.engines.embedded.openai.answers import (
    ChatFormat,
    CompletionFormat,
    Json,
    Reply,
    ReplyFormat,
    TextPart,
    Word,
)
from freerun.engines.embedded.openai.prompts import chat_prompt_of, prompts_of
from freerun.engines.embedded.openai.requests import (
    CompletionBody,
    sampling_of,
    seed_of,
)
from freerun.engines.embedded.openai.tokenizer import Tokenizer
from freerun.engines.embedded.pending import AnswerPart, AnswerRequest, PendingAnswers
from freerun.engines.embedded.replies import DONE, Stream, event, json, unless_gone
from freerun.engines.embedded.thread import EngineThread
from freerun.engines.refused import Refused


@dataclass(slots=True)
class OpenAIService:
    """What answering needs to know."""

    thread: EngineThread
    tokenizer: Tokenizer
    model: str
    longest: int
    """Most tokens of a prompt and its answer together."""
    eos_token_ids: frozenset[int]

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.model):
            raise Refused(f"there is no model {name!r} here, only {self.model!r}", "model", "model_not_found", 404)

    async def answer(
        self, request: Request, body: CompletionBody | ChatBody, shape: ReplyFormat, prompts: list[list[int]]
    ) -> Response:
        id, seed = f"{shape.prefix}-{uuid.uuid4().hex}", seed_of(body)
        asks = [
            AnswerRequest(f"{id}-{number}", prompt, sampling_of(body, prompt, self.longest, seed), body.n)
            for number, prompt in enumerate(prompts)
        ]
        reply = Reply(
            id=id,
            model=self.model,
            created=int(time.time()),
            shape=shape,
            prompts=prompts,
            n=body.n,
            with_logprobs=body.wants_logprobs(),
            with_token_ids=body.return_token_ids,
            word=self._word(body),
        )
        answers = Answers(body, asks, self.tokenizer, self.eos_token_ids)
        asked = await self.thread.ask(asks, follow=body.stream)
        if body.stream:
            return Stream(stream_of(reply, answers, asked, body.stream_options), asked.close)
        try:
            return await unless_gone(request, _whole(reply, answers, asked))
        finally:
            asked.close()

    def _word(self, body: CompletionsBody) -> Word:
        if body.return_tokens_as_token_ids:
            return "token_id:{}".format
        return lambda token: self.tokenizer.decode([token])


class Answers:
    """The texts of a request's answers, numbered over all its prompts."""

    def __init__(
        self, body: CompletionsBody, asks: list[AnswerRequest], tokenizer: Tokenizer, eos_token_ids: frozenset[int]
    ) -> None:
        decode = tokenizer.readable if body.skip_special_tokens else tokenizer.decode
        how = body.stops(), eos_token_ids | set(body.stop_token_ids), body.include_stop_str_in_output
        self.count = len(asks) * body.n
        self._first = {ask.id: number * body.n for number, ask in enumerate(asks)}
        self._texts = [AnswerText(decode, *how) for _ in range(self.count)]
        self._echoes: dict[int, str] = {}
        """What a stream begins with, before an answer's first words."""
        if isinstance(body, CompletionBody) and body.echo:
            prompts = [decode(ask.prompt) for ask in asks]
            self._echoes = {index: prompts[index // body.n] for index in range(self.count)}

    def part(self, piece: AnswerPart) -> TextPart:
        index = self._first[piece.id] + piece.index
        text = self._echoes.pop(index, "") + self._texts[index].add(piece.tokens, piece.finish)
        return TextPart(index, text, piece.tokens, piece.logprobs, piece.finish, piece.alternatives)


async def _whole(reply: Reply, answers: Answers, asked: PendingAnswers) -> Response:
    choices = [reply.choice(answers.part(piece), is_whole=True) async for piece in asked]
    return json(reply.whole(sorted(choices, key=lambda choice: int(choice["index"]))))


async def stream_of(
    reply: Reply, answers: Answers, asked: PendingAnswers, options: StreamOptions
) -> AsyncIterator[bytes]:
    def chunk(choice: Json) -> bytes:
        if options.include_usage:
            return event(reply.chunk(choice) | {"usage": reply.usage() if options.continuous_usage_stats else None})
        return event(reply.chunk(choice))

    for opening in map(reply.shape.opening, range(answers.count)):
        if opening:
            yield chunk(opening)
    begun: set[int] = set()
    async for piece in asked:
        await asyncio.sleep(0)  # with many pieces there, nothing else waits: no news of the client's end would come
        part = answers.part(piece)
        if part.text or part.finish or reply.with_logprobs or reply.with_token_ids:
            yield chunk(reply.choice(part, is_whole=False, is_first=part.index not in begun))
            begun.add(part.index)
        else:
            reply.completion_tokens += len(part.tokens)  # held back: half a character, or of a stop string
    if options.include_usage:
        yield event(reply.chunk() | {"usage": reply.usage()})
    yield DONE


def openai_routes(service: OpenAIService) -> list[Route]:
    card = {"id": service.model, "object": "model", "created": int(time.time()), "owned_by": "freerun"}

    async def models(_: Request) -> Response:
        return json({"object": "list", "data": [card | {"max_model_len": service.longest}]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return json(card | {"max_model_len": service.longest})

    async def completions(request: Request) -> Response:
        body = read(await request.body(), CompletionBody, IGNORED, REFUSED)
        service.check_model(body.model)
        prompts = await asyncio.to_thread(
            prompts_of, body, service.tokenizer, service.longest
        )  # a long text takes seconds
        return await service.answer(request, body, CompletionFormat(), prompts)

    async def chat(request: Request) -> Response:
        body = read(await request.body(), ChatBody, IGNORED, REFUSED)
        service.check_model(body.model)
        prompt = await asyncio.to_thread(chat_prompt_of, body, service.tokenizer, service.longest)
        return await service.answer(request, body, ChatFormat(), [prompt])

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name}", model),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]
