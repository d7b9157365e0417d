"""`freerun bench speculation`: what guessing how answers go on saves where few of them run, on real answers.

The same model answers the same tasks twice, with other seeds. The second pass is measured: once without guesses and
once with them, batch by batch in turns, so both see the same machine. What is sampled is the same, which is counted.
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from freerun.config.load import load_section
from freerun.core import ConfigError, Task
from freerun.data.config import DataConfig
from freerun.data.tasks import load_tasks
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.drafts import Source
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.machine.device import choose_device
from freerun.models.checkpoint import load_decoder
from freerun.models.decoder import Decoder
from freerun.models.tokenizer import load_tokenizer

STDERR = Console(stderr=True)


@dataclass
class Pass:
    """What one way came to."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    answers: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Speculated:
    model: str
    rows: int
    tasks: int
    temperature: float
    plain_tokens_per_s: float
    guessing_tokens_per_s: float
    ratio: float
    tokens_a_step: float
    """That an answer gets in a step, on average; 1 without guesses."""
    same_share: float
    """The share of the answers that are the same to the last token. Others differ by rounding."""
    guessed: dict[str, int]
    right: dict[str, int]


def bench_speculation(
    model: Path, data: list[str], rows: int, group: int, most: int, temperature: float, threads: int
) -> Speculated:
    """`data`: overrides of that section."""
    if rows % group:
        raise ConfigError(f"--rows {rows} should be a multiple of --group {group}: whole groups run together")
    torch.set_num_threads(threads)
    device = choose_device()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = load_decoder(model, dtype, device)
    tasks = load_tasks(load_section("data", DataConfig, overrides=data), load_tokenizer(model))
    batches = [tasks[first : first + rows // group] for first in range(0, len(tasks), rows // group)]
    plain, guessing = (_engine(decoder, tasks, rows, most, guesses) for guesses in (False, True))

    def sampling(seed: int) -> Sampling:
        return Sampling(max_new_tokens=most, seed=seed, temperature=temperature)

    for batch in track(batches, "first pass", console=STDERR):
        _run(guessing, batch, group, sampling(1), Pass())
    guessed, right = Counter(guessing.guessed), Counter(guessing.right)
    without, with_guesses = Pass(), Pass()
    for batch in track(batches, "second pass, both ways", console=STDERR):
        _run(plain, batch, group, sampling(2), without)
        _run(guessing, batch, group, sampling(2), with_guesses)
    same = sum(with_guesses.answers[key] == tokens for key, tokens in without.answers.items())
    return Speculated(
        model.name,
        rows,
        len(tasks),
        temperature,
        without.tokens_per_s,
        with_guesses.tokens_per_s,
        with_guesses.tokens_per_s / without.tokens_per_s,
        (with_guesses.tokens / with_guesses.steps) / (without.tokens / without.steps),
        same / len(without.answers),
        _since(guessing.guessed, guessed),
        _since(guessing.right, right),
    )


def _since(now: Counter[Source], before: Counter[Source]) -> dict[str, int]:
    return {str(source): now[source] - before[source] for source in now}


def _engine(decoder: Decoder, tasks: list[Task], rows: int, most: int, guesses: bool) -> EmbeddedEngine:
    longest = max(len(task.prompt_tokens) for task in tasks) + most + 64
    config = EngineConfig(max_running=rows, cache_tokens=2 * rows * longest)
    return EmbeddedEngine(decoder, config.on("cuda" if decoder.embed.weight.is_cuda else "cpu"), guesses=guesses)


def _run(engine: EmbeddedEngine, batch: list[Task], group: int, sampling: Sampling, into: Pass) -> None:
    """From the first sampled token on: reading prompts is not what is compared."""
    for task in batch:
        engine.submit(task.id, list(task.prompt_tokens), sampling, group)
    while engine.has_work and engine.tokens == (before := engine.tokens):
        engine.step()
        if engine.tokens > before:
            break
    start_s, tokens = time.monotonic(), engine.tokens
    while engine.has_work:
        for id, answer in engine.step():
            into.answers[id, answer.index] = answer.tokens
        into.steps += 1
    into.seconds += time.monotonic() - start_s
    into.tokens += engine.tokens - tokens


def show(found: Speculated, json_only: bool) -> None:
    console = STDERR if json_only else Console()
    table = Table("", "tokens a second", "tokens a step and answer")
    table.add_row("without guesses", f"{found.plain_tokens_per_s:,.1f}", "1.00")
    table.add_row("with guesses", f"{found.guessing_tokens_per_s:,.1f}", f"{found.tokens_a_step:.2f}")
    console.print(table)
    for source, count in sorted(found.guessed.items()):
        if count:
            right = found.right[source]
            console.print(f"{source}: {right:,} of {count:,} guesses right, {right / count:.0%}")
    console.print(
        f"{found.rows} answers at a time, {found.tasks} tasks, temperature {found.temperature:g}: "
        f"{found.ratio:.2f} times as fast; {found.same_share:.0%} of the answers the same to the last token"
    )
    print(json.dumps(asdict(found)))
