"""`freerun bench trainer`: tokens a second of whole training steps, with random weights or those of a model folder."""

import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from freerun.bench.engine import decoder_of, shape_named
from freerun.core import Batch, ConfigError, FinishReason, Group, Sample, Task
from freerun.core.nouns import NOT_SAMPLED, VersionRuns
from freerun.machine.device import choose_device
from freerun.models.shape import Shape
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.packing import Advantage, Packed, pack

FIXED = 32
"""Micro-batches of the baseline, as in the paper."""


@dataclass(frozen=True)
class Measured:
    how: str
    tokens_per_s: float
    """In a whole step: forward, backward, optimizer."""
    logprob_tokens_per_s: float
    """In a forward pass that gives log-probabilities."""
    tflops: float
    """By 6 · parameters · tokens alone, as is the custom; of a mixture of experts, those that compute with a token."""
    memory_gib: float
    """Most that was allocated on the GPU."""


def bench_trainer(
    model: str,
    lengths: Sequence[int],
    micro_batch_tokens: int | None,
    recompute: bool,
    compare: str | None,
    steps: int,
) -> list[Measured]:
    config = TrainConfig(micro_batch_tokens=micro_batch_tokens, recompute=recompute)
    measured = [_measure(model, lengths, config, "freerun", Learner, steps)]
    if compare == "plain":
        plain = TrainConfig(micro_batch_tokens=micro_batch_tokens, recompute=True).on(choose_device(), compile=False)
        measured.append(_measure(model, lengths, plain, "recomputed, not compiled", Learner, steps))
    elif compare == "fixed":
        measured.append(_measure(model, lengths, config, f"{FIXED} micro-batches", FixedLearner, steps))
        measured.append(_measure(model, lengths, config, f"{FIXED} micro-batches, padded", PaddedLearner, steps))
    elif compare == "transformers":
        measured.append(_measure(model, lengths, config, "transformers' code", Learner, steps, borrowed=True))
    elif compare is not None:
        raise ConfigError(f"--compare {compare} is not known; it is plain, fixed or transformers")
    return measured


def lengths_of(work: str, tokens: int, seq: int, mu: float = 6.2) -> list[int]:
    """Sequences of one length, or as long-tailed as the paper's, up to so many tokens in all."""
    if work == "uniform":
        return [seq] * max(tokens // seq, 1)
    if work != "lognormal":
        raise ConfigError(f"--work {work} is not known; it is uniform or lognormal")
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(min(max(int(random.Random(len(lengths)).lognormvariate(mu, 1.0)), 32), seq))
    return lengths


class FixedLearner(Learner):
    """The baseline: as many samples in each of 32 micro-batches, as they come."""

    def _packed(
        self, indices: list[int], samples: Sequence[Sample], advantage: Sequence[Advantage], weights: Sequence[float]
    ) -> Iterator[Packed]:
        size = -(-len(indices) // FIXED)
        for start in range(0, len(indices), size):
            chosen, count = indices[start : start + size], weights[start : start + size]
            together = [self._as_it_goes(samples, chosen, i) for i in chosen]
            lengths = [len(sample.tokens) for sample in together]
            by_token = [_padded(advantage[i], length) for i, length in zip(chosen, lengths, strict=True)]
            yield pack(together, by_token, count).to(self._device)

    def _as_it_goes(self, samples: Sequence[Sample], chosen: list[int], index: int) -> Sample:
        return samples[index]


def _padded(advantage: Advantage, length: int) -> Advantage:
    """None for what was added behind the end."""
    if isinstance(advantage, float):
        return advantage
    return (*advantage, (0.0, length - sum(count for _, count in advantage)))


class PaddedLearner(FixedLearner):
    """The same, each sample padded to the longest of its micro-batch."""

    def _as_it_goes(self, samples: Sequence[Sample], chosen: list[int], index: int) -> Sample:
        sample = samples[index]
        more = max(len(samples[i].tokens) for i in chosen) - len(sample.tokens)
        return Sample(
            np.pad(sample.tokens, (0, more)), np.pad(sample.loss_mask, (0, more)),
            np.pad(sample.behavior_logprobs, (0, more)),
            VersionRuns.joined([*sample.versions.runs, (NOT_SAMPLED, more)]), sample.finish, reward=sample.reward,
        )  # fmt: skip


def _measure(
    model: str,
    lengths: Sequence[int],
    config: TrainConfig,
    how: str,
    kind: type[Learner],
    steps: int,
    borrowed: bool = False,
) -> Measured:
    """Two steps first: they compile, and make the optimizer's state."""
    gc.collect()
    chosen = choose_device()
    if chosen == "cuda":
        torch.cuda.empty_cache()
    decoder = decoder_of(model, chosen, torch.float32, "transformers" if borrowed else "auto")
    device, shape = decoder.embed.weight.device, decoder.shape
    learner = kind(decoder, config)
    for _ in range(2):
        learner.step(batch_of(shape, lengths, learner.version))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batches = [batch_of(shape, lengths, learner.version + step) for step in range(steps)]
    step_s = _seconds(device, lambda: [learner.step(batch) for batch in batches]) / steps
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    samples = batches[0].samples
    score_s = min(_seconds(device, lambda: learner.score(samples)) for _ in range(2))
    tokens = sum(lengths)
    named = shape_named(model) or shape  # which knows what of a mixture is active, whoever's code computes it
    tflops = 6 * named.active_parameters * tokens / step_s / 1e12
    return Measured(how, tokens / step_s, tokens / score_s, tflops, memory)


def _seconds(device: torch.device, work: Any) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start_s = time.monotonic()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - start_s


def batch_of(shape: Shape, lengths: Sequence[int], version: int) -> Batch:
    """Groups of two; all tokens but the first of each sequence are trained."""
    dice = random.Random(version)

    def sample(length: int) -> Sample:
        tokens = [dice.randrange(2, shape.vocab_size) for _ in range(length)]
        marks = [False] + [True] * (length - 1)
        logprobs, versions = [-12.0] * length, [version] * length
        return Sample(tokens, marks, logprobs, versions, FinishReason.STOP, reward=dice.random())

    samples = [sample(length) for length in lengths]
    pairs = [samples[i : i + 2] for i in range(0, len(samples), 2)]
    return Batch(version, [Group(i, Task(str(i), "", []), pair, version) for i, pair in enumerate(pairs)])


def show(
    bench: str, model: str, lengths: Sequence[int], measured: list[Measured], json_only: bool, **more: Any
) -> None:
    """The first against each of the others; `more` is added to the JSON line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} thread(s)"
    record = {
        "bench": bench, "model": model, "sequences": len(lengths), "tokens": sum(lengths), "longest": max(lengths),
        "device": device,
    }  # fmt: skip
    ratios = {baseline.how: measured[0].tokens_per_s / baseline.tokens_per_s for baseline in measured[1:]}
    if not json_only:
        table = Table(title=f"{model}: {len(lengths)} sequences, {sum(lengths):,} tokens a step; {device}")
        for column in ("", "tokens/s, a step", "tokens/s, log-probs", "TFLOP/s by 6·P·T", "memory"):
            table.add_column(column, justify="right")
        for m in measured:
            table.add_row(
                m.how, f"{m.tokens_per_s:,.0f}", f"{m.logprob_tokens_per_s:,.0f}", f"{m.tflops:.1f}",
                f"{m.memory_gib:.1f} GiB" if m.memory_gib else "",
            )  # fmt: skip
        Console().print(table)
        for baseline, ratio in ratios.items():
            print(f"{ratio:.2f} times {baseline}")
    print(json.dumps(record | {"runs": [asdict(m) for m in measured], "ratios": ratios} | more))
