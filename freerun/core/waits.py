"""What the trainer, or the admission of further groups, waits for."""

from enum import StrEnum


class WaitCause(StrEnum):
    GENERATION = "generation"
    """Answers are being generated."""
    AGENTS = "agents"
    """Rollouts go on, and ask nothing of the engines: an agent thinks, or waits for a tool."""
    JUDGING = "judging"
    """Answers are being judged, or queue for it."""
    BOUND = "bound"
    """The staleness bound: a batch is ready, but older groups must come first; nothing more may be admitted."""
    WEIGHTS = "weights"
    """Engines are taking new weights."""
    CHECKPOINT = "checkpoint"
    """The trainer copies its state, to be saved."""
    NO_ENGINE = "no_engine"
    """None is there: it is being started again, or another is to come."""
    ENGINES = "engines"
    """They run as many answers as they can."""
    AHEAD = "ahead"
    """Enough groups are on their way to the trainer: more would only grow old."""
