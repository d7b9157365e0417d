"""What the contract of engines is tested with: an engine of some kind as a process, and the weights that it should
have."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from torch import Tensor

from freerun.core import Version
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import EngineConfig, OnUpdate
from freerun.engines.http import HttpEngine
from freerun.machine.machines import LOOPBACK
from freerun.machine.parent import RUN_KEY
from freerun.machine.processes import Processes
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import save_decoder
from freerun.models.decoder import Decoder
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.run.child import EngineSettings
from freerun.weights.shm import ShmPublisher
from tests.engines.test_embedded import recomputed
from tests.tiny import tiny_decoder

TESTED = "FREERUN_TEST_ENGINES"
"""The environment variable that names the engines of other makers to test, such as `vllm,sglang`."""
TOLERANCE = {"embedded": 2e-4, "vllm": 0.06, "sglang": 0.06}
"""How far a log-probability may lie from the trainer's own in float32. The embedded engine computes in float32 here;
the others in bfloat16, of which one step near 1 is 0.008."""
KEY = "the key of this run"
CHARACTERS = "abcdefghijklmnopqrstuvwxyz>+=0123456789 .?"
SHAPE: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
}
"""A size of head that vLLM's CPU kernels know, and heads for two workers."""
POSITIONS = 4096


@dataclass(frozen=True)
class Variant:
    kind: str
    tied: bool
    tensor_parallel: int = 1

    def __str__(self) -> str:
        parallel = f"-on-{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.kind}-{'tied' if self.tied else 'untied'}{parallel}"

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "embedded" else "bfloat16"

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.kind]

    @property
    def long(self) -> int:
        """Tokens of an answer that takes long enough to look at it meanwhile: a look at another maker's server takes
        longer."""
        return 500 if self.kind == "embedded" else 3500

    @property
    def changes(self) -> dict[str, Any]:
        """To the tiny model."""
        return SHAPE | {"tie_word_embeddings": self.tied, "max_position_embeddings": POSITIONS}

    def weights(self, version: Version) -> Decoder:
        """Those of that version, the same in bfloat16 and in float32."""
        decoder = tiny_decoder(version, std=0.12, **self.changes)
        for parameter in decoder.parameters():
            parameter.data = parameter.data.bfloat16().float()
        return decoder

    @asynccontextmanager
    async def server(self, model: Path) -> AsyncIterator[dict[str, Any]]:
        """A server of that model which runs before the engine does, as the settings that name it: here none."""
        yield {}


@dataclass
class Contract:
    """An engine under test, and how to drive it."""

    variant: Variant
    engine: HttpEngine
    processes: Processes
    folder: Path
    publisher: ShmPublisher
    version: Version = 0
    published: WeightsHandle | None = None
    """The newest."""
    weights: dict[Version, Decoder] = field(default_factory=dict)

    async def update(self, on_update: OnUpdate | None = None) -> UpdateReport:
        """To the next version."""
        version = self.version + 1
        self.weights[version] = self.variant.weights(version)
        self.published = self.publisher.publish(version, dict(self.weights[version].named_parameters()))
        self.engine.on_update = on_update
        report = await self.engine.update_weights(self.published)
        self.version = version
        return report

    def ask(self, prompt: list[int], sampling: Sampling, n: int = 1) -> "asyncio.Task[list[Completion]]":
        return asyncio.create_task(collect(self.engine.generate(prompt, sampling, n)))

    async def control(self, route: str) -> None:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(self.engine.url + route) as response,
        ):
            assert response.status == 200

    async def until(self, condition: Callable[[EngineStats], bool], asking: "asyncio.Task[Any] | None" = None) -> None:
        """Ask the engine itself until it says so, and before those answers are there."""
        while not condition(await self.engine.stats()):
            assert not (asking and asking.done()), "the answers were faster than we could look"

    async def sampled(self, more: int, asking: "asyncio.Task[Any]") -> None:
        """Until those answers have about so many more tokens each: for as long as another one of so many takes. To look
        at a server's counters can take longer than the answers do, where its workers have all cores."""
        await self.ask([2], Sampling(max_new_tokens=more, seed=7, ignore_eos=True))
        assert not asking.done(), "the answers were faster than another one"

    def off(self, prompt: list[int], answer: Completion, temperature: float = 1.0) -> float:
        """How far the answer's log-probabilities lie from the trainer's, each token by the weights of its version."""
        tokens, versions = answer.tokens.tolist(), torch.tensor(list(answer.versions))
        found, furthest = torch.tensor(answer.logprobs), 0.0
        for version in set(answer.versions):
            expected = recomputed(self.weights[version], prompt, tokens, temperature)
            furthest = max(furthest, (found - expected)[versions == version].abs().max().item())
        return furthest

    def all_logprobs(self, prompt: list[int], answer: Completion) -> Tensor:
        """Those of every token of the vocabulary, at each place of the answer, by the newest weights."""
        sequence, decoder = torch.tensor(prompt + answer.tokens.tolist()), self.weights[self.version]
        with torch.no_grad():
            hidden = decoder(sequence, torch.arange(len(sequence)), PackedAttention([len(sequence)]))
            return decoder.logits(hidden)[len(prompt) - 1 : -1].float().log_softmax(-1)

    @property
    def tolerance(self) -> float:
        return self.variant.tolerance

    @property
    def long(self) -> int:
        return self.variant.long


async def collect(answers: AsyncIterator[Completion]) -> list[Completion]:
    return sorted([answer async for answer in answers], key=lambda answer: answer.index)


@asynccontextmanager
async def contract(variant: Variant, folder: Path) -> AsyncIterator[Contract]:
    """The folder is for model, log and weights; it should be in shared memory."""
    model, first = folder / "model", variant.weights(0)
    save_decoder(first, model)
    write_tokenizer(model, {token: index for index, token in enumerate([PAD, EOS, *CHARACTERS])})
    async with started(variant, folder) as (processes, engine):
        yield Contract(variant, engine, processes, folder, ShmPublisher(folder), weights={0: first})


@asynccontextmanager
async def started(variant: Variant, folder: Path) -> AsyncIterator[tuple[Processes, HttpEngine]]:
    """An engine with the model of that folder."""
    async with variant.server(folder / "model") as given:
        how = {"kind": variant.kind, "dtype": variant.dtype, "tensor_parallel": variant.tensor_parallel}
        async with serving(folder / "model", folder, **how, **given) as running:
            yield running


@asynccontextmanager
async def serving(model: Path, folder: Path, **how: Any) -> AsyncIterator[tuple[Processes, HttpEngine]]:
    """An engine of that configuration with that model; its log is in the folder."""
    config = EngineConfig.model_validate({"cache_tokens": 16 * POSITIONS, "max_running": 16} | how)
    settings = EngineSettings(str(model), config.on("cpu").plain(), LOOPBACK, str(folder))
    async with Processes("freerun.run.child", folder) as processes:
        url = await processes.start("engine 0", "engine", settings, 1, {RUN_KEY: KEY})
        async with HttpEngine(url, KEY) as engine:
            yield processes, engine


def is_wanted(kind: str) -> bool:
    return kind == "embedded" or kind in os.environ.get(TESTED, "").split(",")


def where_wanted(kind: str, value: Any, name: str) -> Any:
    """A parameter of a test, which is left out where that engine is not to be tested."""
    skipped = pytest.mark.skip(reason=f"needs {kind}: make engines, then make test-engines")
    return pytest.param(value, marks=[] if is_wanted(kind) else [skipped], id=name)


def is_alive(pid: int) -> bool:
    """Whether it still runs; one that has ended and that nobody has asked about does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
