"""What the engine counts, in the text format that Prometheus reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from freerun.core import FinishReason, Version
from freerun.engines.embedded.drafts import Source


@dataclass(slots=True)
class Metrics:
    """A snapshot between two steps. Totals count from the start of the process."""

    running: int
    waiting: int
    tokens: int
    preemptions: int
    free_blocks: int
    version: Version
    idle_s: float
    paused: bool
    updates: int
    last_update_pause_s: float
    first_token_after_update_s: float
    finished: dict[FinishReason, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    guessed: Mapping[Source, int] = field(default_factory=dict)
    """Tokens, by where the guess came from; `right`: those that were what was sampled."""
    right: Mapping[Source, int] = field(default_factory=dict)
    kept_caches: int = 0
    rebuilt_caches: int = 0
    """How many answers that were running at updates kept their caches or had them rebuilt, where the engine chooses."""
    cache_error: float = 0.0
    measured_tokens: int = 0
    latencies: list[str] = field(default_factory=list)
    """Histograms, already in Prometheus' format."""

    def prometheus(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        plain = [
            ("requests_running", "gauge", "Answers being written.", self.running),
            ("requests_waiting", "gauge", "Answers that wait for room.", self.waiting),
            (
                "prompt_tokens_total",
                "counter",
                "Tokens of prompts, each counted once however many its answers.",
                self.prompt_tokens,
            ),
            (
                "prompt_tokens_cached_total",
                "counter",
                "Tokens of prompts that were in the cache, and not computed.",
                self.reused_tokens,
            ),
            ("generated_tokens_total", "counter", "Tokens sampled.", self.tokens),
            (
                "preemptions_total",
                "counter",
                "Times an answer gave its cache back.",
                self.preemptions,
            ),
            ("cache_blocks_free", "gauge", "Free blocks of the key/value cache.", self.free_blocks),
            ("weights_version", "gauge", "The version that samples now.", self.version),
            ("idle_seconds_total", "counter", "Time without anything to do.", self.idle_s),
            ("paused", "gauge", "1 while the engine is told to pause.", int(self.paused)),
            ("weight_updates_total", "counter", "Versions swapped in.", self.updates),
            ("last_weight_update_pause_seconds", "gauge", "What the last swap cost.", self.last_update_pause_s),
            (
                "last_weight_update_first_token_seconds",
                "gauge",
                "From the last swap to its first tokens, rebuilding the cache included.",
                self.first_token_after_update_s,
            ),
            (
                "cache_error_nats",
                "gauge",
                "How far kept caches put log-probabilities from a recompute, mean, as last measured.",
                self.cache_error,
            ),
            ("cache_error_tokens_total", "counter", "Tokens that it was measured by.", self.measured_tokens),
        ]
        for name, kind, help, value in plain:
            yield from _head(name, kind, help)
            yield f"freerun_{name} {value}"
        yield from _head("requests_total", "counter", "Answers that ended, by why; a request with n > 1 has n.")
        for reason in FinishReason:
            yield f'freerun_requests_total{{finish_reason="{reason.value}"}} {self.finished.get(reason, 0)}'
        for name, help, counts in (
            ("guessed_tokens_total", "Tokens that were guessed, by where the guess came from.", self.guessed),
            ("guessed_tokens_right_total", "Guesses that were what was sampled.", self.right),
        ):
            yield from _head(name, "counter", help)
            yield from (f'freerun_{name}{{source="{source}"}} {counts.get(source, 0)}' for source in Source)
        yield from _head("updated_caches_total", "counter", "Caches of running answers at updates, under auto.")
        yield f'freerun_updated_caches_total{{choice="kept"}} {self.kept_caches}'
        yield f'freerun_updated_caches_total{{choice="rebuilt"}} {self.rebuilt_caches}'
        yield from self.latencies


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP freerun_{name} {help}"
    yield f"# TYPE freerun_{name} {kind}"
