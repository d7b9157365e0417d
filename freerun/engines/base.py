"""What an engine is to the rest of Freerun. Importable without torch.

An engine turns prompt tokens into completions, takes new weights between two of its steps, and stamps every token with
the version and the log-probability of the forward pass that sampled it.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from freerun.core import FinishReason, Version
from freerun.core.nouns import Logprobs, Tokens, VersionRuns
from freerun.core.reports import EngineStats, UpdateReport, WeightsHandle
from freerun.engines.extras import Extras
from freerun.models.routes import Routes

_COLDEST, _HOTTEST, _MOST, _LEAST_P = 1e-3, 1e6, 2**31 - 1, 1e-6


@dataclass(slots=True, frozen=True)
class Sampling:
    """How to sample. Log-probabilities are the policy's among all tokens, after temperature and before top-k and top-p:
    whoever learns from them then compares like with like.

    A temperature that is hardly above 0 is 0, the likeliest token; one beyond all sense, and a top-k that no vocabulary
    has, are cut, and a top-p of next to nothing raised: engines compute in 32 bits.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    routes: bool = False
    """Whether it is to be told which experts each token went through, where the model has experts."""
    extras: Extras | None = None
    """What few ask for: penalties, alternatives and the like. On a GPU the engine is slower while somebody does."""

    def __post_init__(self) -> None:
        if self.temperature > _HOTTEST:
            object.__setattr__(self, "temperature", _HOTTEST)
        if 0 < self.temperature < _COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        if 0 < self.top_p < _LEAST_P:
            object.__setattr__(self, "top_p", _LEAST_P)
        if self.top_k > _MOST:
            object.__setattr__(self, "top_k", _MOST)


@dataclass(slots=True, init=False, eq=False)
class Completion:
    """One sampled answer, without its prompt: a token, a log-probability and a version each."""

    index: int
    tokens: Tokens
    logprobs: Logprobs
    versions: VersionRuns
    finish: FinishReason
    cached: int
    """Tokens of the prompt that the engine had in its cache when it first read it: full blocks, and never the last
    token, which is always computed. The same for all answers to one prompt."""
    routes: Routes | None
    """Which experts all tokens but the last went through, the prompt's included, where that was asked for."""

    def __init__(
        self,
        index: int,
        tokens: Sequence[int] | Tokens,
        logprobs: Sequence[float] | Logprobs,
        versions: Sequence[Version] | VersionRuns,
        finish: FinishReason,
        cached: int = 0,
        routes: Routes | None = None,
    ) -> None:
        """Arrays of the right type are kept as they are; lists become arrays."""
        self.index, self.finish, self.cached, self.routes = index, finish, cached, routes
        self.tokens = np.asarray(tokens, np.int32)
        self.logprobs = np.asarray(logprobs, np.float32)
        self.versions = VersionRuns.of(versions)


class Answers(Protocol):
    def generate(self, prompt: list[int], sampling: Sampling, n: int = 1) -> AsyncIterator[Completion]:
        """n answers to one prompt, each as it ends. Closing the iterator cancels the rest. Raises EngineError."""
        ...


class Engine(Answers, Protocol):
    async def update_weights(self, handle: WeightsHandle) -> UpdateReport:
        """Swap to that version between two steps; returns when every later token is sampled by it."""
        ...

    async def stats(self) -> EngineStats: ...

    async def health(self) -> Version:
        """The version it has. An engine that is well says so at once, however busy it is."""
        ...


class Load:
    """How many samples the engines have been asked for and not yet given."""

    def __init__(self) -> None:
        self.samples = 0
        self._changed = asyncio.Event()

    def add(self, samples: int) -> None:
        self.samples += samples

    def done(self, samples: int) -> None:
        self.samples -= samples
        self._changed.set()

    def notify(self) -> None:
        """How many there may be has changed."""
        self._changed.set()

    async def at_most(self, samples: Callable[[], int]) -> None:
        """Wait until there are no more than that."""
        while self.samples > samples():
            self._changed.clear()
            await self._changed.wait()


class Client:
    """An engine as one group's rollout sees it: every request it makes gets a seed of its own, and counts as load.

    The seed depends on the run's seed, the group and the request's number only, so the same run samples the same
    answers (up to floating point) however its requests interleave. `reserved` samples of the load were counted when the
    group was admitted; the group's first requests are made of them, and `close` gives back what is left.
    """

    def __init__(self, engine: Answers, seed: str, load: Load | None = None, reserved: int = 0) -> None:
        self._engine = engine
        self._seed = seed
        self._load = load or Load()
        self._reserved = reserved
        self._requests = 0

    def generate(
        self, prompt: list[int], sampling: Sampling, n: int = 1, name: str | None = None
    ) -> AsyncIterator[Completion]:
        """`name` takes the place of the request's number in its seed: for requests made at the same time, whose numbers
        depend on who is faster."""
        seed = self._seed_of(self._requests if name is None else name)
        self._requests += 1
        return self._counted(prompt, replace(sampling, seed=seed), n)

    async def _counted(self, prompt: list[int], sampling: Sampling, n: int) -> AsyncIterator[Completion]:
        taken = min(n, self._reserved)
        self._reserved -= taken
        self._load.add(n - taken)
        left = n
        try:
            async for completion in self._engine.generate(prompt, sampling, n):
                left -= 1
                self._load.done(1)
                yield completion
        finally:
            self._load.done(left)

    def within_session(self, prompt: list[int], sampling: Sampling, n: int, name: str) -> AsyncIterator[Completion]:
        """For a member that is a conversation of many requests: it is load from its beginning to its end, whether it
        is being answered or not, so its requests do not count."""
        return self._engine.generate(prompt, replace(sampling, seed=self._seed_of(name)), n)

    def release(self, samples: int) -> None:
        """So many of the reserved samples are there, or will not come."""
        given_back = min(samples, self._reserved)
        self._reserved -= given_back
        self._load.done(given_back)

    def close(self) -> None:
        self.release(self._reserved)

    def _seed_of(self, name: str | int) -> int:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2
