"""vLLM behind our front: the one file that knows its routes. Written for vLLM 0.32.

Its RL routes need the dev mode, which also opens `/collective_rpc` (any method of a worker, by name): a server that we
start listens on the loopback address alone. A class of ours inside its workers (`inside_vllm/freerun_worker.py`) loads
weights, since vLLM's own reload leaves an old head in place on CPUs, and notes log-probabilities as ours are, before
top-k and top-p.

Which experts tokens went through vLLM tells where it is started with `--enable-return-routed-experts`, for all requests
alike. That takes its second model runner, which is made of Triton kernels: so mixtures are served by that one on GPUs,
and on CPUs nothing is told. All else is served by the first.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from freerun.core import ConfigError, EngineError, Version
from freerun.engines import wire
from freerun.engines.base import Completion, Sampling
from freerun.engines.external.base import Command, Counts, Interrupt, Launch, check_shape
from freerun.engines.external.client import HttpBackend
from freerun.models.routes import RouteLayout
from freerun.models.shape import Shape

INSIDE = Path(__file__).parent / "inside_vllm"
"""The folder to put on PYTHONPATH; it holds nothing but the module that vLLM's workers import."""
WORKER = "freerun_worker.FreerunWorker"
_BLOCK_TOKENS = 32
"""In a block of the cache on CPUs, where vLLM takes 128 by default: prompts share whole blocks only."""
_SPARE_BLOCKS = 2
"""vLLM keeps one block of the cache empty."""
_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of heads for which vLLM has attention on CPUs. It would find out with the first request."""
_WHOLE = 2**30
"""More tokens than an answer has: its stream then has one chunk at its beginning and one at its end."""
_COUNT = re.compile(r"^vllm:(\w+)\{.*\} (\S+)$", re.MULTILINE)


class _Models(msgspec.Struct):
    class Card(msgspec.Struct):
        max_model_len: int

    data: list[Card]


class _Told(msgspec.Struct):
    """What `/collective_rpc` answers: one result a worker."""

    results: list[Any]


class VllmBackend(HttpBackend):
    NAME: ClassVar[str] = "vLLM"

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(url, key)
        self._version: Version = 0
        self._chunks = msgspec.json.Decoder(wire.GenerateResponse)
        self._routes: RouteLayout | None = None

    @staticmethod
    def command(launch: Launch) -> Command:
        longest = min(launch.shape.max_positions, launch.cache_tokens or launch.shape.max_positions)
        argv = [
            *(str(launch.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", "127.0.0.1", "--port", str(launch.port), "--model", str(launch.model)),
            *("--dtype", launch.dtype, "--max-num-seqs", str(launch.max_running), "--max-model-len", str(longest)),
            *("--tensor-parallel-size", str(launch.tensor_parallel), "--worker-extension-cls", WORKER),
            *("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--generation-config", "vllm"),
            *("--disable-uvicorn-access-log",),
        ]
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(INSIDE),
        }
        if launch.device == "cuda":
            argv += ["--gpu-memory-utilization", str(launch.memory_share)]
            if launch.shape.experts:
                argv.append("--enable-return-routed-experts")
                environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        else:
            _check_heads(launch.shape)
            argv += ["--enforce-eager", "--block-size", str(_BLOCK_TOKENS)]
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # it shares the processors with the rest of the run
        if launch.cache_tokens:
            argv += ["--kv-cache-memory-bytes", str(_cache_bytes(launch, launch.cache_tokens))]
        return Command(argv, environment)

    async def check(self, shape: Shape) -> int:
        url = self._http.url
        try:
            models = msgspec.json.decode(await self._http.get("/v1/models"), type=_Models)
        except (EngineError, msgspec.DecodeError) as error:
            raise ConfigError(f"engine.urls: what answers at {url} is not a vLLM server ({error})") from None
        if await self._http.status("/is_paused") == 404:
            raise ConfigError(
                f"engine.urls: the vLLM server at {url} cannot be given weights: start it with VLLM_SERVER_DEV_MODE=1, "
                "where only this machine and its like can reach it"
            )
        try:
            (raw, *_) = await self._told("freerun_model")
        except EngineError:
            raise ConfigError(
                f"engine.urls: the vLLM server at {url} lacks our worker: start it with PYTHONPATH={INSIDE}, "
                f"and --worker-extension-cls {WORKER}"
            ) from None
        check_shape(f"the vLLM server at {url}", raw, shape)
        self._routes = RouteLayout.of(shape)
        await self._http.post("/update_weight_version", {"new_version": "0"})
        return models.data[0].max_model_len

    async def generate(
        self, request_id: str, prompt: list[int], sampling: Sampling, n: int
    ) -> AsyncGenerator[Completion, None]:
        body = {
            "request_id": request_id,
            "token_ids": prompt,
            "sampling_params": _params(sampling, n),
            "stream": True,
            "cache_salt": str(self._version),  # prompts share no cache with those that older weights have read
        }
        answers, left = wire.Answers(self._routes), n
        async with aclosing(self._http.events(wire.GENERATE, body)) as events:
            async for data in events:
                for choice in self._decoded(data).choices:
                    if not sampling.routes:
                        choice.routed_experts = None
                    if completion := answers.add(choice):
                        left -= 1
                        yield completion
        if left:
            raise EngineError(f"vLLM ended a request with {left} of {n} answers missing")

    def _decoded(self, data: bytes) -> wire.GenerateResponse:
        try:
            return self._chunks.decode(data)
        except msgspec.DecodeError:
            raise EngineError(f"vLLM failed a request: {data[:500].decode(errors='replace')}") from None

    async def pause(self, interrupt: Interrupt) -> None:
        mode, clear = ("abort" if interrupt == "abort" else "keep"), str(interrupt != "keep").lower()
        await self._http.post("/pause", query={"mode": mode, "clear_cache": clear})

    async def load(self, folder: Path, version: Version) -> None:
        await self._told("freerun_load", folder=str(folder))
        await self._http.post("/update_weight_version", {"new_version": str(version)})
        self._version = version

    async def resume(self) -> None:
        await self._http.post("/resume")

    async def counts(self) -> Counts:
        found: dict[str, float] = dict.fromkeys(_COUNTED, 0.0)
        for name, value in _COUNT.findall(await self.metrics()):
            if name in found:
                found[name] += float(value)
        return Counts(*(int(found[name]) for name in _COUNTED))

    async def metrics(self) -> str:
        return (await self._http.get("/metrics")).decode()

    async def _told(self, method: str, **arguments: str) -> list[Any]:
        """Have every worker call that method."""
        reply = await self._http.post("/collective_rpc", {"method": method, "kwargs": arguments})
        return msgspec.json.decode(reply, type=_Told).results


_COUNTED = (
    "num_requests_running",
    "generation_tokens_total",
    "prompt_tokens_total",
    "prefix_cache_hits_total",
)
"""In the order of the fields of `Counts`."""


def _check_heads(shape: Shape) -> None:
    if shape.head_dim not in _CPU_HEADS:
        sizes = ", ".join(map(str, _CPU_HEADS))
        raise ConfigError(
            f"engine.kind: vLLM computes heads of {sizes} on a CPU, and model.path has heads of {shape.head_dim}: use "
            "engine.kind=embedded, or a GPU"
        )


def _params(sampling: Sampling, n: int) -> Mapping[str, Any]:
    """Every log-probability that comes back is the sampled token's; `stream_interval` keeps chunks few."""
    return {
        "n": n,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "seed": sampling.seed,
        "logprobs": 0,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "stream_interval": _WHOLE,
    }


def _cache_bytes(launch: Launch, tokens: int) -> int:
    """How large each worker's cache is to be."""
    shape, bytes_each = launch.shape, 4 if launch.dtype == "float32" else 2
    heads = -(-shape.kv_heads // launch.tensor_parallel)
    blocks = -(-tokens // _BLOCK_TOKENS) + _SPARE_BLOCKS
    return blocks * _BLOCK_TOKENS * 2 * shape.layers * heads * shape.head_dim * bytes_each
