"""The figures of one training step: what observers are told and metrics.jsonl holds, a line a step.

One schema for reinforcement learning and for supervised training, whose steps have no rewards: those are NaN, and null
in the file.
"""

from dataclasses import dataclass, field

from freerun.core.task import Version


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
    """Mean reward of the samples in this step's batch."""
    reward_mean_all: float
    """Mean reward of all samples judged since the previous step, those of filtered and dropped groups included; or of
    the last ones judged, as many as a batch has, where those are fewer: a mean of a handful says little."""
    samples: int
    """Samples trained on: without truncated ones where train.skip_truncated leaves those out."""
    tokens_trained: int
    """Sampled tokens that carried loss in this step."""
    tokens_per_s: float
    """Tokens trained on a second of wall time: tokens_trained / step_s."""
    answer_tokens_mean: float
    """Mean length of the batch's answers, in sampled tokens."""
    truncated_share: float
    """Share (0 to 1) of the batch's samples that ran into a length limit."""
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

    @property
    def judge_failures(self) -> dict[str, int]:
        """Reason → samples that have no reward."""
        return {reason: count for reason, count in self.judgements.items() if reason not in ("ok", "unparseable")}

    @property
    def engine_idle_share(self) -> float:
        return _share(self.engine_idle_s, self.step_s)

    @property
    def trainer_idle_share(self) -> float:
        return _share(self.trainer_idle_s, self.step_s)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
