"""What a teacher has said of a batch (`losses/distill.py`)."""

from collections.abc import Sequence

from freerun.core import Sample


def mean_agreement(samples: Sequence[Sample]) -> float:
    """log π_teacher − log π_behavior, the mean over all trained tokens. The same on every rank."""
    gained, tokens = 0.0, 0
    for sample in samples:
        if sample.teacher_logprobs is not None:
            marks = sample.loss_mask
            gained += float((sample.teacher_logprobs - sample.behavior_logprobs)[marks].sum(dtype=float))
            tokens += int(marks.sum())
    return gained / max(tokens, 1)
