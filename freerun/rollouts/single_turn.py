"""One prompt, one answer, a whole group in one request so that its samples share the prompt's cache."""

from typing import Protocol

from freerun.core import Sample, Task
from freerun.core.nouns import NOT_SAMPLED
from freerun.engines.base import Client, Completion, Sampling


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
        texts = {tokens: self._text(tokens) for tokens in {tuple(completion.tokens) for completion in completions}}
        return [sample_of(task, completion, texts[tuple(completion.tokens)]) for completion in completions]

    def _text(self, tokens: tuple[int, ...]) -> str:
        """PendingAnswers once for each of a group's different answers: a policy that is sure gives few of them."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def sample_of(task: Task, completion: Completion, text: str) -> Sample:
    """One answer to the task's prompt, not judged yet."""
    given = len(task.prompt_tokens)
    return Sample(
        tokens=task.prompt_tokens + completion.tokens,
        loss_mask=[False] * given + [True] * len(completion.tokens),
        behavior_logprobs=[0.0] * given + completion.logprobs,
        versions=[NOT_SAMPLED] * given + completion.versions,
        finish=completion.finish,
        text=text,
    )
