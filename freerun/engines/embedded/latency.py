"""How long answers take, counted in the buckets of Prometheus' histograms. The engine's thread writes and reads it."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from freerun.core import FinishReason
from freerun.engines.embedded.sequence import Sequence

_WAITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_WHOLE_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Histogram:
    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help = name, help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format. Buckets count all that is no more than their bound."""
        *upto, count = accumulate(self._counts)
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        for bound, number in zip(self._bounds, upto, strict=True):
            yield f'{self.name}_bucket{{le="{bound}"}} {number}'
        yield f'{self.name}_bucket{{le="+Inf"}} {count}'
        yield f"{self.name}_sum {self._sum}"
        yield f"{self.name}_count {count}"


class Latencies:
    """One observation an answer each, under vLLM's names with another prefix; a request with n > 1 has n answers."""

    def __init__(self) -> None:
        self.queued = Histogram("freerun_request_queue_time_seconds", "From the asking to the start.", _WAITS_S)
        self.first_token = Histogram(
            "freerun_time_to_first_token_seconds", "From the asking to the first token.", _WAITS_S
        )
        self.per_token = Histogram(
            "freerun_request_time_per_output_token_seconds",
            "Between two tokens of an answer, in the mean over each that ended by itself.",
            _TOKEN_S,
        )
        self.whole = Histogram(
            "freerun_e2e_request_latency_seconds", "From the asking to the end, if it ended by itself.", _WHOLE_S
        )

    def began_to_answer(self, sequence: Sequence, now_s: float) -> None:
        """It has its first token."""
        asked_s = sequence.request.asked_s
        sequence.first_token_s = now_s
        self.queued.observe(sequence.started_s - asked_s)
        self.first_token.observe(now_s - asked_s)

    def ended(self, sequence: Sequence, reason: FinishReason, now_s: float) -> None:
        if reason is FinishReason.ABORT:
            return
        self.whole.observe(now_s - sequence.request.asked_s)
        if len(sequence.tokens) > 1:
            self.per_token.observe((now_s - sequence.first_token_s) / (len(sequence.tokens) - 1))

    def lines(self) -> Iterator[str]:
        for histogram in (self.first_token, self.per_token, self.whole, self.queued):
            yield from histogram.lines()
