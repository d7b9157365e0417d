"""Engine and trainer apart, each doing its own without end: the processes of `freerun bench mps`.

`python -m freerun.bench.apart engine|trainer JOB` writes a line after every step once it is warm: the time, by
the machine's monotonic clock, and the tokens done so far. It ends with its parent.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
import torch

from freerun.bench.engine import SHAPES, decoder_of, set_threads
from freerun.bench.trainer import batch_of
from freerun.core import ConfigError
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.machine.device import choose_device
from freerun.machine.parent import end_with_parent
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner


@dataclass(frozen=True)
class Job:
    model: str
    rows: int
    """Answers decoded together, their contexts evenly spread between a prompt's length and an answer's more."""
    prompt: int
    answer: int
    sequences: int
    """How many a training step has."""
    length: int
    """How many tokens each of them has."""
    threads: int = 1
    """On a CPU."""

    def check(self) -> None:
        if self.model not in SHAPES:
            raise ConfigError(f"--model {self.model} is not known; it is {', '.join(SHAPES)}")

    @property
    def context(self) -> int:
        """Mean."""
        return self.prompt + self.answer // 2

    def __str__(self) -> str:
        return (
            f"{self.model}: decoding {self.rows} answers at a context of {self.context:,}, training on "
            f"{self.sequences * self.length:,} tokens a step"
        )


def decode(job: Job) -> Iterator[int]:
    """Tokens sampled so far. The batch is full from the first on: an answer that ends is followed by another."""
    device = choose_device()
    decoder = decoder_of(job.model, device, torch.bfloat16 if device == "cuda" else torch.float32)
    cache_tokens = job.rows * (job.context + 256)
    config = EngineConfig(max_running=job.rows, cache_tokens=cache_tokens).on(device, step_tokens=16_384, burst=16)
    engine, dice = EmbeddedEngine(decoder, config), random.Random(0)

    def submit(index: int, already: int) -> None:
        prompt = dice.choices(range(2, decoder.shape.vocab_size), k=job.prompt + already)
        sampling = Sampling(max_new_tokens=job.answer - already, seed=index, ignore_eos=True)
        engine.submit(str(index), prompt, sampling, 1)

    for index in range(job.rows):
        submit(index, already=index * job.answer // job.rows)
    asked = job.rows
    while True:
        for _ in engine.step():
            submit(asked, already=0)
            asked += 1
        if engine.tokens >= job.rows * min(64, job.answer):  # prompts are read, and kernels compiled
            yield engine.tokens


def train(job: Job) -> Iterator[int]:
    """Tokens trained on so far, each step on the same batch."""
    tokens = job.sequences * job.length
    config = TrainConfig(micro_batch_tokens=tokens)
    learner = Learner(decoder_of(job.model, choose_device(), torch.float32), config)
    batch = batch_of(learner.decoder.shape, [job.length] * job.sequences, version=0)
    for step in range(1, sys.maxsize):
        learner.step(replace(batch, version=learner.version))
        if step >= 2:
            yield step * tokens


KINDS: dict[str, Callable[[Job], Iterator[int]]] = {"engine": decode, "trainer": train}

if __name__ == "__main__":
    end_with_parent()
    kind, settings = sys.argv[1:]
    job = msgspec.json.decode(settings, type=Job)
    set_threads(job.threads)
    for tokens in KINDS[kind](job):
        print(time.monotonic(), tokens, flush=True)
