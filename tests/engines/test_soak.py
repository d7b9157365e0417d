"""A long stretch of random traffic through the embedded engine: nothing leaks, nothing grows, every answer ends once.

Three engines, one for each `on_update` and one that runs ahead of the host as on a GPU, take 5,100 requests together:
random prompts (new ones, beginnings seen before, next turns), answers and group sizes, cancellations, new weights every
few steps, and a cache so small that sequences preempt each other all the time.
"""

import gc
import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from freerun.core import FinishReason, Version
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from tests.engines.ahead import AheadRunner
from tests.tiny import tiny_decoder

REQUESTS = 1_100
"""How many requests each engine gets."""
WARM_UP = 400
EOS = 1
CONFIG = {"cache_tokens": 192, "max_running": 16}


def small_decoder(seed: int) -> Decoder:
    return tiny_decoder(seed, num_hidden_layers=1, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                        intermediate_size=16, eos_token_id=EOS)  # fmt: skip


@dataclass
class PendingAnswers:
    """A request that is under way, and which of its answers are still to come."""

    prompt: list[int]
    sampling: Sampling
    version: Version
    """The engine's version when it was asked."""
    owed: set[int]


@dataclass
class Footprint:
    rss_bytes: int
    """Resident memory; 0 where there is no /proc."""
    objects: int
    """What the garbage collector tracks."""
    allocations: int
    """Blocks that Python's allocator has handed out: numbers and strings too."""

    @classmethod
    def now(cls) -> "Footprint":
        gc.collect()
        statm = Path("/proc/self/statm")
        pages = int(statm.read_text().split()[1]) if statm.exists() else 0
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects()), sys.getallocatedblocks())


class Soak:
    """Random traffic, and the books on it. An answer nobody is owed (ended twice, or cancelled) fails at once."""

    def __init__(self, on_update: str, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.weights = [small_decoder(0), small_decoder(1)]
        """Version v has the weights v % 2."""
        config = EngineConfig.model_validate({**CONFIG, "on_update": on_update})
        self.engine = EmbeddedEngine(small_decoder(0), config.on("cpu", block_tokens=4, step_tokens=96))
        self.recomputes = on_update == "recompute"
        self.asked: dict[str, PendingAnswers] = {}
        self.beginnings = deque([self.tokens(12), self.tokens(24), self.tokens(36)], maxlen=8)
        """Prompts to come."""
        self.submitted = self.cancelled = self.answers = self.checked = self.steps = self.recomputed_tokens = 0

    def until(self, requests: int) -> None:
        """Submit up to that many requests in all, and go on until the engine has nothing left to do."""
        while self.submitted < requests or self.engine.has_work:
            while self.submitted < requests and self.engine.waiting < 8 and self.dice.random() < 0.7:
                self.submit()
            if self.dice.random() < 0.05:
                self.cancel()
            if self.dice.random() < 0.05:
                self.update()
            self.step()

    def tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(2, 48) for _ in range(count)]

    def submit(self) -> None:
        beginning = self.dice.choice(self.beginnings) if self.dice.random() < 0.4 else []
        length = self.dice.randint(1, 60)
        prompt = beginning[:length] + self.tokens(length - len(beginning[:length]))
        sampling = Sampling(max_new_tokens=self.dice.randint(1, 20), seed=self.submitted)
        n = self.dice.randint(1, 4)
        self.engine.submit(str(self.submitted), prompt, sampling, n)
        self.asked[str(self.submitted)] = PendingAnswers(prompt, sampling, self.engine.version, set(range(n)))
        self.submitted += 1

    def cancel(self) -> None:
        """Some request under way, or now and then one that is long over, which must change nothing."""
        under_way = list(self.asked) if self.dice.random() < 0.9 else []
        id = self.dice.choice(under_way or ["0"])
        self.cancelled += self.asked.pop(id, None) is not None
        self.engine.cancel(id)

    def update(self) -> None:
        version = self.engine.version + 1
        report = self.engine.update_weights(version, dict(self.weights[version % 2].named_parameters()))
        self.recomputed_tokens += report.recomputed_tokens

    def step(self) -> None:
        self.steps += 1
        for id, completion in self.engine.step():
            assert id in self.asked, f"request {id} was over: all its answers were given, or it was cancelled"
            asked = self.asked[id]
            assert completion.index in asked.owed, f"answer {completion.index} of request {id} ended twice"
            asked.owed.remove(completion.index)
            if not asked.owed:
                del self.asked[id]
            self.answers += 1
            self.check(asked, completion)
            if self.dice.random() < 0.1:
                self.beginnings.append(asked.prompt + completion.tokens)

    def check(self, asked: PendingAnswers, completion: EndedAnswer) -> None:
        count = len(completion.tokens)
        assert 1 <= count == len(completion.logprobs) == len(completion.versions) <= asked.sampling.max_new_tokens
        assert completion.versions == sorted(completion.versions)
        assert EOS not in completion.tokens[:-1]
        if completion.finish is FinishReason.STOP:
            assert completion.tokens[-1] == EOS
        else:
            assert completion.finish is FinishReason.LENGTH
            assert count == asked.sampling.max_new_tokens
        of_one_version = asked.version == completion.versions[-1]  # what `keep` kept is not what a recompute gives
        if self.answers % 5 == 0 and (self.recomputes or of_one_version):
            self.checked += 1
            got = torch.tensor(completion.logprobs)
            assert (got - self.recomputed(asked.prompt, completion)).abs().max() < 1e-3, "the cache was another's"

    def recomputed(self, prompt: list[int], completion: EndedAnswer) -> torch.Tensor:
        """Each token's log-probability by the weights of its version, without any cache."""
        sequence = torch.tensor(prompt + completion.tokens)
        both = []
        with torch.no_grad():
            for decoder in self.weights:
                hidden = decoder(sequence[:-1], torch.arange(len(sequence) - 1), PackedAttention([len(sequence) - 1]))
                both.append(decoder.logits(hidden[len(prompt) - 1 :]).log_softmax(-1))
        at = torch.arange(len(completion.tokens))
        return torch.stack(both)[torch.tensor(completion.versions) % 2, at, torch.tensor(completion.tokens)]


@pytest.mark.parametrize(
    ("on_update", "ahead"), [("recompute", False), ("keep", False), ("recompute", True), ("auto", True)]
)
def test_a_thousand_requests(on_update: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ahead:
        monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    soak = Soak(on_update)
    engine, started_s = soak.engine, time.monotonic()
    soak.until(WARM_UP)
    before = Footprint.now()
    soak.until(REQUESTS)
    after = Footprint.now()

    assert not soak.asked, "some answers never came"
    assert engine.free_blocks == engine._blocks.count
    assert not engine._requests
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.preemptions > 300
    assert engine.reused_tokens > 400  # with `auto` what is kept depends on how long steps take
    assert soak.cancelled > 50
    assert soak.checked > 100
    assert engine.version > 60
    assert (soak.recomputed_tokens > 0) == (on_update != "keep")

    assert after.rss_bytes - before.rss_bytes < 20_000_000
    assert after.objects - before.objects < 200, "something is kept for each request"
    assert after.allocations - before.allocations < 1_000, "something is kept for each request"
    print(f"\n{on_update}: {time.monotonic() - started_s:.1f} s, {soak.steps} steps, {soak.answers} answers "
          f"({soak.checked} recomputed), {soak.cancelled} cancelled, {engine.preemptions} preemptions, "
          f"{engine.reused_tokens} tokens reused, "
          f"version {engine.version}, {soak.recomputed_tokens} tokens recomputed; {before} → {after}")  # fmt: skip
