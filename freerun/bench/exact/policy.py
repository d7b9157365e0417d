"""The policy behind `freerun bench exact`: the embedded engine with random weights, and the record that it keeps.

A random model writes no calls of tools, and ends hardly ever. So what it samples is only the beginning of an answer;
the rest is put behind it, in tokens that no encoder would choose: a call, or an end. To those who asked, all of it was
sampled. The record is made here, on the engine's side, before anybody else has seen the answer.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from freerun.core import FinishReason
from freerun.core.nouns import Tokens, VersionRuns
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.models.bpe import END, MARKS, write_bpe_tokenizer
from freerun.models.checkpoint import save_decoder
from freerun.models.own import OwnDecoder, initialise
from freerun.models.shape import shape_of
from freerun.models.tokenizer import load_tokenizer
from freerun.weights.files import FilePublisher

CONTEXT_TOKENS = 6_000
_SAMPLED = 12
"""At most so many tokens of an answer come from the model."""
_CALLS = 3
"""In a conversation; then it is answered."""
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": %d}}\n</tool_call>'
_SHAPE: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
    "tie_word_embeddings": True, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6,
    "max_position_embeddings": CONTEXT_TOKENS, "hidden_act": "silu",
}  # fmt: skip


@dataclass(frozen=True)
class Answered:
    """One answer of the engine's: its own record."""

    prompt: Tokens
    completion: Completion


@dataclass
class Policy:
    """An engine, and whatever writes the rest of an answer."""

    engine: InProcessEngine
    tokenizer: Any
    publisher: FilePublisher
    answers: int = 0
    updates: int = 0

    @classmethod
    def made(cls, folder: Path) -> "Policy":
        tokenizer = load_tokenizer(write_bpe_tokenizer(folder / "tokenizer"))
        end = tokenizer.convert_tokens_to_ids(END)
        decoder = OwnDecoder(shape_of(_SHAPE | {"vocab_size": len(tokenizer), "eos_token_id": end}))
        initialise(decoder, 0, 0.25)
        save_decoder(decoder, folder / "model")
        write_bpe_tokenizer(folder / "model")
        engine = InProcessEngine.from_folder(folder / "model", EngineConfig(cache_tokens=200_000))
        return cls(engine, tokenizer, FilePublisher(folder))

    async def update(self) -> None:
        """New weights, while answers are being sampled."""
        decoder = self.engine.decoder
        other = OwnDecoder(decoder.shape)
        initialise(other, self.updates + 1, 0.25)
        handle = self.publisher.publish(self.engine.version + 1, dict(other.named_parameters()))
        await self.engine.update_weights(handle)
        self.updates += 1

    async def updates_for_ever(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.update()


@dataclass
class RecordedEngine:
    """The policy, as one session asks it."""

    policy: Policy
    record: list[Answered] = field(default_factory=list)

    async def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        text = self.policy.tokenizer.decode(prompt)
        dice = random.Random(sampling.seed)
        own = replace(sampling, max_new_tokens=dice.randint(1, min(_SAMPLED, sampling.max_new_tokens)))
        async for sampled in self.policy.engine.generate(prompt, own, n):
            completion = self._continued(sampled, sampling.max_new_tokens, self._rest(text, dice), dice)
            self.record.append(Answered(np.asarray(prompt, np.int32), completion))
            self.policy.answers += 1
            yield completion

    def _rest(self, prompt: str, dice: random.Random) -> str:
        """What comes behind the model's own words. Now and then nothing: the answer is then cut."""
        if dice.random() < 0.05:
            return ""
        if "Tools:" in prompt and prompt.count("<tool_response>") < _CALLS and dice.random() < 0.8:
            calls = [_CALL % (dice.randrange(100), dice.randrange(100)) for _ in range(dice.choice([1, 1, 2]))]
            return f"</think>\n{chr(10).join(calls)}{END}"
        return f"</think> It is {dice.randrange(1000)}.{END}"

    def _continued(self, sampled: Completion, most: int, rest: str, dice: random.Random) -> Completion:
        if sampled.finish is FinishReason.STOP:
            return sampled
        more = self._tokens(rest, dice)[: most - len(sampled.tokens)]
        version = max(self.policy.engine.version, sampled.versions.newest)
        stopped = more[-1:] == [self._id(END)]
        return Completion(
            sampled.index,
            np.concatenate([sampled.tokens, np.asarray(more, np.int32)]),
            np.concatenate([sampled.logprobs, np.asarray([-dice.random() for _ in more], np.float32)]),
            VersionRuns.joined([*sampled.versions.runs, (version, len(more))]),
            FinishReason.STOP if stopped else FinishReason.LENGTH,
            sampled.cached,
        )

    def _tokens(self, text: str, dice: random.Random) -> list[int]:
        """Cut at random places and encoded piece by piece: as a policy may sample it, not as an encoder writes it."""
        tokens: list[int] = []
        while text:
            mark = next((mark for mark in MARKS if text.startswith(mark)), None)
            piece = mark or text[: dice.randint(1, 6)].partition("<")[0] or text[0]
            encode = self.policy.tokenizer.encode
            tokens += [self._id(mark)] if mark else encode(piece, add_special_tokens=False)
            text = text[len(piece) :]
        return tokens

    def _id(self, mark: str) -> int:
        return int(self.policy.tokenizer.convert_tokens_to_ids(mark))
