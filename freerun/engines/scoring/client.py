"""A teacher as the controller sees it: a server that scores given tokens, ours or another maker's.

Consumes samples; gives them the teacher's log-probabilities. Waits for the server; a server that is not there, or fails
by itself, is asked again for `patience_s`, for it may come back, elsewhere even (`url` may change); after that the run
ends with the cause, and can be resumed. What it refuses (too many tokens, say) it would refuse again.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self

import aiohttp
import msgspec
import numpy as np

from freerun.core import ConfigError, EngineError, Sample
from freerun.engines.scoring.asked import COMPLETIONS, SCORES, TOKENIZE, ScoreTokens

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_PROBE = 'The quick brown fox: 3 + 4 = 7?\n\t"Größe" – 東京 🦊 {x_1}; def f(x): return x**2'
"""A text by which tokenizers are told apart."""


class TeacherRefused(EngineError):
    """The server answers, and not with scores."""


class TeacherClient:
    """An async context manager."""

    def __init__(self, url: str, key: str | None, *, is_ours: bool = False, patience_s: float = 120.0) -> None:
        self.url, self._headers = url.rstrip("/").removesuffix("/v1"), {"Authorization": f"Bearer {key}"} if key else {}
        self._is_ours, self._patience_s = is_ours, patience_s  # where it is not known, it is asked
        self._model: str | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=2.0),
            timeout=aiohttp.ClientTimeout(total=600, connect=10),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def check(self, tokenizer: Any, longest: int) -> None:
        """Refuse a server that cannot teach: one that is not there, has another tokenizer, reads too little, or does
        not give log-probabilities of prompts."""
        self._is_ours = self._is_ours or await self._says_that_it_is_ours()
        try:
            cards = msgspec.json.decode(await self._call("GET", "/v1/models"))["data"]
            self._model, most = str(cards[0]["id"]), cards[0].get("max_model_len")
        except EngineError as error:
            key = "; its key is FREERUN_TEACHER_KEY" if " answered 401" in str(error) else ""
            raise ConfigError(f"train.teacher: {error}{key}") from None
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
            raise ConfigError(f"train.teacher: {self.url} has no /v1/models: correct the URL") from None
        if isinstance(most, int) and most <= longest:
            raise ConfigError(
                f"train.teacher: {self.url} reads {most} tokens, and prompts with their answers have up to {longest}: "
                "serve it with more, or lower rollout.max_new_tokens"
            )
        await self._check_tokenizer(tokenizer)
        try:
            await self._score([tokenizer.encode(_PROBE, add_special_tokens=False)], [1])
        except TeacherRefused as error:
            raise ConfigError(
                f"train.teacher: {error}; it must give prompt_logprobs, as vLLM and `freerun serve --score` do"
            ) from None

    async def _says_that_it_is_ours(self) -> bool:
        try:
            told = msgspec.json.decode(await self._call("GET", "/health"))
        except (EngineError, msgspec.MsgspecError):
            return False
        return isinstance(told, dict) and told.get("scores") is True

    async def _check_tokenizer(self, tokenizer: Any) -> None:
        """As far as the server tells."""
        asked = {"model": self._model, "prompt": _PROBE, "add_special_tokens": False}
        try:
            theirs = msgspec.json.decode(await self._call("POST", TOKENIZE, msgspec.json.encode(asked)))["tokens"]
        except (EngineError, msgspec.MsgspecError, KeyError, TypeError):
            return
        if theirs != tokenizer.encode(_PROBE, add_special_tokens=False):
            raise ConfigError(
                f"train.teacher: {self.url} has another tokenizer than model.path: a teacher must have the same tokens"
            )

    async def read(self, samples: Sequence[Sample]) -> None:
        """Give the samples their `teacher_logprobs`, where they have a loss."""
        found = await self._patiently(samples)
        for sample, logprobs in zip(samples, found, strict=True):
            marks = sample.loss_mask.copy()
            marks[:1] = False  # nothing predicts the first
            given = np.zeros(len(sample.tokens), np.float32)
            begin = _begin(sample)
            given[begin:] = np.asarray(logprobs, np.float32)
            given[~marks] = 0.0
            sample.teacher_logprobs = given

    async def _patiently(self, samples: Sequence[Sample]) -> list[list[float]]:
        rows, begins = [sample.tokens.tolist() for sample in samples], [_begin(sample) for sample in samples]
        pause_s, give_up_s = _FIRST_PAUSE_S, time.monotonic() + self._patience_s
        while True:
            try:
                return await self._score(rows, begins)
            except TeacherRefused:
                raise
            except EngineError as error:
                if time.monotonic() > give_up_s:
                    raise EngineError(f"{error}, for {self._patience_s:g} s: start it again, then resume") from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _score(self, rows: list[list[int]], begins: list[int]) -> list[list[float]]:
        """From each row's beginning on."""
        if self._is_ours:
            reply = await self._call("POST", SCORES, msgspec.msgpack.encode(ScoreTokens(rows, begins)))
            scores: list[list[float]] = msgspec.msgpack.decode(reply, type=list[list[float]])
            return scores
        body = {"model": self._model, "prompt": rows, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        reply = await self._call("POST", COMPLETIONS, msgspec.json.encode(body))
        return await asyncio.to_thread(self._of_vllm, reply, rows, begins)

    def _of_vllm(self, reply: bytes, rows: list[list[int]], begins: list[int]) -> list[list[float]]:
        """For each prompt a choice, with a mapping for each of its tokens from tokens to log-probabilities."""
        try:
            choices = sorted(msgspec.json.decode(reply)["choices"], key=lambda choice: choice["index"])
            given = [choice["prompt_logprobs"] for choice in choices]
            return [
                [float(told[at][str(row[at])]["logprob"]) for at in range(begin, len(row))]
                for row, begin, told in zip(rows, begins, given, strict=True)
            ]
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError):
            raise TeacherRefused(f"{self.url} replied without log-probabilities of the prompt's tokens") from None

    async def _call(self, method: str, route: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/msgpack" if route == SCORES else "application/json"}
        try:
            async with self._session.request(method, self.url + route, data=body, headers=headers) as response:
                content = await response.read()
                if response.status >= 400:
                    said = " ".join(content.decode(errors="replace").split())[:200]
                    kind = TeacherRefused if response.status < 500 else EngineError
                    raise kind(f"the teacher at {self.url} answered {response.status}: {said}")
                return content
        except (TimeoutError, aiohttp.ClientError) as error:
            said = str(error) or type(error).__name__
            raise EngineError(f"the teacher at {self.url} does not answer ({said})") from None


def _begin(sample: Sample) -> int:
    """The first token with a loss, or as if there were one at the end."""
    marks = sample.loss_mask
    return max(int(marks.argmax()), 1) if marks.any() else max(len(marks) - 1, 1)
