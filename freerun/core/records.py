"""The figures of one training step: what observers are told and metrics.jsonl holds, a line a step.

One schema for reinforcement learning and for supervised training, whose steps have no rewards: those are NaN, and null
in the file.
"""

import math
from dataclasses import dataclass, field

from freerun.core.task import Version

OK = "ok"
"""How judging a sample, or an agent's session, ended well."""


@dataclass(frozen=True)
class AgentRecord:
    """How the sessions of a run's agents went. A session is one try of a member; what failed is tried again."""

    sessions: dict[str, int] = field(default_factory=dict)
    """How they ended → sessions since the run's start: ok, or why they failed (`SessionFailure`)."""
    requests: int = 0
    """Answers that agents asked for since the run's start."""
    turns_mean: float = math.nan
    """Mean over members rolled out since the previous step: answers that are trained on."""
    branches_mean: float = math.nan
    """Mean over members rolled out since the previous step: samples. It is 1 where conversations are only added to."""
    forks: dict[str, int] = field(default_factory=dict)
    """Why a request did not go on from where a branch ended (`ForkReason`) → requests since the run's start."""
    unused: dict[str, int] = field(default_factory=dict)
    """Why nobody used an answer (retried, orphaned, overridden) → answers since the run's start; not trained on."""
    reread_tokens: int = 0
    """Tokens of histories that engines had read and read again, because new weights came in between, in the sessions
    that ended since the previous step."""

    @property
    def failures(self) -> dict[str, int]:
        """Reason → sessions that failed."""
        return {reason: count for reason, count in self.sessions.items() if reason != OK}

    @property
    def failed_share(self) -> float:
        return _share(sum(self.failures.values()), sum(self.sessions.values()))

    @property
    def fork_share(self) -> float:
        """Share (0 to 1) of the requests."""
        return _share(sum(self.forks.values()), self.requests)


@dataclass(frozen=True)
class StepRecord:
    """One training step, as the controller saw it: a line of metrics.jsonl."""

    step: int
    """Training steps done, this one included: the first is 1."""
    version: Version
    """The policy's version after this step."""
    time_s: float
    """Seconds from the run's start to the end of this step."""
    step_s: float
    """Seconds since the previous step ended (for the first: since the run began to generate), all waiting included."""
    reward_mean: float
    """Mean reward of the members in this step's batch. A member is one try of a task: an answer, or a conversation with
    all its branches."""
    reward_mean_all: float
    """Mean reward of all members judged since the previous step, those of filtered and dropped groups included; or of
    the last ones judged, as many as a batch has, where those are fewer: a mean of a handful says little."""
    samples: int
    """Members trained on: without truncated ones where train.skip_truncated leaves those out."""
    tokens_trained: int
    """Sampled tokens that carried loss in this step."""
    tokens_per_s: float
    """Tokens trained on a second of wall time: tokens_trained / step_s."""
    answer_tokens_mean: float
    """Mean number of tokens sampled for a member of the batch: all turns of all its branches, each token once."""
    truncated_share: float
    """Share (0 to 1) of the batch's members that ran into a length limit, in any of their branches."""
    staleness_mean: float
    """Mean over trained tokens of the trainer's version less the token's, in versions."""
    staleness_max: int
    """The stalest trained token, in versions: what the bound is about."""
    staleness_histogram: dict[str, int]
    """Staleness in versions → tokens trained at it."""
    dropped: dict[str, int]
    """Reason → groups dropped for it since the run's start. `trained` is not in it."""
    engine_idle_s: float
    """Seconds of `step_s` in which an engine had nothing to generate, mean over engines."""
    trainer_idle_s: float
    """Seconds of `step_s` in which the trainer waited: for data, or for engines to take the version before."""
    update_pause_s: float
    """Seconds of `step_s` in which an engine stood still to swap weights, mean over engines."""
    running: int
    """Samples being generated when the step ended, all engines together."""
    waiting: int
    """Judged groups in the buffer when the step ended."""
    trainer: dict[str, float]
    """What the trainer reports: loss, grad_norm, entropy, clip_share, kl, lr, …"""
    update_s: float = 0.0
    """Seconds from the end of the trainer's step until the engines had its version: published, fetched, swapped."""
    first_token_s: float = 0.0
    """Seconds from the previous version's swap to the first tokens it sampled, mean over engines."""
    judgements: dict[str, int] = field(default_factory=dict)
    """How judging ended → samples since the run's start: ok; unparseable (nothing could be read, which has its reward
    too, most often 0); and why there is no reward: timeout, crash, error."""
    solved: int = 0
    """Tasks of which every answer passed when they were last asked; counted with control.skip_solved only."""
    cache_hit_share: float = math.nan
    """Share (0 to 1) of the prompts' tokens since the previous step that engines had in their caches; the previous
    step's where they have told of no prompt since. NaN: of none at all, or the run is older than this figure."""
    agents: AgentRecord | None = None
    """How the sessions of agents went; None in a run without agents."""

    trainer_waits: dict[str, float] = field(default_factory=dict)
    """What the trainer waited for (`WaitCause`) → seconds of `step_s`."""
    admission_waits: dict[str, float] = field(default_factory=dict)
    """Why no further group was begun (`WaitCause`) → seconds of `step_s`. `engines` means that they were full."""
    judge_workers: int = 0
    """Answers that could be judged at the same time when the step ended."""
    judge_busy_share: float = math.nan
    """Share (0 to 1) of `step_s` in which a worker judged, mean over workers."""
    judge_s: float = math.nan
    """Seconds a judgement since the previous step, mean; the previous step's where there was none."""
    judge_wait_s: float = math.nan
    """Seconds that an answer waited for a worker, mean over those judged since the previous step."""
    judge_cpu_share: float = math.nan
    """Share (0 to 1) of a judgement in which it computes; it waits for the rest. NaN where the machine does not
    tell."""

    @property
    def judge_failures(self) -> dict[str, int]:
        """Reason → samples that have no reward."""
        return {reason: count for reason, count in self.judgements.items() if reason not in (OK, "unparseable")}

    @property
    def engine_idle_share(self) -> float:
        return _share(self.engine_idle_s, self.step_s)

    @property
    def trainer_idle_share(self) -> float:
        return _share(self.trainer_idle_s, self.step_s)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
