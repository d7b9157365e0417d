"""Engines of our own that run already, `freerun serve`, by URL: a run learns with one, and refuses what is not one."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from freerun.core import ConfigError
from freerun.models.tiny import make_model
from freerun.run import training
from freerun.run.child import SERVER_KEY
from tests.run.test_train import prepared

KEY = "a-key-of-this-test"


@asynccontextmanager
async def served(model: Path, host: str = "127.0.0.1", key: str | None = KEY) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "freerun.cli.main", "serve", str(model), "--port", "0", "--host", host),
        env=os.environ | ({"FREERUN_API_KEY": key} if key else {}),
        stdout=PIPE,
    )
    try:
        assert process.stdout
        line = (await process.stdout.readline()).decode()
        yield line.split(" at ")[1].split("/v1")[0]
    finally:
        process.kill()
        await process.wait()


async def test_a_run_with_an_engine_that_runs_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_KEY, KEY)
    run = prepared(tmp_path, "control.steps=5", "control.max_staleness=1")
    make_model(tmp_path / "another", "abcdef>", seed=2, hidden=32)
    make_model(tmp_path / "larger", "abcdefg>", seed=1, hidden=32)
    async with served(tmp_path / "model") as url:
        outcome = await training.train(prepared(tmp_path, "control.steps=5", f"engine.urls=[{url}]"))
        assert len(outcome.steps) == 5
        worst = max(step.trainer.get("engine_mismatch_max", 0.0) for step in outcome.steps)
        assert worst < 1e-3, "it took the trainer's weights"
        with pytest.raises(ConfigError, match="has version 5 of another run's weights: start it again"):
            await training.train(prepared(tmp_path, "name=again", f"engine.urls=[{url}]"))
        monkeypatch.setenv(SERVER_KEY, "a wrong one")
        with pytest.raises(ConfigError, match="wants its API key: set FREERUN_ENGINE_KEY"):
            await training.train(prepared(tmp_path, "name=keyless", f"engine.urls=[{url}]"))
        monkeypatch.setenv(SERVER_KEY, KEY)
    with pytest.raises(ConfigError, match="nothing answers at"):
        await training.train(prepared(tmp_path, "name=nobody", f"engine.urls=[{url}]"))
    for model, why in (("another", "has another model than model.path"), ("larger", "has a vocabulary of")):
        async with served(tmp_path / model) as url:
            with pytest.raises(ConfigError, match=why):
                await training.train(prepared(tmp_path, f"name={model}", f"engine.urls=[{url}]"))
    assert run.config.engine.urls == ()


async def test_nobody_changes_an_engine_that_is_open_to_others_without_a_key(tmp_path: Path) -> None:
    make_model(tmp_path / "model", "abcdef>", seed=1, hidden=32)
    async with served(tmp_path / "model", host="0.0.0.0", key=None) as url, aiohttp.ClientSession() as session:
        here = url.replace("0.0.0.0", "127.0.0.1")
        for route in ("/update_weights", "/pause", "/resume"):
            async with session.post(here + route, json={}) as response:
                assert response.status == 404, route
        async with session.get(f"{here}/health") as response:
            assert response.status == 200
