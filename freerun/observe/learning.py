"""Advice for a run that learns nothing, or unlearns, from the figures of its steps: each piece once, with the likely
cause. `advice.py` looks at the batches, the trainer at its own figures.
"""

import math
from collections import deque
from collections.abc import Iterator

from freerun.core.records import OK, StepRecord
from freerun.observe.figures import number, reasons, share

STEPS = 20
"""So many steps are looked at: what goes wrong from the first on is said after them."""
_WINDOW = 10
_ENOUGH = 20
"""Answers that say something about the rest."""
_FAILED_SHARE = 0.5
_EQUAL_SHARE = 0.9
_TEACHES = 0.01
_SIGMAS = 5.0
"""A fall of the reward by so many standard errors is no chance."""


class LearningAdvice:
    """Consumes a record a step; produces notes."""

    def __init__(self) -> None:
        self._recent: deque[StepRecord] = deque(maxlen=STEPS)
        self._first: StepRecord | None = None
        self._said: set[str] = set()
        self._rewards: deque[float] = deque(maxlen=STEPS)
        self._best, self._best_step = -math.inf, 0
        """The highest mean of a window, and its last step."""
        self._squares, self._pairs = 0.0, 0
        """The sum of the squared differences from step to step, halved, and their number: the mean is a step's
        variance, whatever the trend."""
        self._entropies: list[float] = []
        """The entropies of the first steps."""

    def notes(self, record: StepRecord) -> Iterator[str]:
        if not math.isfinite(record.reward_mean_all):
            return  # supervised training
        self._recent.append(record)
        self._first = self._first or record
        for kind, note in (
            ("failed", self._judge_fails()),
            ("equal", self._dropped_as_equal()),
            ("teaches", self._nothing_teaches()),
            ("entropy", self._entropy_explodes(record)),
            ("falls", self._reward_falls(record)),
        ):
            if note and kind not in self._said:
                self._said.add(kind)
                yield note

    def _judge_fails(self) -> str | None:
        since, now = self._recent[0].judgements, self._recent[-1].judgements
        if len(self._recent) == 1:
            since = {}
        counts = {reason: count - since.get(reason, 0) for reason, count in now.items()}
        failed = {reason: count for reason, count in counts.items() if reason not in (OK, "unparseable", "own")}
        answers = sum(counts.values())
        if answers < _ENOUGH or sum(failed.values()) <= _FAILED_SHARE * answers:
            return None
        return (
            f"{share(sum(failed.values()) / answers)} of the answers could not be judged ({reasons(failed)} of "
            f"{answers}), so they are not learned from: try the judge with `freerun judge`, and see logs/judge.log"
        )

    def _dropped_as_equal(self) -> str | None:
        """Groups without signal are dropped, and others run in their place: nearly everything is for nothing then."""
        first, last = self._recent[0], self._recent[-1]
        if len(self._recent) < _WINDOW:
            return None
        dropped = last.dropped.get("no_signal", 0) - first.dropped.get("no_signal", 0)
        judged = sum(last.judgements.values()) - sum(first.judgements.values())
        trained = sum(record.samples for record in list(self._recent)[1:])
        if not dropped or judged < _ENOUGH or trained > (1 - _EQUAL_SHARE) * judged:
            return None
        return (
            f"{share(1 - trained / judged)} of the answers of the last {len(self._recent)} steps were dropped, most "
            f"because all of their group had the same reward ({_of_rewards(last)}): {_too_easy_or_hard(last)}"
        )

    def _nothing_teaches(self) -> str | None:
        if len(self._recent) < STEPS or self._has_learned():
            return None
        shares = [record.trainer.get("signal_share", math.nan) for record in self._recent]
        if not all(one <= _TEACHES for one in shares):
            return None
        last = self._recent[-1]
        return (
            f"hardly a token of the last {STEPS} steps taught anything: all answers to a task got the same reward "
            f"({_of_rewards(last)}); {_too_easy_or_hard(last)}"
        )

    def _has_learned(self) -> bool:
        """What has been learned need not be learned again."""
        assert self._first
        return self._recent[-1].reward_mean_all > self._first.reward_mean_all + 0.1

    def _entropy_explodes(self, record: StepRecord) -> str | None:
        entropy = record.trainer.get("entropy", math.nan)
        if not math.isfinite(entropy):
            return None
        if len(self._entropies) < _WINDOW:
            self._entropies.append(entropy)
            return None
        first = sum(self._entropies) / len(self._entropies)
        recent = [one.trainer.get("entropy", math.nan) for one in list(self._recent)[-_WINDOW // 2 :]]
        if not min(recent) > max(2 * first, first + 0.5) or self._has_learned():
            return None
        return (
            f"entropy has risen from {first:.2g} to {sum(recent) / len(recent):.2g} nats, and the reward has not: "
            "answers become random; lower train.lr, or train.entropy.coef where it is set"
        )

    def _reward_falls(self, record: StepRecord) -> str | None:
        """Below the best window for long, by more than chance: the best of many windows is high by chance, too."""
        self._rewards.append(record.reward_mean_all)
        if len(self._rewards) > 1:
            self._squares += (self._rewards[-1] - self._rewards[-2]) ** 2 / 2
            self._pairs += 1
        rewards = list(self._rewards)
        if len(rewards) < _WINDOW:
            return None
        window, mean = sum(rewards[-_WINDOW:]) / _WINDOW, sum(rewards) / len(rewards)
        if window >= self._best:
            self._best, self._best_step = window, record.step
        error = math.sqrt(self._squares / self._pairs * (1 / _WINDOW + 1 / len(rewards)))
        by_much = self._best - mean > max(_SIGMAS * error, 0.1 * abs(self._best))
        if record.step - self._best_step < STEPS or not by_much:
            return None
        return (
            f"the reward has fallen since step {self._best_step}, from {number(self._best)} to {number(mean)}: "
            "lower train.lr, or control.max_staleness if train.drift is high; a checkpoint from before "
            "may be the better model"
        )


def _of_rewards(record: StepRecord) -> str:
    return f"their mean is {number(record.reward_mean_all)}"


def _too_easy_or_hard(record: StepRecord) -> str:
    """By how many answers of the last step got anything."""
    if record.reward_mean_all > 0.9:
        return "the tasks are too easy: set control.skip_solved: 8, or take harder ones"
    if record.reward_mean_all < 0.1:
        return "the tasks are too hard, or the judge misreads answers: read some with `freerun samples`"
    return "tasks are either too easy or too hard: set control.skip_solved: 8, or take others"
