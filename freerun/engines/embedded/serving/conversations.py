"""One request for an answer to messages, in any dialect: its answers as they come, and the reply to them."""

import asyncio
import secrets
import string
from collections.abc import AsyncIterator

from freerun.engines.dialects.answers import AnswerReading
from freerun.engines.dialects.base import ChatRequest, Json, ReplyWriter, Said, Usage
from freerun.engines.dialects.bodies import Body
from freerun.engines.dialects.response_store import ResponseStore
from freerun.engines.dialects.responses import ResponsesWriter
from freerun.engines.embedded.serving.prompts import ChatPrompt
from freerun.engines.server.pending import AnswerPart, PendingAnswers

_CHARACTERS = string.ascii_letters + string.digits


class Conversation:
    def __init__(
        self,
        request: ChatRequest,
        prompt: ChatPrompt,
        writer: ReplyWriter,
        reading: AnswerReading,
        ends: frozenset[int],
        store: ResponseStore,
    ) -> None:
        body = request.body
        assert isinstance(body, Body)
        self._request, self._prompt, self._writer, self._reading, self._store = request, prompt, writer, reading, store
        self._readers = [
            reading.reader(
                request,
                lambda _: call_id(),
                ends | frozenset(body.stop_token_ids),
                index,
                prompt.is_thinking,
                prompt.begun,
                shows_special=not body.skip_special_tokens,
                shows_stop=body.include_stop_str_in_output,
            )
            for index in range(request.n)
        ]
        self._answers = [Said(index) for index in range(request.n)]
        self._cached = 0

    async def whole(self, asked: PendingAnswers) -> Json:
        async for part in asked:
            self._add(part)
        reply = self._writer.whole(self._answers, self._usage())
        self._keep()
        return reply

    async def stream(self, asked: PendingAnswers) -> AsyncIterator[bytes]:
        yield self._writer.opening()
        async for part in asked:
            await asyncio.sleep(0)  # with many pieces there, nothing else waits: no news of the client's end would come
            if chunk := self._writer.piece(self._add(part)):
                yield chunk
        closing = self._writer.closing(self._usage())
        self._keep()
        yield closing

    def _add(self, part: AnswerPart) -> Said:
        said = self._readers[part.index].add(part.tokens, part.logprobs, part.finish, part.alternatives)
        self._answers[part.index].add(said)
        self._cached = max(self._cached, part.cached)  # an answer that was aborted does not say
        return said

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._prompt.tokens),
            completion_tokens=sum(len(said.tokens) for said in self._answers),
            cached_tokens=self._cached,
            reasoning_tokens=sum(self._reading.reasoning_tokens(said) for said in self._answers),
        )

    def _keep(self) -> None:
        if isinstance(self._writer, ResponsesWriter):
            self._store.keep(self._request, self._answers[0], self._writer.reply)


def call_id() -> str:
    """Nine letters and digits: some templates take no others."""
    return "".join(secrets.choice(_CHARACTERS) for _ in range(9))
