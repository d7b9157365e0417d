"""One prompt, one answer, a whole group in one request so that its samples share the prompt's cache."""

import asyncio
from typing import Any, Protocol

from freerun.core import Sample, Task
from freerun.engines.base import Client, Completion, Sampling
from freerun.rollouts.samples import sample_of_turns

_LONG = 512
"""Tokens of an answer whose decoding is worth a turn of the loop."""


class Decoder(Protocol):
    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> str:
        """Takes an array of tokens, or a list."""
        ...


class SingleTurn:
    """Groups that come in together become samples one after the other, and the loop goes on in between: to decode long
    answers takes milliseconds."""

    def __init__(self, tokenizer: Decoder, sampling: Sampling, group_size: int) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._group_size = group_size
        self._one_group = asyncio.Lock()

    async def __call__(self, task: Task, client: Client) -> list[Sample]:
        """The group's samples in the order of their index, whatever order they ended in."""
        stream = client.generate(task.prompt_tokens, self._sampling, self._group_size)
        texts: dict[bytes, str] = {}
        completions = sorted([completion async for completion in stream], key=lambda completion: completion.index)
        async with self._one_group:
            return [await self._sample(task, completion, texts) for completion in completions]

    async def _sample(self, task: Task, completion: Completion, texts: dict[bytes, str]) -> Sample:
        """`texts` has those that other answers of the group have: a policy that is sure gives few different ones."""
        key = completion.tokens.tobytes()
        if key not in texts:
            texts[key] = self._tokenizer.decode(completion.tokens, skip_special_tokens=True)
            if len(completion.tokens) >= _LONG:
                await asyncio.sleep(0)
        return sample_of(task, completion, texts[key])


def sample_of(task: Task, completion: Completion, text: str) -> Sample:
    """One answer to the task's prompt, not judged yet."""
    return sample_of_turns([task.prompt_tokens, completion], completion.finish, text)
