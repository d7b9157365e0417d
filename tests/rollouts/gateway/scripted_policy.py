"""A policy that says what a test wants, in tokens that no encoder would choose; and keeps a record of all it was asked.

It is an engine: its record is what every trained token is compared with.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freerun.core import FinishReason, Version
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Completion, Sampling
from freerun.models.bpe import END as END
from freerun.models.bpe import MARKS, write_bpe_tokenizer
from freerun.models.tokenizer import load_tokenizer


def tokenizer_of(folder: Path) -> Any:
    return load_tokenizer(write_bpe_tokenizer(folder))


@dataclass
class Asked:
    """A request that the policy answered."""

    prompt: list[int]
    completion: Completion


Script = Callable[[str, int], str]
"""What to say to a prompt (its text), by the request's seed. A text without the end mark is cut by length."""


class ScriptedPolicy:
    def __init__(self, tokenizer: Any, script: Script, seed: int = 0) -> None:
        self._tokenizer, self._script = tokenizer, script
        self._dice = random.Random(seed)
        self._ids = {text: tokenizer.convert_tokens_to_ids(text) for text in MARKS}
        self.version: Version = 0
        self.record: list[Asked] = []
        self.held: asyncio.Event | None = None
        """While it is there and not set, nobody gets an answer."""
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        text = self._tokenizer.decode(prompt)
        self.asked.set()
        try:
            if self.held is not None:
                await self.held.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        for index in range(n):
            said = self._script(text, sampling.seed + index)
            tokens = self._tokens(said)[: sampling.max_new_tokens]
            finish = FinishReason.STOP if tokens[-1] == self._ids[END] else FinishReason.LENGTH
            completion = Completion(
                index, tokens, [-self._dice.random() for _ in tokens], self._versions(len(tokens)), finish
            )
            self.record.append(Asked(list(prompt), completion))
            yield completion

    def _versions(self, tokens: int) -> list[Version]:
        """New weights may come in the middle of an answer."""
        if self._dice.random() < 0.3:
            changes = self._dice.randrange(tokens)
            versions = [self.version] * changes + [self.version + 1] * (tokens - changes)
            self.version += 1
            return versions
        return [self.version] * tokens

    def _tokens(self, text: str) -> list[int]:
        """Cut at random places and encoded piece by piece: as a policy may sample it, not as an encoder writes it."""
        tokens: list[int] = []
        while text:
            mark = next((mark for mark in MARKS if text.startswith(mark)), None)
            piece = mark or text[: self._dice.randint(1, 6)].partition("<")[0] or text[0]
            tokens += [self._ids[mark]] if mark else self._tokenizer.encode(piece, add_special_tokens=False)
            text = text[len(piece) :]
        return tokens


def assert_exact(trajectories: list[Trajectory], record: list[Asked], trained: int | None = None) -> None:
    """Every trained token's id, log-probability, version and whole context are the engine's own, and none is trained on
    twice. `trained` is how many of its answers are, where not all of them."""
    left = {(tuple(one.prompt), tuple(one.completion.tokens.tolist())): one.completion for one in record}
    assert len(left) == len(record), "the script says the same to the same: the record cannot tell them apart"
    found = 0
    for sample in (sample for trajectory in trajectories for sample in trajectory.samples):
        versions = sample.versions.by_token()
        assert ((versions >= 0) == sample.loss_mask).all(), "what is sampled here is trained here"
        for turn in sample.turns:
            if turn.sampled and sample.loss_mask[turn.start]:
                part = slice(turn.start, turn.end)
                key = tuple(sample.tokens[: turn.start].tolist()), tuple(sample.tokens[part].tolist())
                completion = left.pop(key)
                assert sample.loss_mask[part].all()
                np.testing.assert_array_equal(sample.behavior_logprobs[part], completion.logprobs)
                np.testing.assert_array_equal(versions[part], completion.versions.by_token())
                found += len(completion.tokens)
        spoken = sum(turn.end - turn.start for turn in sample.turns if turn.sampled and sample.loss_mask[turn.start])
        assert spoken == sample.loss_mask.sum(), "nothing is trained on but turns"
    if trained is None:
        assert not left, f"{len(left)} answers were not trained on"
    else:
        assert len(record) - len(left) == trained
    assert found
