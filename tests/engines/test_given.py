"""Engines that are given by URL: whatever is wrong with one is said in a line that names the fix, before a run begins.

Small servers stand in for those that are not what they should be.
"""

import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.engines.external.kinds import python_of
from freerun.engines.external.ours import check_ours
from freerun.engines.external.serve import serve_front
from freerun.models.shape import read_shape
from freerun.weights.subscribe import AnySubscriber
from tests.tiny import TINY, tiny_folder

Answer = Callable[[web.Request], Any]
CARD = {"object": "list", "data": [{"id": "tiny", "max_model_len": 512}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("given") / "model")


@asynccontextmanager
async def server(**answers: Any) -> AsyncIterator[str]:
    """Answers each route with that JSON, and others with 404. A function is given what was posted."""

    async def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path.strip("/").replace("/", "_"))
        if callable(found):
            found = found(await request.json())
        return web.json_response(found, status=404 if found is None else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def vllm(raw: dict[str, Any]) -> dict[str, Any]:
    """The routes of a vLLM server with a model of that `config.json`, which cannot load a folder."""

    def call(body: dict[str, Any]) -> dict[str, Any] | None:
        return {"results": [raw]} if body["method"] == "freerun_model" else None

    done = {"status": "done"}
    return {
        **{"health": {}, "v1_models": CARD, "is_paused": {"is_paused": False}, "collective_rpc": call},
        **{"pause": done, "resume": done, "update_weight_version": done},
    }


async def refusal(model: Path, url: str, kind: str = "vllm") -> str:
    """What a front says that is to drive that URL."""
    config = EngineConfig.model_validate({"kind": kind, "urls": [url]}).on("cpu")
    with pytest.raises(ConfigError) as refused:
        await serve_front(model, config, AnySubscriber(), lambda url: pytest.fail(f"it is served at {url}"))
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_a_vllm_server_that_is_not_there(model: Path) -> None:
    async with server() as url:
        pass
    assert re.search(r"no vLLM server answers at \S+: start it, or correct the URL", await refusal(model, url))


async def test_what_is_not_a_vllm_server(model: Path) -> None:
    async with server(health={}) as url:
        assert "is not a vLLM server" in await refusal(model, url)
    async with server(health={}, v1_models={"data": "none"}) as url:
        assert "is not a vLLM server" in await refusal(model, url)


async def test_a_vllm_server_that_cannot_be_driven(model: Path) -> None:
    async with server(health={}, v1_models=CARD) as url:
        assert "start it with VLLM_SERVER_DEV_MODE=1" in await refusal(model, url)
    async with server(health={}, v1_models=CARD, is_paused={}) as url:
        assert "--worker-extension-cls freerun_worker.FreerunWorker" in await refusal(model, url)


async def test_a_vllm_server_with_another_model(model: Path) -> None:
    async with server(**vllm(TINY | {"vocab_size": 50})) as url:
        assert "a vocabulary of 50 tokens, and model.path one of 48" in await refusal(model, url)
    async with server(**vllm(TINY | {"num_hidden_layers": 3})) as url:
        assert "another model than model.path (layers 3, not 2): serve that one" in await refusal(model, url)
    async with server(**vllm(TINY | {"model_type": "gemma"})) as url:
        assert "another model than model.path (family gemma, not qwen3)" in await refusal(model, url)


async def test_a_vllm_server_that_does_not_see_the_model(model: Path) -> None:
    async with server(**vllm(TINY)) as url:
        assert f"cannot load {model}: its machine must see that folder" in await refusal(model, url)


async def test_engines_of_ours(model: Path) -> None:
    shape = read_shape(model)
    async with server(health={"version": 0}, model=TINY) as url:
        await check_ours(url, None, shape)
    for answers, says in [
        ({}, "is not an engine of Freerun: correct the URL, or say by engine.kind whose it is"),
        ({"model": TINY | {"vocab_size": 50}}, "a vocabulary of 50 tokens, and model.path one of 48"),
        ({"model": TINY | {"hidden_size": 64}}, "another model than model.path"),
        ({"model": TINY, "health": {"version": 7}}, "version 7 of another run's weights: start it again"),
    ]:
        async with server(**{"health": {"version": 0}} | answers) as url:
            with pytest.raises(ConfigError, match=re.escape(says)):
                await check_ours(url, None, shape)
    with pytest.raises(ConfigError, match="nothing answers at"):
        await check_ours(url, None, shape)


async def test_an_engine_that_is_not_installed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"engine\.python: there is no Python at nowhere"):
        python_of(EngineConfig(kind="vllm", python="nowhere"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("freerun.__file__", str(tmp_path / "freerun" / "__init__.py"))
    with pytest.raises(ConfigError, match="build engines/vllm by `make engines`"):
        python_of(EngineConfig(kind="vllm"))


async def test_a_model_that_vllm_cannot_compute_on_a_cpu(model: Path, tmp_path: Path) -> None:
    """Said before the server is started, which would start all the same."""
    config = EngineConfig(kind="vllm", python=sys.executable).on("cpu")
    with pytest.raises(ConfigError, match=r"model\.path has heads of 8: use engine\.kind=embedded"):
        await serve_front(model, config, AnySubscriber(), lambda url: None, scratch=tmp_path)
