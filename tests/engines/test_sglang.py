"""SGLang's backend, without SGLang: how its server is started, and what is refused. The contract has the rest."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from freerun.core import ConfigError, EngineError, FinishReason
from freerun.engines.base import Sampling
from freerun.engines.external.base import Launch
from freerun.engines.external.sglang import SglangBackend
from freerun.engines.external.vllm import VllmBackend
from freerun.models.shape import read_shape, shape_of
from tests.tiny import TINY, mixture, tiny_folder

DENSE = shape_of(TINY | {"head_dim": 32})
INFO = {"max_req_input_len": 500, "tp_size": 1, "enable_metrics": True, "incremental_streaming_output": False}
DONE: dict[str, Any] = {
    "index": 1,
    "output_ids": [5, 6, 7],
    "meta_info": {
        "finish_reason": {"type": "length", "length": 3},
        "output_token_logprobs": [[-1.0, 5, None], [-2.0, 6, None], [-3.0, 7, None]],
        "weight_versions": [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 3}],
        "cached_tokens": 9,
    },
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "model")


class Said:
    """A server that says what it is told to."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.asked: dict[str, Any] = {}

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response(self.info, status=self.info.get("status", 200))

    async def labelled(self, _: web.Request) -> web.Response:
        return web.json_response({"success": True})

    async def generate(self, request: web.Request) -> web.Response:
        self.asked = await request.json()
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in self.events)
        return web.Response(text=lines + "data: [DONE]\n\n", content_type="text/event-stream")


@pytest.fixture
async def said(model: Path) -> AsyncIterator[tuple[Said, SglangBackend]]:
    told, app = Said(), web.Application()
    told.info = {**INFO, "model_path": str(model)}
    app.router.add_get("/server_info", told.server_info)
    app.router.add_post("/update_weight_version", told.labelled)
    app.router.add_post("/generate", told.generate)
    async with TestServer(app) as server, SglangBackend(str(server.make_url(""))) as backend:
        yield told, backend


async def answers(backend: SglangBackend, n: int = 1, **sampling: Any) -> list[Any]:
    how = Sampling(max_new_tokens=3, **sampling)
    return [answer async for answer in backend.generate("id", [2, 3], how, n)]


def test_its_server_listens_on_the_loopback_address_alone(model: Path) -> None:
    launch = Launch(Path("python"), model, read_shape(model), 1234, "cpu", "float32", 2, 8, 300, 0.9)
    command = SglangBackend.command(launch)
    options = dict(zip(command.argv, command.argv[1:], strict=False))
    assert options["--host"] == "127.0.0.1"
    assert int(options["--context-length"]) > 300, "what fits the cache is less than what the model has"
    assert command.environment["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1
    assert "--skip-tokenizer-init" not in command.argv
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    assert "--skip-tokenizer-init" in SglangBackend.command(launch).argv


@pytest.mark.parametrize(
    ("says", "info"),
    [
        ("not an SGLang server", {"model_path": 3}),
        ("set FREERUN_ENGINE_KEY", {"status": 401}),
        ("start it with --enable-metrics", {"enable_metrics": False}),
        ("without --incremental-streaming-output", {"incremental_streaming_output": True}),
        ("no folder that this machine sees", {"model_path": "Qwen/Qwen3-0.6B"}),
    ],
)
async def test_a_server_that_cannot_be_driven_is_refused(
    said: tuple[Said, SglangBackend], model: Path, says: str, info: dict[str, Any]
) -> None:
    told, backend = said
    assert await backend.check(read_shape(model)) == 500
    told.info |= info
    with pytest.raises(ConfigError, match=says):
        await backend.check(read_shape(model))


async def test_a_server_of_another_vocabulary_is_refused(said: tuple[Said, SglangBackend]) -> None:
    _, backend = said
    with pytest.raises(ConfigError, match="vocabulary of 48 tokens"):
        await backend.check(shape_of(TINY | {"vocab_size": 64}))


async def test_an_answer_has_a_version_for_each_token(said: tuple[Said, SglangBackend]) -> None:
    told, backend = said
    told.events = [DONE | {"meta_info": {"finish_reason": None}}, DONE]
    (answer,) = await answers(backend)
    assert (answer.index, answer.finish, answer.cached) == (1, FinishReason.LENGTH, 9)
    assert answer.tokens.tolist() == [5, 6, 7]
    assert list(answer.versions) == [4, 4, 5]
    told.events = [DONE, DONE | {"index": 0}]
    assert [answer.cached for answer in await answers(backend, 2)] == [0, 0], "read once before, by the group itself"


async def test_the_models_end_tokens_go_with_each_request(said: tuple[Said, SglangBackend], model: Path) -> None:
    told, backend = said
    told.events = [DONE]
    await backend.check(read_shape(model))
    await answers(backend, stop_token_ids=(30,))
    assert told.asked["sampling_params"]["stop_token_ids"] == [30, 1]
    with pytest.raises(EngineError, match="ask for one of them"):
        await answers(backend, stop_token_ids=(30,), ignore_eos=True)


async def test_what_fails_is_told(said: tuple[Said, SglangBackend]) -> None:
    told, backend = said
    meta = DONE["meta_info"]
    for event, says in [
        ({"error": {"message": "out of memory"}}, "out of memory"),
        (DONE | {"meta_info": meta | {"weight_versions": None}}, "versions for 0"),
        (
            DONE | {"meta_info": {"finish_reason": {"type": "abort", "message": "gone", "status_code": 503}}},
            "503.*gone",
        ),
    ]:
        told.events = [event]
        with pytest.raises(EngineError, match=says):
            await answers(backend)
    told.events = []
    with pytest.raises(EngineError, match="1 of 1 answers missing"):
        await answers(backend)


async def test_a_server_that_tells_the_experts_is_asked_for_them(
    said: tuple[Said, SglangBackend], tmp_path: Path
) -> None:
    told, backend = said
    folder = tiny_folder(tmp_path / "mixture", **(mixture("qwen3_moe") | {"mlp_only_layers": []}))
    shape = read_shape(folder)
    chosen = np.arange(4 * 3 * 2).reshape(4, 3, 2) % 6
    meta = DONE["meta_info"] | {"routed_experts": b64encode(chosen.astype("<i4").tobytes()).decode()}
    told.info |= {"model_path": str(folder)}
    told.events = [DONE | {"meta_info": meta}]
    await backend.check(shape)
    assert (await answers(backend, routes=True))[0].routes is None
    assert "return_routed_experts" not in told.asked, "it was not started so"
    told.info |= {"enable_return_routed_experts": True}
    await backend.check(shape)
    (answer,) = await answers(backend, routes=True)
    assert told.asked["return_routed_experts"] is True
    assert np.array_equal(answer.routes, chosen.reshape(4, -1))
    told.events = [DONE | {"meta_info": meta | {"routed_experts": b64encode(b"1234").decode()}}]
    with pytest.raises(EngineError, match="the experts of 4 tokens in no form that is known"):
        await answers(backend, routes=True)


def test_servers_of_mixtures_are_started_to_tell_their_experts(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mixture", **mixture("mixtral"), head_dim=32)
    mixed = Launch(Path("python"), folder, read_shape(folder), 1234, "cuda", "bfloat16", 1, 8, None, 0.9)
    for launch, tells in ((mixed, True), (replace(mixed, device="cpu"), True), (replace(mixed, shape=DENSE), False)):
        assert ("--enable-return-routed-experts" in SglangBackend.command(launch).argv) is tells
        on_gpu = launch.device == "cuda" and tells
        for_vllm = VllmBackend.command(launch)
        assert ("--enable-return-routed-experts" in for_vllm.argv) is on_gpu, "its runner for that needs Triton"
        assert for_vllm.environment["VLLM_USE_V2_MODEL_RUNNER"] == str(int(on_gpu))


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [1]}, {"mlp_only_layers": [], "decoder_sparse_step": 2}])
async def test_layers_without_experts_are_refused(
    said: tuple[Said, SglangBackend], changes: dict[str, Any], tmp_path: Path
) -> None:
    told, backend = said
    folder = tiny_folder(tmp_path / "mixture", **(mixture("qwen3_moe") | changes))
    told.info |= {"model_path": str(folder)}
    launch = Launch(Path("python"), folder, read_shape(folder), 1234, "cpu", "float32", 1, 8, 300, 0.9)
    with pytest.raises(ConfigError, match=r"layers without .*: use engine\.kind=vllm or embedded"):
        SglangBackend.command(launch)
    with pytest.raises(ConfigError, match="layers without"):
        await backend.check(read_shape(folder))
