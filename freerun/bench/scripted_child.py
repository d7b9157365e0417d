"""Processes of `freerun bench controller`: an engine that answers from a script, and a trainer that checks what comes.

Everything around them is real. The engine is stepped by the embedded engine's thread and served by its routes; the
trainer is behind the trainer's socket. What an answer must be is known from its first token, so the trainer compares
every token and log-probability of every batch with what the engine was to say.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from freerun.bench.namespaces import enter_network
from freerun.core import FinishReason, Sample, TrainerError, Version
from freerun.core.reports import StepResult, UpdateReport, WeightsHandle
from freerun.engines.base import Sampling
from freerun.engines.config import OnUpdate
from freerun.machine.machines import LOOPBACK
from freerun.machine.parent import READY_FD, RUN_KEY, end_with_parent, kill_with_parent
from freerun.run.child import ready
from freerun.weights.base import Subscriber

SCRIPTS = 16
"""Different answers."""
PROMPT = 64
"""Tokens of a prompt."""
VOCABULARY = 150_000
_A_STEP = 8
"""Answers that end together."""


@dataclass(slots=True, frozen=True)
class Settings:
    tokens: int
    """How many an answer has."""
    host: str = LOOPBACK
    """The address to listen on."""
    network: int | None = None
    """A process in whose network namespace to run."""
    engines: int = 1
    """How many to fork, each a process."""
    endpoint: str = ""
    """Where the trainer listens."""


def scripted(script: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and log-probabilities of an answer; the first token says which it is."""
    dice = np.random.default_rng(script)
    answer = dice.integers(SCRIPTS, VOCABULARY, tokens, np.int32)
    answer[0] = script
    return answer, -dice.random(tokens, np.float32)


class ScriptedAnswers:
    """In the place of the model: ends a few answers with every step. Their first halves are of the version there was
    when they were asked for."""

    on_update: OnUpdate = "keep"
    first_token_after_update_s = waited_s = 0.0
    waiting = prompt_tokens = reused_tokens = 0
    eos_token_ids = frozenset[int]()

    def __init__(self, tokens: int) -> None:
        self._scripts = [tuple(part.tolist() for part in scripted(script, tokens)) for script in range(SCRIPTS)]
        self._asked: list[tuple[str, int, int, Version]] = []
        self.version: Version = 0
        self.tokens = 0
        self.longest = PROMPT + tokens

    @property
    def has_work(self) -> bool:
        return bool(self._asked)

    @property
    def running(self) -> int:
        return len(self._asked)

    @property
    def answering(self) -> bool:
        return self.has_work

    def submit(self, id: str, prompt: list[int], sampling: Sampling, n: int, asked_s: float) -> None:
        self._asked += [(id, index, (sampling.seed + index) % SCRIPTS, self.version) for index in range(n)]

    def step(self) -> list[tuple[str, Any]]:
        ending, self._asked = self._asked[:_A_STEP], self._asked[_A_STEP:]
        return [self._ended(*asked) for asked in ending]

    def _ended(self, id: str, index: int, script: int, begun: Version) -> tuple[str, Any]:
        from freerun.engines.embedded.sequence import EndedAnswer

        tokens, logprobs = self._scripts[script]
        half = len(tokens) // 2
        versions = [begun] * half + [self.version] * (len(tokens) - half)
        self.tokens += len(tokens)
        return id, EndedAnswer(index, tokens, logprobs, versions, FinishReason.LENGTH)

    def unfinished(self, id: str) -> list[Any]:
        return [asked for asked in self._asked if asked[0] == id]

    def cancel(self, id: str) -> None:
        self._asked = [asked for asked in self._asked if asked[0] != id]

    def expect_update(self, expected: bool) -> None: ...

    def stage(self, fetch: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        return fetch()

    def update_weights(
        self, version: Version, tensors: Mapping[str, Any], on_update: OnUpdate | None = None
    ) -> UpdateReport:
        self.version = version
        return UpdateReport(version, 0.0, 0)


class NoWeights(Subscriber):
    """What there is to fetch of a version without weights."""

    def fetch(self, handle: WeightsHandle) -> dict[str, Any]:
        return {}


class CheckingTrainer:
    """Its step looks at every token, and learns nothing."""

    def __init__(self, tokens: int) -> None:
        from freerun.train.ranks import ALONE

        self.ranks = ALONE
        self._scripts = [scripted(script, tokens) for script in range(SCRIPTS)]

    def do(self, request: tuple[str, Any]) -> StepResult:
        """Only `step` is asked of it."""
        _, batch = request
        received_s = time.monotonic()
        found = [self._script_of(sample) for sample in batch.samples]
        metrics = {
            "received_s": received_s,
            "answers": float(len(found)),
            "tokens": float(sum(sample.num_sampled for sample in batch.samples)),
            "scripts": float(len(set(found))),
        }
        return StepResult(
            batch.version + 1,
            metrics,
            [("check", received_s, time.monotonic())],
            weights=WeightsHandle("none", batch.version + 1, ""),
        )

    def _script_of(self, sample: Sample) -> int:
        script = int(sample.tokens[PROMPT])
        tokens, logprobs = self._scripts[script]
        whole = (
            np.array_equal(sample.tokens[PROMPT:], tokens)
            and np.array_equal(sample.behavior_logprobs[PROMPT:], logprobs)
            and not sample.loss_mask[:PROMPT].any()
            and sample.loss_mask[PROMPT:].all()
            and sample.num_sampled == len(tokens)
            and sample.reward is not None
        )
        if not whole:
            raise TrainerError(f"an answer of script {script} is not what the engine said")
        return script


def run_engines(settings: Settings) -> None:
    """Fork engines from this process, so that they have what was imported in common, and say where all of them are."""
    from freerun.engines.embedded import server  # noqa: F401  the slow part, once for all

    gc.collect()
    gc.freeze()  # pages stay shared
    announced = [_forked(settings) for _ in range(settings.engines)]
    end_with_parent()  # by a thread, so only now
    ready(" ".join(os.fdopen(pipe).read() for pipe in announced))
    os.wait()
    os._exit(1)  # one has ended too early, and takes the others along


def _forked(settings: Settings) -> int:
    """A pipe on which an engine that has just been forked says where it is."""
    announced, announces = os.pipe()
    if os.fork() == 0:
        kill_with_parent()
        os.close(int(os.environ.pop(READY_FD)))  # whoever reads it waits until all have closed it
        asyncio.run(run_engine(settings, lambda url: _say(announces, url)))
        os._exit(1)
    os.close(announces)
    return announced


def _say(pipe: int, what: str) -> None:
    with os.fdopen(pipe, "w") as writing:
        writing.write(what)


async def run_engine(settings: Settings, ready: Callable[[str], None]) -> None:
    from freerun.engines.embedded.served import ServedEngine
    from freerun.engines.embedded.server import serve_engine
    from freerun.engines.embedded.serving.tokenizer import Tokenizer
    from freerun.engines.listening import Where, listen

    engine = cast(ServedEngine, ScriptedAnswers(settings.tokens))  # what the thread asks of one, it has
    with listen(Where(settings.host)) as listening:
        key = os.environ.pop(RUN_KEY)
        await serve_engine(engine, Tokenizer(Path()), "scripted", listening, NoWeights(), ready, api_key=key)


def run_trainer(settings: Settings) -> None:
    from freerun.train.worker import serve

    serve(CheckingTrainer(settings.tokens), settings.endpoint, ready, os.environ.pop(RUN_KEY))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kind, given = sys.argv[1:]
    settings = msgspec.json.decode(given, type=Settings)
    if settings.network is not None:
        enter_network(settings.network)
    if kind == "engines":
        run_engines(settings)
    else:
        end_with_parent()
        run_trainer(settings)
