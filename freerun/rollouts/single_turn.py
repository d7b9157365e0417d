"""One prompt, one answer, a whole group in one request so that its samples share the prompt's cache."""

import asyncio
from typing import Protocol

import numpy as np

from freerun.core import Sample, Task
from freerun.core.nouns import Tokens
from freerun.engines.base import Client, Completion, Sampling

_LONG = 512
"""Tokens of an answer whose decoding is worth a turn of the loop."""


class Decoder(Protocol):
    def decode(self, token_ids: list[int], skip_special_tokens: bool = ...) -> str: ...


class SingleTurn:
    def __init__(self, tokenizer: Decoder, sampling: Sampling, group_size: int) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._group_size = group_size

    async def __call__(self, task: Task, client: Client) -> list[Sample]:
        """The group's samples in the order of their index, whatever order they ended in."""
        stream = client.generate(task.prompt_tokens, self._sampling, self._group_size)
        completions = sorted([completion async for completion in stream], key=lambda completion: completion.index)
        texts = await self._texts([completion.tokens for completion in completions])
        return [sample_of(task, *both) for both in zip(completions, texts, strict=True)]

    async def _texts(self, answers: list[Tokens]) -> list[str]:
        """Decoded once for each of a group's different answers: a policy that is sure gives few of them. The loop goes
        on between two that are long: each takes milliseconds."""
        texts: dict[bytes, str] = {}
        for tokens in answers:
            if (key := tokens.tobytes()) not in texts:
                texts[key] = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
                if len(tokens) >= _LONG:
                    await asyncio.sleep(0)
        return [texts[tokens.tobytes()] for tokens in answers]


def sample_of(task: Task, completion: Completion, text: str) -> Sample:
    """One answer to the task's prompt, not judged yet."""
    given = len(task.prompt_tokens)
    return Sample(
        tokens=np.concatenate([np.array(task.prompt_tokens, np.int32), completion.tokens]),
        loss_mask=np.arange(given + len(completion.tokens)) >= given,
        behavior_logprobs=np.concatenate([np.zeros(given, np.float32), completion.logprobs]),
        versions=completion.versions.after(given),
        finish=completion.finish,
        text=text,
    )
