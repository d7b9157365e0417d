"""`freerun bench engine`: how fast the embedded engine samples, with random weights of a shape, or a model folder."""

import gc
import json
import random
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from freerun.bench.likelihoods import Answered, logprobs_apart, spread
from freerun.core import ConfigError
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig, Weights
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.memory import cache_for
from freerun.machine.device import Device, choose_device
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder
from freerun.models.fp8 import round_layers
from freerun.models.own import random_decoder
from freerun.models.shape import Backend, Shape, shape_of

SHAPES = {
    "4m": (4, 256, 4, 2, 64, 768, 4_096),
    "135m": (30, 576, 9, 3, 64, 1536, 49_152),
    "0.6b": (28, 1024, 16, 8, 128, 3072, 151_936),
    "1.5b": (28, 1536, 12, 2, 128, 8960, 151_936),
    "7b": (28, 3584, 28, 4, 128, 18_944, 152_064),
    "8b": (36, 4096, 32, 8, 128, 12_288, 151_936),
    "32b": (64, 5120, 64, 8, 128, 25_600, 151_936),
    "8m-a3m": (4, 256, 4, 2, 64, 128, 4_096, 16, 4),
    "1b-a0.3b": (24, 1024, 16, 8, 64, 512, 49_152, 32, 4),
}
"""Layers, hidden, heads, key/value heads, head dimension, feed-forward, vocabulary. Of mixtures also: experts of a
layer, and how many of them a token goes through."""
_UNTIED = ("7b", "8b", "32b")
"""Those whose output head is not the embedding, as in Qwen2.5-7B, Qwen3-8B and Qwen3-32B, whose shapes they have."""
_JUDGED = 16
"""Answers whose log-probabilities are compared."""


@dataclass(frozen=True)
class Work:
    """Requests of one prompt length, their answers of forced lengths."""

    prompt: int
    lengths: list[int]
    slots: int

    @classmethod
    def of(cls, kind: str, requests: int, tokens: int, prompt: int, slots: int) -> "Work":
        if kind == "uniform":
            return cls(prompt, [tokens] * requests, slots)
        if kind == "lognormal":
            drawn = (int(random.Random(i).lognormvariate(6.2, 0.8)) for i in range(requests))
            return cls(prompt, [min(max(length, 32), 4096) for length in drawn], slots)
        raise ConfigError(f"--work {kind} is not known; it is uniform or lognormal")


@dataclass(frozen=True)
class Measured:
    engine: str
    tokens: int
    tokens_per_s: float
    first_token_s: float
    step_ms: float
    host_ms: float
    """What the host did in a step besides waiting for the device, which may have been busy all the same."""
    floor_tokens_per_s: float
    """What reading weights and cache at the measured bandwidth would allow."""
    apart: float | None = None
    """Log-probabilities of sampled tokens against those by the weights as they came: the mean absolute difference."""


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)


def bench_engine(
    model: str, work: Work, dtype: str, burst: int, baseline: str | None, weights: Weights = "same"
) -> list[Measured]:
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype} is not known; it is float32 or bfloat16")
    decoder = decoder_of(model, choose_device(), getattr(torch, dtype))
    if weights == "fp8":
        if model in SHAPES:
            spread(decoder)  # or all tokens would be as likely, by whatever weights
        narrow = deepcopy(decoder)
        round_layers(narrow)
        measured = [_measure(narrow, work, dtype, burst, decoder), _measure(decoder, work, dtype, burst, decoder)]
        measured[0] = replace(measured[0], engine="freerun, fp8")
    else:
        measured = [_measure(decoder, work, dtype, burst)]
    if baseline == "transformers":
        measured.append(_transformers(decoder, work))
    elif baseline is not None:
        raise ConfigError(f"--against {baseline} is not known; it is transformers")
    return measured


def shape_named(model: str, positions: int = 8_192) -> Shape | None:
    """The shape of that name; None when there is none."""
    if model not in SHAPES:
        return None
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, *experts = SHAPES[model]
    raw: dict[str, Any] = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": ffn, "tie_word_embeddings": model not in _UNTIED,
        "max_position_embeddings": positions, "eos_token_id": 1,
    }  # fmt: skip
    if experts:
        count, per_token = experts
        raw |= {
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": count,
            "num_experts_per_tok": per_token, "moe_intermediate_size": ffn, "norm_topk_prob": True,
        }  # fmt: skip
    return shape_of(raw)


def decoder_of(model: str, device: str, dtype: torch.dtype, backend: Backend = "auto") -> Decoder:
    shape = shape_named(model)
    if shape is not None and backend == "transformers":
        from freerun.models.borrowed import random_borrowed  # transformers takes seconds

        with torch.device(device):
            return random_borrowed(shape_of(shape.raw, backend=backend), dtype=dtype)
    if shape is not None:
        return random_decoder(shape, device, dtype)
    if not Path(model).is_dir():
        raise ConfigError(f"--model {model} is neither a folder nor one of {', '.join(SHAPES)}")
    return load_decoder(Path(model), dtype, device, backend)


def _measure(decoder: Decoder, work: Work, dtype: str, burst: int, judge: Decoder | None = None) -> Measured:
    """The work twice: the first time compiles kernels and captures graphs. `judge`: whom log-probabilities are compared
    with; then nobody guesses how answers go on, since a policy that is sure of something repeats itself."""
    device: Device = "cuda" if decoder.embed.weight.is_cuda else "cpu"
    longest = cache_for(work.prompt + max(work.lengths), 64, burst)
    needed = min(work.slots, len(work.lengths)) * longest
    config = EngineConfig.model_validate(
        {
            "max_running": work.slots,
            "cache_tokens": None if device == "cuda" and judge is None else needed,
            "dtype": dtype,
        }
    )
    engine = EmbeddedEngine(decoder, config.on(device, step_tokens=16_384, burst=burst), guesses=judge is None)
    _run(engine, decoder.shape, work, "warm-up")
    waited_s, tokens = engine.waited_s, engine.tokens
    wall_s, first_s, answers = _run(engine, decoder.shape, work, "measured")
    tokens = engine.tokens - tokens
    host_s = wall_s - (engine.waited_s - waited_s) if device == "cuda" else 0.0
    del engine  # its cache may fill a GPU, and the bandwidth is measured with some of that
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    passes = tokens / _mean_running(work)
    return Measured(
        "freerun",
        tokens,
        tokens / wall_s,
        first_s,
        1e3 * wall_s / passes,
        1e3 * host_s / passes,
        tokens / floor_s(decoder, work, passes),
        logprobs_apart(judge, answers[:_JUDGED]) if judge else None,
    )


def _run(engine: EmbeddedEngine, shape: Shape, work: Work, name: str) -> tuple[float, float, list[Answered]]:
    """How long it took, when the first token was there, and all answers."""
    dice, answers = random.Random(name), list[Answered]()
    prompts = [[dice.randrange(2, shape.vocab_size) for _ in range(work.prompt)] for _ in work.lengths]
    for index, (prompt, length) in enumerate(zip(prompts, work.lengths, strict=True)):
        engine.submit(f"{name}-{index}", prompt, Sampling(max_new_tokens=length, seed=index, ignore_eos=True), 1)
    before, first_s = engine.tokens, None
    start_s = time.monotonic()
    while engine.has_work:
        answers += [(prompts[int(id.rpartition("-")[2])], answer) for id, answer in engine.step()]
        if first_s is None and engine.tokens > before:
            first_s = time.monotonic() - start_s
    return time.monotonic() - start_s, first_s or 0.0, answers


def _mean_running(work: Work) -> float:
    """Sequences decoded together, on average, if slots are refilled at once."""
    return min(work.slots, sum(work.lengths) / max(work.lengths), len(work.lengths))


def floor_s(decoder: Decoder, work: Work, passes: float) -> float:
    """Weights once a pass, and for each token the cache of all before it, at the bandwidth of a large copy."""
    weights = sum(p.nbytes for p in decoder.parameters())
    shape, size = decoder.shape, decoder.embed.weight.element_size()
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * size
    read = sum(length * work.prompt + length * (length + 1) // 2 for length in work.lengths)
    return (passes * weights + read * per_token) / bandwidth(decoder.embed.weight.device)


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, counting read and written."""
    count = 2**29 if device.type == "cuda" else 2**25
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        _finish(device)
        start_s = time.monotonic()
        target.copy_(source)
        _finish(device)
        best = max(best, 2 * source.nbytes / (time.monotonic() - start_s))
    return best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _transformers(decoder: Decoder, work: Work) -> Measured:
    """The baseline: transformers' `generate` on the same weights, all requests as one batch, to the longest length."""
    from freerun.bench.transformers_baseline import generate_time

    batch = min(len(work.lengths), work.slots)
    first_s, wall_s = generate_time(decoder, batch, work.prompt, max(work.lengths[:batch]))
    tokens = sum(work.lengths[:batch])
    return Measured(
        "transformers generate", tokens, tokens / wall_s, first_s, 1e3 * wall_s / max(work.lengths[:batch]), 0.0, 0.0
    )


def show(model: str, dtype: str, work: Work, measured: list[Measured], json_only: bool) -> None:
    record: dict[str, Any] = {"bench": "engine", "model": model, "dtype": dtype, "requests": len(work.lengths)}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} thread(s)"
    if not json_only:
        table = Table(
            title=f"{model}, {dtype}, {len(work.lengths)} requests, {sum(work.lengths):,} tokens, prompts of "
            f"{work.prompt}, log-probabilities on; {device}"
        )
        judged = any(m.apart is not None for m in measured)
        columns = ["", "tokens/s", "of the memory floor", "first token", "step", "host a step"]
        for column in columns + ["mean |Δ log-prob|"] * judged:
            table.add_column(column, justify="right")
        for m in measured:
            share = f"{m.tokens_per_s / m.floor_tokens_per_s:.0%}" if m.floor_tokens_per_s else ""
            table.add_row(
                m.engine, f"{m.tokens_per_s:,.0f}", share, f"{m.first_token_s:.2f} s", f"{m.step_ms:.2f} ms",
                f"{m.host_ms:.2f} ms", *([] if m.apart is None else [f"{m.apart:.4f}"]),
            )  # fmt: skip
        Console().print(table)
        if len(measured) > 1:
            print(f"{measured[0].tokens_per_s / measured[1].tokens_per_s:.2f} times {measured[1].engine}")
    print(json.dumps(record | {"device": device, "runs": [asdict(m) for m in measured]}))
