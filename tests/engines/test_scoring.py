"""A server that scores tokens: what one sequence at a time gives, in our form and in vLLM's; and what it refuses."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import ClientSession, web

from freerun.core import ConfigError, EngineError, FinishReason, Sample
from freerun.engines.listening import Where
from freerun.engines.scoring.client import TeacherClient
from freerun.engines.scoring.scorer import Scorer
from freerun.engines.scoring.server import serve_scores
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder
from freerun.models.tokenizer import load_tokenizer
from tests.architectures import random_folder
from tests.tiny import tiny_folder

ROWS = [[2, 3, 4, 5], [6], [7, 8], [9, 10, 11, 12, 13, 14, 2, 3], [2, 3, 4, 5]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("scoring") / "model")


def alone(folder: Path, row: list[int]) -> list[float]:
    decoder, tokens = load_decoder(folder), torch.tensor(row)
    with torch.no_grad():
        logits = decoder.logits(decoder(tokens, torch.arange(len(row)), PackedAttention([len(row)])))
    found: list[float] = logits.double().log_softmax(-1)[:-1].gather(1, tokens[1:, None]).squeeze(1).tolist()
    return found


@pytest.mark.parametrize("pass_tokens", [8_192, 9, 1])
def test_a_pack_gives_what_each_row_gets_alone(model: Path, pass_tokens: int) -> None:
    scorer = Scorer(model, "cpu")
    scorer._pass_tokens = pass_tokens
    for row, scores in zip(ROWS, scorer.score(ROWS), strict=True):
        assert scores == pytest.approx(alone(model, row), abs=1e-5)


def test_so_does_a_borrowed_model(tmp_path: Path) -> None:
    folder = random_folder("gemma2", tmp_path / "model")
    for row, scores in zip(ROWS, Scorer(folder, "cpu").score(ROWS), strict=True):
        assert scores == pytest.approx(alone(folder, row), abs=1e-4)


@asynccontextmanager
async def served(model: Path, **options: Any) -> AsyncIterator[str]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_scores(model, ready.set_result, Where(), "teacher", **options))
    either: list[asyncio.Future[Any]] = [ready, serving]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield ready.result()
    finally:
        serving.cancel()
        await asyncio.wait({serving})


def sample(row: list[int], begin: int) -> Sample:
    mask = [place >= begin for place in range(len(row))]
    return Sample(row, mask, [0.0] * len(row), [0 if marked else -1 for marked in mask], FinishReason.STOP)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_samples_are_read_in_our_form_and_in_vllms(
    model: Path, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(model, api_key="s3cret") as url, TeacherClient(f"{url}/v1", "s3cret") as teacher:
        await teacher.check(load_tokenizer(model), 100)
        assert teacher._is_ours, "it says so"
        teacher._is_ours = is_ours
        samples = [sample(row, begin) for row, begin in ((ROWS[0], 1), (ROWS[3], 5), ([2, 3, 4], 3))]
        samples[1].loss_mask = [False] * 5 + [True, False, True]
        await teacher.read(samples)
    for one in samples:
        given = one.teacher_logprobs
        assert given is not None
        wanted = [0.0, *alone(model, one.tokens.tolist())]
        expected = [score if marked else 0.0 for score, marked in zip(wanted, one.loss_mask, strict=True)]
        assert given.tolist() == pytest.approx(expected, abs=1e-5)


async def test_what_it_cannot_score_is_refused_in_a_line(model: Path) -> None:
    async with served(model) as url, TeacherClient(url, None) as teacher, ClientSession() as session:
        await teacher.check(load_tokenizer(model), 100)
        with pytest.raises(EngineError, match=r"answered 400: .*513 tokens are more than the model's 512 positions"):
            await teacher.read([sample([2] * 513, 1)])
        with pytest.raises(EngineError, match="there is no token 48 in a vocabulary of 48"):
            await teacher.read([sample([2, 48], 1)])
        for body in ({"prompt": "text", "prompt_logprobs": 1}, {"prompt": [2, 3]}, {"prompt": 3}):
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 400
        with pytest.raises(ConfigError, match="reads 512 tokens, and prompts with their answers have up to 600"):
            await teacher.check(load_tokenizer(model), 600)


@asynccontextmanager
async def other_server(**answers: Any) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path.strip("/").replace("/", "_"))
        return web.json_response(found, status=404 if found is None else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_what_is_no_teacher_is_said_in_a_line(model: Path) -> None:
    tokenizer, cards = load_tokenizer(model), {"data": [{"id": "m"}]}
    for answers, says in (
        ({}, "answered 404"),
        ({"v1_models": {"data": []}}, "has no /v1/models"),
        ({"v1_models": cards}, "it must give prompt_logprobs, as vLLM and `freerun serve --score` do"),
        ({"v1_models": cards, "v1_completions": {"choices": [{"index": 0, "text": ""}]}}, "without log-probabilities"),
        ({"v1_models": cards, "tokenize": {"tokens": [1, 2, 3]}}, "has another tokenizer than model.path"),
    ):
        async with other_server(**answers) as url, TeacherClient(url, None) as teacher:
            with pytest.raises(ConfigError) as refused:
                await teacher.check(tokenizer, 100)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with TeacherClient(url, None, patience_s=0.1) as teacher:
        with pytest.raises(ConfigError, match="does not answer"):
            await teacher.check(tokenizer, 100)
        with pytest.raises(EngineError, match=r"for 0\.1 s: start it again, then resume"):
            await teacher.read([sample([2, 3], 1)])


def test_vllms_reply_as_it_comes() -> None:
    """With the likeliest token beside the prompt's own, ranks and texts; prompts in any order."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        likeliest = {"40": {"logprob": -0.1, "rank": 1, "decoded_token": "y"}}
        return {str(token): {"logprob": logprob, "rank": 3, "decoded_token": "x"}} | likeliest

    choices = [
        {"index": 1, "text": "z", "prompt_logprobs": [None, entry(8, -4.0)]},
        {"index": 0, "text": "z", "prompt_logprobs": [None, entry(3, -1.0), entry(4, -2.0), entry(40, -0.1)]},
    ]
    reply = json.dumps({"choices": choices}).encode()
    teacher = TeacherClient("http://localhost", None)
    assert teacher._of_vllm(reply, [[2, 3, 4, 40], [7, 8]], [2, 1]) == [[-2.0, -0.1], [-4.0]]
