"""The binary form of the token route's answers, for clients that ask for it: one frame an answer, as each ends.

A frame is little-endian: a header (what it is, the answer's index, its number of tokens and of version runs, why it
ended, how many tokens of the prompt were in the cache, and for how many tokens it says in how many bytes which experts
they went through), then the tokens (int32), their log-probabilities (float32), a version and a count (int64) for each
run, and the experts.
Nothing in it is parsed: eight bytes a token are copied from one process to the other. The response's content type says
whether a server answers so; one that does not know the form answers in vLLM's JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from struct import Struct
from typing import Protocol

import numpy as np

from freerun.core import EngineError, FinishReason, Version
from freerun.core.nouns import Logprobs, Tokens, VersionRuns
from freerun.engines.base import Completion
from freerun.models.routes import Routes

MEDIA_TYPE = "application/vnd.freerun.tokens"

_MAGIC = b"frt2"
_HEADER = Struct("<4sIIIIIII")
_WIDEST = 2**16
"""Bytes that one token's experts may take."""
_FINISHES = tuple(FinishReason)


def encode(
    index: int,
    tokens: Sequence[int] | Tokens,
    logprobs: Sequence[float] | Logprobs,
    versions: Sequence[Version] | VersionRuns,
    finish: FinishReason,
    cached: int = 0,
    routes: Routes | None = None,
) -> bytes:
    rows, width = (0, 0) if routes is None else routes.shape
    runs = VersionRuns.of(versions).runs
    return b"".join(
        (
            _HEADER.pack(_MAGIC, index, len(tokens), len(runs), _FINISHES.index(finish), cached, rows, width),
            np.asarray(tokens, "<i4").tobytes(),
            np.asarray(logprobs, "<f4").tobytes(),
            np.array(runs, "<i8").tobytes(),
            b"" if routes is None else np.ascontiguousarray(routes).data,
        )
    )


class Reader(Protocol):
    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes; asyncio.IncompleteReadError where there are fewer."""
        ...


async def read(stream: Reader, longest: int, given: int = 0) -> AsyncIterator[Completion]:
    """The answers, until the stream ends between two of them. None has more than `longest` tokens, and their prompt has
    `given`."""
    while True:
        try:
            header = await stream.readexactly(_HEADER.size)
        except asyncio.IncompleteReadError as torn:
            if torn.partial:
                raise _torn(len(torn.partial), _HEADER.size) from None
            return
        magic, index, num_tokens, num_runs, finish, cached, rows, width = _HEADER.unpack(header)
        if magic != _MAGIC or finish >= len(_FINISHES):
            raise EngineError(
                f"a frame begins with {header.hex()}, which is no header: is it another version's engine?"
            )
        if num_tokens > longest or num_runs > num_tokens:
            raise EngineError(
                f"a frame says that it holds {num_tokens} tokens in {num_runs} runs of versions: at most {longest} "
                "tokens were asked for, and a run has at least one"
            )
        if rows and (rows != given + num_tokens - 1 or width > _WIDEST):
            raise EngineError(
                f"a frame says that it holds the experts of {rows} tokens, {width} bytes each: there are "
                f"{given + num_tokens} tokens, the last of which has gone through none yet"
            )
        size = 8 * num_tokens + 16 * num_runs + rows * width
        try:
            body = await stream.readexactly(size)
        except asyncio.IncompleteReadError as torn:
            raise _torn(len(torn.partial), size) from None
        routes = np.frombuffer(body, np.uint8, offset=size - rows * width).reshape(rows, width) if rows else None
        yield _decoded(body, index, num_tokens, num_runs, _FINISHES[finish], cached, routes)


def _decoded(
    body: bytes, index: int, num_tokens: int, num_runs: int, finish: FinishReason, cached: int, routes: Routes | None
) -> Completion:
    """The arrays are views of the body."""
    tokens = np.frombuffer(body, "<i4", num_tokens)
    logprobs = np.frombuffer(body, "<f4", num_tokens, 4 * num_tokens)
    pairs = np.frombuffer(body, "<i8", 2 * num_runs, 8 * num_tokens).reshape(-1, 2).tolist()
    if sum(count for _, count in pairs) != num_tokens or any(count <= 0 for _, count in pairs):
        counts = ", ".join(str(count) for _, count in pairs[:5])
        raise EngineError(f"a frame of {num_tokens} tokens has versions for runs of {counts}: they must add up to it")
    return Completion(index, tokens, logprobs, VersionRuns.joined((v, n) for v, n in pairs), finish, cached, routes)


def _torn(got: int, wanted: int) -> EngineError:
    return EngineError(f"an answer broke off in the middle: {got} of {wanted} bytes came")
