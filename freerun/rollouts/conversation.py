"""A conversation of one member with the policy, over as many turns as it takes.

Promises that the policy is trained on exactly the tokens that it sampled and saw: what it said is never encoded again,
only what others say in between is. All that follows the prompt fits `rollout.max_new_tokens`, so that a conversation is
never longer than a single answer may be.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import accumulate

from freerun.core import ConfigError, DataError, FinishReason, Sample, Task
from freerun.core.task import Message
from freerun.core.trajectory import Trajectory, prompt_messages
from freerun.core.turns import Turn
from freerun.engines.base import Completion, Sampling
from freerun.rollouts.samples import TurnTokens, sample_of_turns
from freerun.rollouts.template import ChatTokenizer, Rendering, TemplateRefused, template_of

_PLAIN = Rendering((), {})

Generate = Callable[[list[int], Sampling], AsyncIterator[Completion]]


class Conversation:
    """`messages` is what was said, by anybody. `add` what others say, and have the policy `reply`."""

    def __init__(self, task: Task, tokenizer: ChatTokenizer, sampling: Sampling, generate: Generate) -> None:
        self.task = task
        self.messages: list[Message] = prompt_messages(task)
        self.finish = FinishReason.STOP
        """How the policy's last turn ended."""
        self.text = ""
        """What the policy said last: what judges are shown."""
        self._tokenizer, self._sampling, self._generate = tokenizer, sampling, generate
        self._turns: list[TurnTokens] = [list(task.prompt_tokens)]
        self._said: list[Message] = []
        """The policy's own messages, in order."""
        self._added = 0
        """Messages at the end that the policy has not seen yet."""
        self._ran_out = False

    @property
    def tokens(self) -> list[int]:
        """All that the policy has seen and said."""
        return [
            token for turn in self._turns for token in (turn.tokens.tolist() if isinstance(turn, Completion) else turn)
        ]

    @property
    def tokens_left(self) -> int:
        """How many more there may be, for whatever is added and for replies."""
        return self._sampling.max_new_tokens - (len(self.tokens) - len(self.task.prompt_tokens))

    def add(self, content: str, role: str = "user") -> None:
        """Say something to the policy. It is shown with the next reply."""
        self.messages.append({"role": role, "content": content})
        self._added += 1

    async def reply(self, max_tokens: int | None = None, stop: tuple[str, ...] | None = None) -> str:
        """What the policy says now, of at most so many tokens. When there is no room left for it and what was added, ""
        and a finish of LENGTH."""
        before, self._turns = self._turns, self._with_what_was_added()
        left = self.tokens_left if max_tokens is None else min(self.tokens_left, max_tokens)
        if left < 1:
            self._turns, self.finish, self._ran_out = before, FinishReason.LENGTH, self.tokens_left < 1
            return ""
        sampling = replace(self._sampling, max_new_tokens=left, stop=self._sampling.stop if stop is None else stop)
        completion = await _only(self._generate(self.tokens, sampling))
        self._turns.append(completion)
        self.finish = completion.finish
        self._ran_out = self.tokens_left < 1
        self.text = self._tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True)
        self._said.append({"role": "assistant", "content": self.text})
        self.messages.append(self._said[-1])
        return self.text

    def result(self, reward: float | None = None) -> Trajectory:
        """The conversation as it is, to train on; without a reward, the judge decides."""
        return Trajectory(self.sample(), list(self.messages), reward)

    def failed(self, reason: str) -> Trajectory:
        return Trajectory.failed(reason, list(self.messages))

    def sample(self) -> Sample:
        """Truncated only if it ran out of tokens: a turn that ended at the `max_tokens` of its own is as it should."""
        ended = FinishReason.STOP if self.finish is FinishReason.LENGTH and not self._ran_out else self.finish
        sample = sample_of_turns(self._turns, ended, self.text)
        sample.turns = tuple(self._by_turn())
        return sample

    def _by_turn(self) -> list[Turn]:
        """What was said, and where the tokens of the policy's own turns are."""
        ends = list(accumulate(len(turn.tokens if isinstance(turn, Completion) else turn) for turn in self._turns))
        places = [
            (end - len(turn.tokens), end)
            for turn, end in zip(self._turns, ends, strict=True)
            if isinstance(turn, Completion)
        ]
        spoken = {id(message): place for message, place in zip(self._said, places, strict=True)}
        return [
            Turn(message, True, *spoken[id(message)]) if id(message) in spoken else Turn(message)
            for message in self.messages
        ]

    def _with_what_was_added(self) -> list[TurnTokens]:
        """Before the policy has said anything, that is a longer prompt."""
        added, self._added = self.messages[len(self.messages) - self._added :], 0
        if not added:
            return self._turns
        if not self._tokenizer.chat_template:
            return [*self._turns, self._plain(added)]
        if len(self._turns) == 1:
            return [self._encoded(self._rendered(self.messages))]
        return [*self._turns, self._tail(added)]

    def _plain(self, added: list[Message]) -> list[int]:
        """Without a chat template, there is nothing between turns but what is said."""
        return self._encoded("".join(str(message["content"]) for message in added))

    def _tail(self, added: list[Message]) -> list[int]:
        """What the template puts behind the policy's turn. The end of that turn is part of it, unless the policy has
        sampled it: then it is there already."""
        try:
            tail = template_of(self._tokenizer).tail(self.messages, len(self.messages) - len(added) - 1, _PLAIN)
        except (ConfigError, TemplateRefused) as error:
            raise DataError(f"the model's chat template cannot go on after an answer: {error}") from None
        tokens, last = self._encoded(tail), self._turns[-1]
        said = last.tokens if isinstance(last, Completion) else last
        return tokens[1:] if tokens and len(said) and tokens[0] == said[-1] else tokens

    def _rendered(self, messages: list[Message]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


async def _only(completions: AsyncIterator[Completion]) -> Completion:
    (completion,) = [completion async for completion in completions]
    return completion
