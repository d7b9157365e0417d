"""The binary form: what was written is read, and what was not written whole is an error that says so."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core import EngineError, FinishReason
from freerun.engines import frames
from freerun.engines.base import Completion

token = st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 0, width=32), st.integers(0, 3))
answers = st.lists(st.tuples(st.lists(token, max_size=20), st.sampled_from(FinishReason)), max_size=4)
HEADER = 32


def encoded(index: int, answer: tuple[list[tuple[int, float, int]], FinishReason]) -> bytes:
    tokens, finish = answer
    logprobs, versions = [logprob for _, logprob, _ in tokens], [version for *_, version in tokens]
    return frames.encode(index, [token for token, *_ in tokens], logprobs, versions, finish, cached=16 * index)


def read(data: bytes, longest: int = 20, given: int = 0) -> list[Completion]:
    async def read_all() -> list[Completion]:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        return [completion async for completion in frames.read(stream, longest, given)]

    return asyncio.run(read_all())


@given(answers)
def test_what_is_written_is_read(written: list[Any]) -> None:
    found = read(b"".join(encoded(index, answer) for index, answer in enumerate(written)))
    assert [completion.index for completion in found] == list(range(len(written)))
    for completion, (tokens, finish) in zip(found, written, strict=True):
        assert list(zip(completion.tokens, completion.logprobs, completion.versions, strict=True)) == tokens
        assert completion.finish is finish
        assert completion.cached == 16 * completion.index


@given(answers.filter(bool), st.data())
def test_a_stream_that_breaks_off_is_noticed(written: list[Any], data: st.DataObject) -> None:
    whole = [encoded(index, answer) for index, answer in enumerate(written)]
    stream = b"".join(whole)
    ends = np.cumsum([0, *map(len, whole)])
    cut = data.draw(st.integers(1, len(stream) - 1).filter(lambda place: place not in ends))
    with pytest.raises(EngineError, match=r"an answer broke off in the middle: \d+ of \d+ bytes came"):
        read(stream[:cut])


def frame(tokens: int = 3, runs: int = 1) -> bytearray:
    return bytearray(frames.encode(0, [5] * tokens, [-1.0] * tokens, [runs] * tokens, FinishReason.STOP))


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(EngineError, match="which is no header"):
        read(b'data: {"choices": [{"index": 0}]}\n\n')
    unknown_finish = frame()
    unknown_finish[16] = 9
    with pytest.raises(EngineError, match="which is no header"):
        read(bytes(unknown_finish))


def test_more_tokens_than_were_asked_for_are_refused_before_they_come() -> None:
    with pytest.raises(EngineError, match="holds 21 tokens in 1 runs of versions: at most 20 tokens were asked for"):
        read(bytes(frame(tokens=21)[:HEADER]))
    too_many_runs = frame()
    too_many_runs[12:16] = (4).to_bytes(4, "little")
    with pytest.raises(EngineError, match="holds 3 tokens in 4 runs"):
        read(bytes(too_many_runs))


@pytest.mark.parametrize("count", [2, 4, -3])
def test_versions_must_add_up_to_the_tokens(count: int) -> None:
    wrong = frame()
    wrong[-8:] = count.to_bytes(8, "little", signed=True)
    with pytest.raises(EngineError, match=f"a frame of 3 tokens has versions for runs of {count}: they must add up"):
        read(bytes(wrong))


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 40))
def test_the_experts_of_prompt_and_answer_come_along(tokens: int, prompt: int, width: int) -> None:
    routes = np.arange((tokens + prompt - 1) * width).astype(np.uint8).reshape(-1, width)
    parts = [5] * tokens, [-1.0] * tokens, [2] * tokens, FinishReason.STOP
    whole = frames.encode(0, *parts, routes=routes) + frames.encode(1, *parts)
    with_routes, without = read(whole, given=prompt)
    assert with_routes.routes is not None
    assert np.array_equal(with_routes.routes, routes) or not len(routes)
    assert without.routes is None
    assert list(with_routes.versions) == list(without.versions) == [2] * tokens


def test_experts_of_more_tokens_than_there_are_are_refused() -> None:
    routes = np.zeros((9, 4), np.uint8)
    frame = frames.encode(0, [5] * 3, [-1.0] * 3, [0] * 3, FinishReason.STOP, routes=routes)
    with pytest.raises(
        EngineError, match="the experts of 9 tokens, 4 bytes each: there are 7 tokens, the last of which"
    ):
        read(frame[:HEADER], given=4)
