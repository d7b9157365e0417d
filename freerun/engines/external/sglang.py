"""SGLang behind our front: the one file that knows its routes. Written for SGLang 0.5.23.

Its routes for weights and pauses ask for no key unless it is started with one: a server that we start listens on the
loopback address alone. Its log-probabilities are what ours are, those among all tokens after temperature and before
top-k and top-p, as long as SGLANG_RETURN_ORIGINAL_LOGPROB is not set. It samples by seeds in its deterministic mode
alone, and then every answer of a group alike, so seeds are not passed on.
"""

import os
import re
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from freerun.core import ConfigError, EngineError, FinishReason, Version
from freerun.core.nouns import VersionRuns
from freerun.engines.base import Completion, Sampling
from freerun.engines.external.base import Command, Counts, Interrupt, Launch, check_shape
from freerun.engines.external.client import HttpBackend
from freerun.machine.machines import LOOPBACK
from freerun.models.routes import RouteLayout, Routes
from freerun.models.shape import Shape
from freerun.models.tokenizer import has_tokenizer

INSIDE = Path(__file__).parent / "inside_sglang"
"""What runs in SGLang's own environment."""
_SPARE_TOKENS = 8
"""SGLang keeps a few positions of its context and its cache for itself: it gets so many more than we use."""
_WHOLE = 2**30
"""More tokens than an answer has: its stream then has one chunk at its beginning and one at its end."""
_TOKENS = re.compile(r'^sglang:realtime_tokens_total\{.*mode="(\w+)".*\} (\S+)$', re.MULTILINE)


class _Info(msgspec.Struct):
    """What `/server_info` says of a server, as it was started."""

    model_path: str
    max_req_input_len: int
    """The most tokens of a prompt. A few less than those of a prompt and its answer together."""
    tp_size: int
    enable_metrics: bool
    incremental_streaming_output: bool
    enable_return_routed_experts: bool = False


class _Finish(msgspec.Struct):
    type: str
    message: str = ""
    status_code: int | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[float, int, str | None]] = []
    weight_versions: list[_Span] | None = None
    cached_tokens: int = 0
    routed_experts: str | None = None
    """Base64 of 32-bit numbers: for all tokens but the last, the prompt's included, by layer."""


class _Chunk(msgspec.Struct):
    """All that one answer has so far."""

    index: int = 0
    output_ids: list[int] = []
    meta_info: _Meta | None = None


class _Load(msgspec.Struct):
    num_running_reqs: int


class _Loads(msgspec.Struct):
    loads: list[_Load]


class SglangBackend(HttpBackend):
    NAME: ClassVar[str] = "SGLang"

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(url, key)
        self._chunks = msgspec.json.Decoder(_Chunk)
        self._ends: tuple[int, ...] = ()
        """The model's own end tokens."""
        self._workers = 1
        self._routes: RouteLayout | None = None
        """How it is written which experts tokens went through, where the server tells."""
        self._version: Version = 0
        self._keeps_cache = False
        """Whether running answers were paused to go on with the cache that they have."""

    @staticmethod
    def command(launch: Launch) -> Command:
        _check_layers(launch.shape)
        positions, cache = launch.shape.max_positions, launch.cache_tokens
        longest = min(positions, cache or positions) + _SPARE_TOKENS
        argv = [
            *(str(launch.python), str(INSIDE / "launch.py")),
            *("--host", LOOPBACK, "--port", str(launch.port), "--model-path", str(launch.model)),
            *("--dtype", launch.dtype, "--device", launch.device, "--tp-size", str(launch.tensor_parallel)),
            *("--max-running-requests", str(launch.max_running), "--context-length", str(longest)),
            *("--weight-version", "0", "--log-level", "warning", "--enable-metrics", "--sleep-on-idle"),
        ]
        environment = {
            "HF_HUB_OFFLINE": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # by `_SPARE_TOKENS`, where none is ever
            "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
        }
        if not has_tokenizer(launch.model):
            argv.append("--skip-tokenizer-init")
        if cache:
            argv += ["--max-total-tokens", str(cache + _SPARE_TOKENS)]
        if launch.shape.experts:
            argv.append("--enable-return-routed-experts")
        if launch.device == "cuda":
            argv += ["--mem-fraction-static", str(launch.memory_share)]
        else:
            argv.append("--disable-overlap-schedule")  # it would overlap the CPU's work with the CPU's
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = _cores(launch.tensor_parallel)
        return Command(argv, environment)

    async def check(self, shape: Shape) -> int:
        url = self._http.url
        if await self._http.status("/server_info") == 401:
            raise ConfigError(
                f"engine.urls: the SGLang server at {url} wants its API key: set FREERUN_ENGINE_KEY to that"
            )
        try:
            info = msgspec.json.decode(await self._http.get("/server_info"), type=_Info)
        except (EngineError, msgspec.DecodeError) as error:
            raise ConfigError(f"engine.urls: what answers at {url} is not an SGLang server ({error})") from None
        server = f"the SGLang server at {url}"
        if not info.enable_metrics:
            raise ConfigError(f"engine.urls: {server} does not count its tokens: start it with --enable-metrics")
        if info.incremental_streaming_output:
            raise ConfigError(
                f"engine.urls: {server} sends answers in parts: start it without --incremental-streaming-output"
            )
        config = Path(info.model_path) / "config.json"
        if not config.is_file():
            raise ConfigError(
                f"engine.urls: {server} serves {info.model_path}, which is no folder that this machine sees: start it "
                "with model.path's folder as its --model-path"
            )
        check_shape(server, msgspec.json.decode(config.read_bytes(), type=dict[str, Any]), shape)
        _check_layers(shape)
        self._ends, self._workers = shape.eos_token_ids, info.tp_size
        self._routes = RouteLayout.of(shape) if info.enable_return_routed_experts else None
        await self._label(0)
        return min(shape.max_positions, info.max_req_input_len)

    async def _label(self, version: Version) -> None:
        """Returns when the scheduler has seen it, and with it all that it was sent before."""
        await self._http.post("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})
        self._version = version

    async def generate(
        self, request_id: str, prompt: list[int], sampling: Sampling, n: int
    ) -> AsyncGenerator[Completion, None]:
        body = {
            "rid": request_id,
            "input_ids": prompt,
            "extra_key": str(self._version),  # prompts share no cache with those that older weights have read
            "sampling_params": self._params(sampling, n),
            "return_logprob": True,
            "stream": True,
        }
        if sampling.routes and self._routes:
            body["return_routed_experts"] = True
        left = n
        async with aclosing(self._http.events("/generate", body)) as events:
            async for data in events:
                if completion := self._ended(data, n, len(prompt)):
                    left -= 1
                    yield completion
        if left:
            raise EngineError(f"SGLang ended a request with {left} of {n} answers missing")

    def _params(self, sampling: Sampling, n: int) -> Mapping[str, Any]:
        """The model's end tokens are named with each request: which they are is the run's to say."""
        if sampling.ignore_eos and sampling.stop_token_ids:
            raise EngineError("SGLang cannot ignore the model's end token and heed stop_token_ids: ask for one of them")
        return {
            "n": n,
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop": list(sampling.stop),
            "stop_token_ids": [*sampling.stop_token_ids, *self._ends],
            "ignore_eos": sampling.ignore_eos,
            "skip_special_tokens": False,
            "stream_interval": _WHOLE,
        }

    def _ended(self, data: bytes, n: int, given: int) -> Completion | None:
        """The answer that a chunk ends, if it does. How much of the prompt was cached is known of single answers:
        for several, SGLang reads the prompt once before the first of them."""
        try:
            chunk = self._chunks.decode(data)
            meta = chunk.meta_info
            if meta is None:
                raise msgspec.ValidationError
        except msgspec.DecodeError:
            raise EngineError(f"SGLang failed a request: {data[:500].decode(errors='replace')}") from None
        finish = meta.finish_reason
        if finish is None:
            return None
        if finish.type == FinishReason.ABORT and finish.status_code is not None:
            raise EngineError(f"SGLang failed a request ({finish.status_code}): {finish.message}")
        tokens, logprobs = chunk.output_ids, [logprob for logprob, *_ in meta.output_token_logprobs]
        versions = VersionRuns.joined((int(span.version), span.end - span.start) for span in meta.weight_versions or ())
        if not len(tokens) == len(logprobs) == len(versions):
            raise EngineError(
                f"SGLang gave an answer of {len(tokens)} tokens with {len(logprobs)} log-probabilities and versions "
                f"for {len(versions)}"
            )
        cached = meta.cached_tokens if n == 1 else 0
        routes = self._routed(meta.routed_experts, given + len(tokens) - 1) if meta.routed_experts else None
        return Completion(chunk.index, tokens, logprobs, versions, FinishReason(finish.type), cached, routes)

    def _routed(self, text: str, tokens: int) -> Routes | None:
        if not self._routes:
            return None
        try:
            numbers = np.frombuffer(b64decode(text, validate=True), "<i4")
            return self._routes.encoded(numbers.reshape(tokens, -1, self._routes.per_token))
        except ValueError as error:
            raise EngineError(f"SGLang told the experts of {tokens} tokens in no form that is known: {error}") from None

    async def pause(self, interrupt: Interrupt) -> None:
        """Retracted requests wait, and read their tokens again when they go on. What is aborted ends with the step in
        progress, and before the pause: SGLang forgets the newest tokens of those that it aborts while they wait."""
        if interrupt == "abort":
            await self._http.post("/abort_request", {"abort_all": True})
            await self._label(self._version)
        self._keeps_cache = interrupt == "keep"
        await self._http.post("/pause_generation", {"mode": "in_place" if self._keeps_cache else "retract"})
        await self._label(self._version)

    async def load(self, folder: Path, version: Version) -> None:
        body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": not self._keeps_cache}
        await self._http.post("/update_weights_from_disk", body)
        self._version = version
        if self._workers > 1:
            await self._meet()

    async def _meet(self) -> None:
        """Until every worker has loaded: SGLang answers when the first has, while the others still read the files. A
        session for weights begins when all are there; this one is for no weights at all."""
        await self._http.post("/begin_weight_update", {"selector": "draft"})
        await self._http.post("/end_weight_update", {})

    async def resume(self) -> None:
        await self._http.post("/continue_generation", {})

    async def counts(self) -> Counts:
        """Without the first token of each answer, which SGLang does not count as it comes. What is read again after an
        update counts as read."""
        tokens = {"decode": 0.0, "prefill_compute": 0.0, "prefill_cache": 0.0}
        for mode, count in _TOKENS.findall(await self.metrics()):
            tokens[mode] += float(count)
        loads = msgspec.json.decode(await self._http.get("/v1/loads", {"include": "core"}), type=_Loads).loads
        return Counts(
            running=sum(load.num_running_reqs for load in loads),
            tokens=int(tokens["decode"]),
            prompt_tokens=int(tokens["prefill_compute"] + tokens["prefill_cache"]),
            reused_tokens=int(tokens["prefill_cache"]),
        )

    async def metrics(self) -> str:
        return (await self._http.get("/metrics")).decode()


def _check_layers(shape: Shape) -> None:
    """SGLang does not look at what says that a layer of a Qwen mixture has none, and computes it with weights that are
    in no file."""
    if shape.raw.get("mlp_only_layers") or (shape.raw.get("decoder_sparse_step") or 1) > 1:
        raise ConfigError(
            "engine.kind: SGLang gives experts to every layer, and model.path has layers without (mlp_only_layers, "
            "decoder_sparse_step in its config.json): use engine.kind=vllm or embedded"
        )


def _cores(workers: int) -> str:
    """Which processor cores each worker may use: those that we may, dealt out. Without it SGLang wants a NUMA node for
    each."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(len(cores) // workers, 1)
    return "|".join(",".join(map(str, cores[rank * share :][:share] or cores)) for rank in range(workers))
