"""The engine proper: schedule → launch → postprocess, in one thread.

On a GPU a step is scheduled and launched while the one before is under way, whose results are looked at next: the
device never waits for the host. `update_weights` is called between two steps by the same thread, and first waits for
what is under way, so it can never overlap a forward pass.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from freerun.core import EngineError, FinishReason, Version
from freerun.core.reports import UpdateReport
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig, OnUpdate
from freerun.engines.embedded.blocks import Blocks
from freerun.engines.embedded.cache_choice import ENOUGH, CacheChoice
from freerun.engines.embedded.drafts import Drafts, Source
from freerun.engines.embedded.guess_pace import ENOUGH as ENOUGH_BURSTS
from freerun.engines.embedded.guess_pace import GuessPace
from freerun.engines.embedded.held_weights import HeldWeights
from freerun.engines.embedded.latency import Latencies
from freerun.engines.embedded.launched_step import LaunchedStep
from freerun.engines.embedded.memory import cache_tokens
from freerun.engines.embedded.plain import PlainRunner
from freerun.engines.embedded.recomputed import recomputed_logprobs
from freerun.engines.embedded.routed import RoutedTokens
from freerun.engines.embedded.scheduler import Scheduler, Step
from freerun.engines.embedded.sequence import EndedAnswer, Request, Sequence
from freerun.engines.embedded.shaping import check_extras
from freerun.engines.embedded.speculation import Speculation
from freerun.models.decoder import Decoder
from freerun.models.own import OwnDecoder

Detokenise = Callable[[list[int]], str]


class Runner(Protocol):
    """A device that runs steps."""

    burst: int
    """Tokens a sequence may sample in one step."""
    ahead: bool
    """Whether a step can be launched before the results of the one before are there."""
    short: bool
    """Whether steps sample one token: somebody waits for the next to end. A runner that can do no other ignores it."""
    guesses: int
    """Most guesses of one answer that a step can check."""
    guessing_rows: int
    """Most rows of a step in which it guesses by itself; 0: it cannot."""

    @property
    def waited_s(self) -> float:
        """How long the host has waited for the device, since the start."""
        ...

    def launch(self, step: Step) -> LaunchedStep: ...


class EmbeddedEngine:
    def __init__(
        self, decoder: Decoder, config: EngineConfig, detokenise: Detokenise | None = None, guesses: bool = True
    ) -> None:
        """On the device the decoder is on, which decides what is empty in `config`. `guesses`: whether to guess how
        answers go on, where that pays."""
        self._decoder = decoder.eval().requires_grad_(False)
        self._weights = HeldWeights(self._decoder)
        on_gpu = decoder.embed.weight.is_cuda
        config = self._config = config.on("cuda" if on_gpu else "cpu")
        self._detokenise = detokenise
        self.on_update: OnUpdate = config.on_update
        size = config.block_tokens
        self._blocks = Blocks(max(cache_tokens(decoder, config, self._weights.version_bytes) // size, 1), size)
        self._drafts = Drafts()
        self._runner = self._runner_for(decoder, on_gpu)
        runner = self._runner
        self._scheduler = Scheduler(self._blocks, config.max_running, config.step_tokens, runner.burst, runner.ahead)
        self._routed = RoutedTokens(self._blocks, decoder.routes) if decoder.routes else None
        if self._routed:
            self._scheduler.stops = self._routed.stops
        self._guesses = guesses
        self._speculation = Speculation(runner.guesses if guesses else 0, self._drafts)
        self._guess_pace = GuessPace()
        self._launched = LaunchedStep.none()
        self._ended: list[tuple[str, EndedAnswer]] = []
        """Answers that ended when somebody else than `step` had to wait for what was under way."""
        self._requests: dict[str, list[Sequence]] = {}
        self._special: set[str] = set()
        """Requests with `extras`: while there are any, the host must know every token before the next is sampled."""
        self._expects_update = False
        self._landed_s = time.monotonic()
        self.version: Version = 0
        self.tokens = 0
        self.prompt_tokens = 0
        self.latencies = Latencies()
        self.first_token_after_update_s = 0.0
        """From the last swap of weights to the end of the first step that sampled with them, rebuilding included."""
        self._swapped_s: float | None = None
        self._tokens_at_swap = 0
        self.cache_choice = CacheChoice()
        """Which caches outlive an update, under `auto`; and what it goes by."""
        self._read_before = self._sampling_steps = 0

    def _runner_for(self, decoder: Decoder, on_gpu: bool) -> Runner:
        blocks, config = self._blocks, self._config
        if not on_gpu or not isinstance(decoder, OwnDecoder):
            return PlainRunner(decoder, blocks.count, blocks.block_tokens)
        from freerun.engines.embedded.gpu import GpuRunner  # needs Triton

        return GpuRunner(decoder, blocks.count, blocks.block_tokens, config.max_running, config.burst, self._drafts)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._ended)

    @property
    def answering(self) -> bool:
        """Whether an answer has begun that is not over, running or not."""
        return self._scheduler.answering

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def furthest(self) -> tuple[int, int]:
        """How many tokens the longest running answer has, and how many it may have."""
        running = ((one.sampled, one.request.sampling.max_new_tokens) for one in self._scheduler.running)
        return max(running, default=(0, 0))

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions

    @property
    def waited_s(self) -> float:
        """How long the host has waited for the device: the rest of a step is the host's own work."""
        return self._runner.waited_s

    @property
    def guessed(self) -> Counter[Source]:
        """Tokens that were guessed, by where from."""
        return self._drafts.guessed

    @property
    def right(self) -> Counter[Source]:
        """Guesses that were right."""
        return self._drafts.right

    @property
    def reused_tokens(self) -> int:
        """Tokens of prompts whose cache was there already."""
        return self._scheduler.reused_tokens

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    def submit(self, id: str, prompt: list[int], sampling: Sampling, n: int, asked_s: float | None = None) -> None:
        """Queue n answers to a prompt. What makes no sense is refused here, before it runs. `asked_s` is when they were
        asked for, if not now."""
        shape = self._decoder.shape
        if id in self._requests:
            raise EngineError(f"there is a request {id!r} already")
        if not prompt or n < 1 or sampling.max_new_tokens < 1:
            raise EngineError("a request needs a prompt of at least one token, n ≥ 1 and max_tokens ≥ 1")
        if min(prompt) < 0 or max(prompt) >= shape.vocab_size:
            raise EngineError(f"token ids must lie in 0..{shape.vocab_size - 1}")
        if len(prompt) + sampling.max_new_tokens > shape.max_positions:
            raise EngineError(
                f"a prompt of {len(prompt)} and an answer of {sampling.max_new_tokens} tokens exceed the model's "
                f"{shape.max_positions} positions"
            )
        if sampling.stop and self._detokenise is None:
            raise EngineError("stop strings need a tokenizer in the model's folder")
        eos = () if sampling.ignore_eos else shape.eos_token_ids
        stops = frozenset((*sampling.stop_token_ids, *eos))
        if sampling.extras:
            check_extras(sampling.extras, stops, shape.vocab_size)
        request = Request(id, prompt, sampling, n, stops=stops, asked_s=asked_s or time.monotonic())
        self._requests[id] = self._scheduler.submit(request)
        if self._guesses:
            self._drafts.begin(self._requests[id])
        self.prompt_tokens += len(prompt)
        if sampling.extras:
            self._special.add(id)
            self._shorten_steps()

    def warm_up(self) -> None:
        """On a GPU: compile what decoding needs, with guesses and without, by answering something while nobody waits
        yet: as many as may run, then one for as long as it takes to try guesses."""
        if not self._decoder.embed.weight.is_cuda:
            return
        longest = self._decoder.shape.max_positions
        prompt = [0] * min(16, longest // 2)
        for answers, bursts in ((self._config.max_running, 3), (1, 2 * ENOUGH_BURSTS)):
            tokens = min(bursts * self._runner.burst, longest - len(prompt))
            self.submit("warm-up", prompt, Sampling(max_new_tokens=tokens, ignore_eos=True), answers)
            while self.has_work:
                self.step()
        self._blocks.forget()
        self._guess_pace = GuessPace()
        self._drafts.forget()
        self.tokens = self.prompt_tokens = 0
        self.latencies = Latencies()
        self.cache_choice = CacheChoice()

    def cancel(self, id: str) -> None:
        """End what is left of a request; its unfinished answers are never reported."""
        for sequence in self._requests.pop(id, []):
            if sequence.finish is None:
                self._over(sequence, FinishReason.ABORT)
        self._forget_special(id)
        self._ended = [(ended, completion) for ended, completion in self._ended if ended != id]

    def step(self) -> list[tuple[str, EndedAnswer]]:
        """Launch a step, then see to the one before; the answers that ended with that. While new weights are on their
        way nothing is left under way: they would wait for it."""
        start_s, tokens = time.monotonic(), self.tokens
        guessing = self._is_guessing()
        ahead = self._runner.ahead and not self._runner.short and not guessing
        if not ahead:
            self._ended += self._wait()
        guesses = self._speculation.plan([] if self._runner.ahead or self._special else self._scheduler.sampling)
        step = self._scheduler.schedule(guesses)
        step.guessing = guessing and step.only_samples and 0 < len(step.chunks) <= self._runner.guessing_rows
        before, self._launched = self._launched, self._runner.launch(step) if step.chunks else LaunchedStep.none()
        ended, self._ended = self._ended + self._postprocess(before), []
        if not ahead:
            ended += self._wait()
        if step.only_samples:
            self._took(step, self.tokens - tokens, time.monotonic() - start_s)
        return ended

    def _is_guessing(self) -> bool:
        """Whether the runner is to guess, if all that the next step does is to sample."""
        few = self._guesses and 0 < self.running <= self._runner.guessing_rows and not self.waiting
        return few and not self._runner.short and not self._special and self._guess_pace.wanted(self.running)

    def _took(self, step: Step, tokens: int, seconds: float) -> None:
        """A step in which nobody did anything but sample."""
        rows = len(step.chunks)
        if not self._runner.ahead:
            self._speculation.took(rows, seconds)
        elif 0 < rows <= self._runner.guessing_rows and not self._runner.short:
            self._guess_pace.saw(rows, step.guessing, tokens, seconds)

    def _wait(self) -> list[tuple[str, EndedAnswer]]:
        """Wait for what is under way."""
        launched, self._launched = self._launched, LaunchedStep.none()
        return self._postprocess(launched)

    def _postprocess(self, launched: LaunchedStep) -> list[tuple[str, EndedAnswer]]:
        """Stamp each token with the version that sampled it, and see who is done. What a sequence sampled after its
        end is thrown away."""
        ended, (results, routed) = [], launched.results()
        self._landed_s = time.monotonic()
        if self._routed:
            self._routed.landed(routed.read)
        for sequence, tokens, logprobs, routes in results:
            self._speculation.checked(sequence, len(tokens))
            if math.isnan(sum(logprobs)):
                raise EngineError(self._not_finite)
            if not sequence.tokens:
                self.latencies.began_to_answer(sequence, self._landed_s)
            new, reason = self._accepted(sequence, tokens)
            sequence.tokens.extend(tokens[:new])
            sequence.logprobs.extend(logprobs[:new])
            sequence.versions.extend([self.version] * new)
            self.tokens += new
            if routes is not None:
                sequence.routes.append(routes[:new].copy())  # not all that the step noted
            if reason:
                ended.append(self._end(sequence, reason))
        self._note_pace(launched)
        self._measure_an_old_cache()
        if self._swapped_s is not None and self.tokens > self._tokens_at_swap:
            self.first_token_after_update_s = self._landed_s - self._swapped_s
            self._swapped_s = None
            self.expect_update(False)
        return ended

    @property
    def _not_finite(self) -> str:
        said = f"version {self.version} of the model computes what is not a number"
        return f"{said}: " + ("it has diverged; lower train.lr" if self.version else "its weights are damaged")

    def _accepted(self, sequence: Sequence, tokens: list[int]) -> tuple[int, FinishReason | None]:
        """How many of these tokens are part of the answer, and why it ends with the last of them, if it does."""
        sampling, stops = sequence.request.sampling, sequence.request.stops
        left = sampling.max_new_tokens - len(sequence.tokens)
        reason = FinishReason.LENGTH if len(tokens) >= left else None
        new = min(len(tokens), left)
        if not stops.isdisjoint(tokens[:new]):
            new = next(at for at, token in enumerate(tokens, start=1) if token in stops)
            reason = FinishReason.STOP
        for at in range(1, new + 1) if sampling.stop else ():
            if self._says_stop(sequence.tokens + tokens[:at], sampling.stop):
                return at, FinishReason.STOP
        return new, reason

    def _end(self, sequence: Sequence, reason: FinishReason) -> tuple[str, EndedAnswer]:
        wanted = sequence.request.sampling.routes and sequence.tokens
        routes = self._routed.of(sequence) if self._routed and wanted else None
        self._over(sequence, reason)
        self.cache_choice.lengths.add(len(sequence.tokens))
        self.latencies.ended(sequence, reason, self._landed_s)
        request = sequence.request
        if not request.unfinished:
            del self._requests[request.id]
            self._forget_special(request.id)
        answer = EndedAnswer(sequence.index, sequence.tokens, sequence.logprobs, sequence.versions, reason)
        answer.alternatives = sequence.alternatives[: len(sequence.tokens)]
        answer.cached = request.cached or 0
        answer.routes = routes
        return request.id, answer

    def _over(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.end(sequence, reason)
        self._drafts.end(sequence)

    def _forget_special(self, id: str) -> None:
        if id in self._special:
            self._special.remove(id)
            self._shorten_steps()

    def _shorten_steps(self) -> None:
        self._runner.short = self._expects_update or bool(self._special)

    def _says_stop(self, tokens: list[int], stop: tuple[str, ...]) -> bool:
        """Only the tail is read: a stop string that ends with the newest token begins at most so many tokens back. A
        token may be one byte of a character."""
        assert self._detokenise is not None
        tail = self._detokenise(tokens[-(max(len(text.encode(errors="replace")) for text in stop) + 4) :])
        return any(text in tail for text in stop)

    def _rebuilt(self, policy: OnUpdate, version: Version) -> Container[Sequence]:
        """Whose caches are to be rebuilt for that version."""
        if policy == "auto":
            return self.cache_choice.rebuild(self._scheduler.running, version - self.version)
        return () if policy == "keep" else self._scheduler.running

    def _note_pace(self, launched: LaunchedStep) -> None:
        """What was read is counted when a step is scheduled; ahead of the host, that is one step before it lands."""
        ahead = self._runner.ahead and not self._runner.short
        before, self._read_before = self._read_before, self._scheduler.read_tokens
        if launched.most:
            self._sampling_steps += max(launched.most)
            pace = self.cache_choice.pace
            pace.tick(self._landed_s, before if ahead else self._read_before, self._sampling_steps, self.tokens)
            if not self._scheduler.has_work:
                pace.rest()

    def _measure_an_old_cache(self) -> None:
        choice, most_tokens = self.cache_choice, self._config.step_tokens
        if one := choice.to_measure(self.version, most_tokens, self._landed_s):
            start_s = time.monotonic()
            choice.measured(one, recomputed_logprobs(self._decoder, one, ENOUGH), time.monotonic() - start_s)
            choice.pace.rest()

    def stage(self, fetch: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What `fetch` gives, on the engine's device: what takes time, done before the swap and beside the steps, on a
        stream of its own. Any thread."""
        weight = self._decoder.embed.weight
        if not weight.is_cuda:
            return fetch()
        with torch.cuda.stream(self._aside):
            staged = {name: tensor.to(weight.device, weight.dtype) for name, tensor in fetch().items()}
        self._aside.synchronize()
        return staged

    @cached_property
    def _aside(self) -> torch.cuda.Stream:
        """One for all versions: memory that was freed on a stream is used again there, and on no other."""
        return torch.cuda.Stream()

    def expect_update(self, expected: bool) -> None:
        """New weights are on their way: steps are short until these have sampled their first tokens."""
        self._expects_update = expected
        self._shorten_steps()

    def hold(self, holding: bool) -> None:
        """Whether to begin no further answer for now. Those that have begun go on."""
        self._scheduler.holding = holding

    def update_weights(
        self, version: Version, tensors: Mapping[str, Tensor], on_update: OnUpdate | None = None
    ) -> UpdateReport:
        """Swap the weights in place, now; of an adapted decoder, the adapter. Everything sampled from now on is of that
        version.

        `on_update` instead of the configured one; to let answers finish, `hold` and do this when none is left.
        """
        if version <= self.version:
            raise EngineError(f"versions only go up: {version} cannot follow {self.version}")
        self._weights.check(version, tensors)
        self._ended += self._wait()
        started_s = self._landed_s
        self._weights.take(tensors)
        if self._decoder.embed.weight.is_cuda:
            torch.cuda.synchronize()
        lost = self._scheduler.new_weights(version, self._rebuilt(on_update or self.on_update, version))
        self.cache_choice.pace.rest()
        self.version = version
        self.expect_update(True)
        self._swapped_s, self._tokens_at_swap = time.monotonic(), self.tokens
        report = UpdateReport(version, time.monotonic() - started_s, lost)
        if (on_update or self.on_update) != "auto":
            return report
        choice = self.cache_choice
        kept, rebuilt = choice.last_kept, choice.last_rebuilt
        return replace(report, kept_caches=kept, rebuilt_caches=rebuilt, cache_error=choice.error.mean)
