"""What the processes of a run report: plain data that the loop passes on to whoever observes it."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freerun.core.task import Version


@dataclass(slots=True, frozen=True)
class WeightsHandle:
    """Where a complete version can be had. Plain strings and numbers: it travels as JSON."""

    backend: str
    version: Version
    location: str
    checksum: str = ""
    parts: list["WeightsHandle"] = field(default_factory=list)
    """What the version is made of, where several ranks published some of its tensors each."""


@dataclass(slots=True, frozen=True)
class UpdateReport:
    """What a weight update cost an engine."""

    version: Version
    pause_s: float
    """From the end of the last step with the old weights to the moment the new ones were in place."""
    recomputed_tokens: int
    """How many cached tokens must be rebuilt with the new weights (0 with `keep`)."""
    idle_s: float = 0.0
    """How long the engine has had nothing to do, since it started."""
    bytes: int = 0
    """How many came over the network for it; 0 where another engine of the machine had fetched them already."""
    engine: str = ""
    """Its name. An engine does not know that, and leaves it out."""
    kept_caches: int = 0
    rebuilt_caches: int = 0
    """Running answers whose cache was kept, and was not, where the engine chooses (`auto`); else 0."""
    cache_error: float = 0.0
    """Then: mean |Δ log-probability| of what kept answers sampled against a recompute, as last measured, in nats."""


@dataclass(slots=True, frozen=True)
class Span:
    """Something that a process spent time on, in seconds of the machine's monotonic clock."""

    track: str
    """Which of the process's lanes it belongs to, such as "generate" or "update"."""
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any] = field(default_factory=dict)
    process: str = ""
    """Such as "engine 0". An engine does not know its own name, and leaves it out."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True)
class SessionReport:
    """How the sessions of one member of a group went: its last try, and those before it. Counts only."""

    requests: int = 0
    """Answers that the policy was asked for."""
    turns: int = 0
    """Answers that are trained on."""
    forks: dict[str, int] = field(default_factory=dict)
    """Requests that did not go on from where a branch ended, by reason (`ForkReason`)."""
    apart: dict[str, int] = field(default_factory=dict)
    """Answers that nobody used, and that are not trained on: retried, orphaned, overridden."""
    failures: dict[str, int] = field(default_factory=dict)
    """Tries that failed, by reason (`SessionFailure`)."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of prompts that the engine had in its cache."""
    reread_tokens: int = 0
    """Tokens of histories that the engine had read, and read again because new weights had come in between."""


@dataclass(slots=True)
class EngineStats:
    """A snapshot. Counters only grow; `spans` are those that ended since the previous snapshot."""

    version: Version
    running: int
    waiting: int
    tokens: int
    idle_s: float
    first_token_s: float = 0.0
    """From the last swap of weights to the first tokens sampled with them, rebuilding of caches included."""
    spans: list[Span] = field(default_factory=list)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Tokens of prompts, and how many of them were in the cache."""
    longest_tokens: int = 0
    longest_most: int = 0
    """How many tokens the longest running answer has, and how many it may have. 0: not told."""


_FULL = 0.8
"""Workers that are busier than this keep answers waiting."""
_MOST_WORKERS = 256
"""More are never advised: the judge itself must be faster then."""


@dataclass(slots=True, frozen=True)
class JudgeLoad:
    """What judging has cost so far. Counters only grow."""

    workers: int
    """Answers that can be judged at the same time."""
    waiting: int
    """Answers that nobody has begun to judge."""
    judged: int = 0
    busy_s: float = 0.0
    """Seconds that workers spent on those, all together."""
    queued_s: float = 0.0
    """Seconds that those waited for a worker, all together."""
    cpu_share: float = math.nan
    """Share (0 to 1) of a judgement in which it computes; NaN where the machine does not tell."""

    @property
    def judge_s(self) -> float:
        """Seconds a judgement, mean."""
        return self.busy_s / self.judged if self.judged else math.nan

    def enough_workers(self, within_s: float) -> int:
        """How many would keep up: they judge in `within_s` what these judge in the time of a step. Twice as many
        as there are where nothing says how long that may take."""
        if not within_s or not self.busy_s:
            return 2 * self.workers
        return min(max(math.ceil(self.busy_s / within_s / _FULL), self.workers + 1), _MOST_WORKERS)

    def since(self, before: "JudgeLoad") -> "JudgeLoad":
        """What came to it."""
        judged, busy_s = self.judged - before.judged, self.busy_s - before.busy_s
        return replace(self, judged=judged, busy_s=busy_s, queued_s=self.queued_s - before.queued_s)


PUBLISH = "publish"
"""The last phase of a step: its version is learned, and made available."""


@dataclass(slots=True)
class StepResult:
    """What one step did. `phases` are (name, start, end) in seconds of the machine's monotonic clock."""

    version: Version
    """The trainer's version after the step."""
    metrics: dict[str, float] = field(default_factory=dict)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Figures that left their healthy range with this step, and the likely cause."""
    weights: WeightsHandle | None = None
    """That version, published. Supervised steps publish nothing."""
    before_logprobs: list[NDArray[np.float32]] | None = None
    """For each sample of the batch, in its order: the log-probability, by the weights before the step, of each token
    that was sampled (whose version is not NOT_SAMPLED). NaN where it was not computed: tokens without a loss; those of
    later minibatches without `train.proximal: recompute`; what is beyond four million tokens."""

    @property
    def learned_s(self) -> float:
        """When the version was there, and not yet published. A step without phases has no clock."""
        return max((end_s for name, _, end_s in self.phases if name != PUBLISH), default=0.0)


@dataclass(slots=True, frozen=True)
class Evaluation:
    tasks: int
    k: int
    pass_at_1: float
    low: float
    high: float
    """The 95% confidence interval of pass@1."""
    pass_at_k: float
    reward_mean: float
    truncated_share: float
    judge_failures: int
    """Samples that could not be judged. They count as not passed."""
